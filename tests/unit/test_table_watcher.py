"""One table that cannot be read keeps no other from being watched."""

import threading
import time

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.tables.watch import Place, Wanted
from scylla_spark.core.plan.trigger_format import read_trigger
from scylla_spark.io.delta.watched.commit_follower import UNREACHABLE, TableTrouble
from scylla_spark.services.plan import look_turns
from scylla_spark.services.plan.look_turns import LookTurns
from scylla_spark.services.plan.table_watcher import TableWatcher
from tests.support.waiting import eventually


class Panic(BaseException):
    """What a library raises that is written in another language."""


def test_a_schedule_that_watches_a_table_of_the_deployment_is_told_so_and_begins_nowhere(tmp_path):
    settings = Settings(_env_file=None, data_dir=tmp_path, plan={"poll": "50ms"})
    watcher, place = TableWatcher(settings), Place("s", 0, (1,))
    watcher._wanted = {place: Wanted(read_trigger({"kind": "table", "table": f"{tmp_path}/tables/completions"}), None)}
    watcher.start()
    eventually(lambda: not watcher._found.empty(), 10)
    watcher.stop()
    found = watcher._found.get_nowait()
    assert (found.place, found.kind, found.resume) == (place, "unsuitable", None)
    assert "one of the deployment's own" in found.why


@pytest.mark.slow
def test_a_panic_over_one_table_is_its_own_trouble(tmp_path, monkeypatch):
    watcher = TableWatcher(Settings(_env_file=None, data_dir=tmp_path, plan={"poll": "50ms"}))
    trigger = read_trigger({"kind": "table", "table": str(tmp_path / "t")})
    bad, good = Place("bad", 0, (1,)), Place("good", 0, (1,))
    watcher._wanted = {bad: Wanted(trigger, None), good: Wanted(trigger, None)}
    looked = []

    def look(place, wanted):
        looked.append((place.name, time.monotonic()))
        if place.name == "bad":
            raise Panic("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(watcher, "_look", look)
    watcher.start()
    eventually(lambda: [name for name, _ in looked].count("good") > 2 and not watcher._found.empty(), 10)
    watcher.stop()
    found = watcher._found.get_nowait()
    assert (found.place, found.kind) == (bad, "unreachable")
    assert "unwrap" in found.why


@pytest.mark.slow
@pytest.mark.parametrize("hanging", [1, 3 * look_turns.MOST_QUICK])
def test_places_that_never_answer_keep_none_that_grows_from_being_looked_at(tmp_path, monkeypatch, hanging):
    monkeypatch.setattr(look_turns, "SLOW_US", 50_000)
    watcher = TableWatcher(Settings(_env_file=None, data_dir=tmp_path, plan={"poll": "50ms"}))
    trigger = read_trigger({"kind": "table", "table": "s3://bucket/t"})
    places = [Place(f"hangs-{number}", 0, (1, 1)) for number in range(hanging)]
    watcher._wanted = {place: Wanted(trigger, None) for place in [*places, Place("well", 0, (1, 1))]}
    answered, looked = threading.Event(), []

    def look(place, wanted):
        looked.append(place.name)
        if place.name != "well":
            answered.wait(30)

    monkeypatch.setattr(watcher, "_look", look)
    watcher.start()
    try:
        eventually(lambda: looked.count("well") > 5, 10)
        assert all(looked.count(place.name) == 1 for place in places), "one look at a place at a time"
        answered.set()
        eventually(lambda: all(looked.count(place.name) > 2 for place in places), 10)
    finally:
        answered.set()
        watcher.stop()


def test_a_store_that_cannot_be_reached_is_asked_less_and_less_often(tmp_path):
    watcher = TableWatcher(Settings(_env_file=None, data_dir=tmp_path))
    place = Place("bad", 0, (1, 1))
    watcher._look = lambda place, wanted: watcher._put_trouble(place, TableTrouble(UNREACHABLE, "It is away."))
    assert watcher._takes_turn(place)
    assert not watcher._takes_turn(place), "somebody looks"
    watcher._look_guarded(place, Wanted(read_trigger({"kind": "table", "table": "/t"}), None))
    assert not watcher._takes_turn(place), "it waits for a second first"
    assert watcher._found.get_nowait().kind == UNREACHABLE


def test_looks_without_answer_wait_longer_and_longer_until_one_is_answered():
    turns, place, now, waits = LookTurns(), Place("bad", 0, (1, 1)), 0, []
    for _ in range(9):
        assert turns.is_due(place, now)
        turns.begin(place, now)
        turns.end(place, now, answered=False)
        begun = now
        while not turns.is_due(place, now):
            now += 500_000
        waits.append((now - begun) // 1_000_000)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    turns.begin(place, now)
    turns.end(place, now, answered=True)
    assert turns.is_due(place, now)


def test_places_in_trouble_have_a_bound_of_their_own():
    turns, now = LookTurns(), 0
    bad = [Place(f"bad-{number}", 0, (1, 1)) for number in range(look_turns.MOST_SLOW + 1)]
    good = [Place(f"good-{number}", 0, (1, 1)) for number in range(look_turns.MOST_QUICK + 1)]
    for place in bad:
        assert turns.is_due(place, now)
        turns.begin(place, now)
        turns.end(place, now, answered=False)
    now = look_turns.LONGEST_WAIT_US
    begun = [place for place in [*bad, *good] if begins(turns, place, now)]
    assert begun == [*bad[:-1], *good[:-1]]
    assert turns.has_room(good[-1], now + look_turns.SLOW_US), "those that have not answered by then are not waited for"
    turns.keep(())
    assert not turns.has_room(bad[0], now), "looks under way are not forgotten"


def begins(turns, place, now):
    begins = turns.is_due(place, now) and turns.has_room(place, now)
    if begins:
        turns.begin(place, now)
    return begins
