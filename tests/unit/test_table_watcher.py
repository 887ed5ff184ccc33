"""One table that cannot be read keeps no other from being watched."""

import time

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.tables.watch import Place, Wanted
from scylla_spark.core.plan.trigger_format import read_trigger
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
    eventually(lambda: [name for name, _ in looked].count("good") > 2, 10)
    watcher.stop()
    found = watcher._found.get_nowait()
    assert (found.place, found.kind) == (bad, "unreachable")
    assert "unwrap" in found.why
