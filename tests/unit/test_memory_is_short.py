"""More tasks than memory takes: what cannot start waits in the tables, and never keeps out what can start."""

import pytest

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import LEASED, HandlerPolicy, Limits
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.lane import BEFORE_ALL
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.records.command import Command, WireRetry
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import Bearer, Known, ScanRow
from scylla_spark.core.tasks.task import FAILED, Failure
from scylla_spark.name_fingerprint import chosen, fingerprint
from tests.support.engine_harness import NOW, RETRY, SECOND, Harness
from tests.support.worker_harness import PullWorld

LIMIT = 60 * 1024


@pytest.fixture
def world():
    terms = HandlerPolicy("local", 5000, RETRY)
    queues = {"paused": QueueLimits(paused=True)}
    return Harness(
        Limits(max_held_bytes=LIMIT, lane_depth=4),
        terms=lambda command: terms if command.handler else HandlerPolicy(LEASED, 5000, RETRY),
        queues=queues,
    )


def reloads(world):
    found = [item for item in world.other if isinstance(item, action.Reload)]
    world.other = [item for item in world.other if item not in found]
    return found


@pytest.mark.parametrize(
    "stuck",
    [{"queue": "paused"}, {"handler": None}, {"due": 200}],
    ids=["paused queue", "no handler", "due much later"],
)
@pytest.mark.parametrize("lanes", [1, 500])
def test_what_cannot_start_does_not_keep_out_what_can(world, stuck, lanes):
    for number in range(500):
        world.enqueue(lane=f"stuck{number % lanes}", unique=f"{number:03}", **({"due": -1} | stuck))
    world.enqueue(lane="fine")
    assert [i.key.ordering_id for i in world.pump()] == ["fine"]
    assert world.engine.held_bytes <= LIMIT
    assert not world.engine.choked


def test_a_lane_that_fails_again_and_again_keeps_its_head_only(world):
    for number in range(300):
        world.enqueue(lane="failing", unique=f"{number:03}", retry=WireRetry(9, 60_000, 60_000))
    world.finish(*world.pump(), outcome=FAILED)
    for number in range(300, 600):
        world.enqueue(lane="failing", unique=f"{number:03}")
    world.at(2)
    world.at(4)
    world.enqueue(lane="fine", due=4)
    assert [i.key.ordering_id for i in world.pump()] == ["fine"]
    assert not world.engine.choked
    assert world.engine.held_bytes <= LIMIT


def test_what_was_let_go_of_is_read_again_from_tables_that_hold_it(world):
    for number in range(300):
        world.enqueue(lane="a", unique=f"{number:03}")
    (head,) = world.pump()
    world.finish(head, FAILED)
    world.enqueue(lane="a", unique="300")
    world.pump()
    last = world.offset - 1
    ran, rows = [head.key], [ScanRow(Command("enqueue", TaskKey(NOW, "a", f"{n:03}"), n, "h")) for n in range(301)]
    while len(ran) < 301:
        for invocation in world.at((world.now - NOW) / SECOND + 10):
            if invocation.key != head.key:
                ran.append(invocation.key)
            world.finish(invocation)
        for item in reloads(world):
            assert item.covering <= last
            behind = [row for row in rows if row.command.key > item.after]
            world.engine.reloaded(
                item.tenure, "a", behind[: item.most], Basis(last + 1, 0), world.now, more=len(behind) > item.most
            )
    assert ran == [row.command.key for row in rows]


def test_a_partition_that_waits_for_the_tail_is_never_held_up_by_memory():
    engine = Engine(
        lambda _: HandlerPolicy("local", 5000, RETRY), Limits(max_held_bytes=LIMIT), __import__("random").Random(1)
    )
    tenure = engine.assign(0, Mark(), NOW)
    engine.raise_horizon(tenure, NOW + 300 * SECOND)
    for number in range(1000):
        command = Command("enqueue", TaskKey(NOW, f"lane{number}", "u"), number, "h")
        engine.commands(tenure, [command], number + 1, NOW)
        assert not engine.choked
    assert engine.held_bytes <= 2 * LIMIT
    assert len(engine.partitions[0].unloaded) > 900


def test_lanes_left_to_the_tables_are_loaded_by_a_later_scan_that_covers_them(world):
    for number in range(200):
        world.enqueue(lane=f"later{number}", unique="u", due=100)
    left = dict(world.partition.unloaded)
    assert len(left) > 100
    world.now = NOW + 99 * SECOND
    early = Mark(50, 0)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, early, world.now, frozenset())
    assert set(world.partition.unloaded) == {number for number, offset in left.items() if offset >= 50}
    rows = [ScanRow(Command("enqueue", TaskKey(NOW + 100 * SECOND, f"later{n}", "u"), n, "h")) for n in range(200)]
    world.engine.rows(world.tenure, rows, Basis(200, 0), world.now)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(200, 0), world.now, frozenset())
    assert world.partition.unloaded == {}
    assert len(world.at(100)) == 200


def test_tasks_that_can_start_make_the_tail_wait_and_go_on_as_they_end(world):
    for number in range(80):
        world.enqueue(lane=f"lane{number}")
    assert world.engine.choked
    for invocation in world.pump()[:40]:
        world.finish(invocation)
    world.pump()
    world.enqueue(lane="more")
    assert not world.engine.choked


def test_cancels_and_facts_of_tasks_that_are_not_loaded_count_as_held(world):
    before = world.engine.held_bytes
    for number in range(20):
        world.command("cancel", TaskKey(NOW + SECOND, f"nobody{number}" + "é" * 100, "u"))
    assert world.engine.held_bytes > before + 20 * 500
    world.pump()
    assert world.engine.held_bytes == before


def test_release_stops_while_too_many_ended_keys_wait_for_the_tables_and_says_so():
    world = Harness(Limits(max_ended=3))
    for number in range(3):
        world.enqueue(lane=f"lane{number}")
    for invocation in world.pump():
        world.finish(invocation)
    world.pump()
    for number in range(3, 5):
        world.enqueue(lane=f"lane{number}")
    assert len(world.partition.ended) == 3
    assert world.pump() == []
    assert "is ingest running" in world.engine.held_up(world.partition)
    world.now += 200 * SECOND
    world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(50, 50), world.now)
    assert len(world.partition.ended) == 0
    assert world.engine.held_up(world.partition) == ""
    world.pump()
    asked = [key for item in world.other if isinstance(item, action.Lookup) for key in item.keys]
    assert len(asked) == 2, "their time is before what memory knows by now"


def test_results_that_are_not_recorded_yet_are_counted_in_bytes():
    world = Harness(Limits(max_unrecorded_bytes=100_000))
    for number in range(5):
        world.enqueue(lane=f"lane{number}")
    for invocation in world.pump(room=2):
        world.finish(invocation, result='"' + "x" * 60_000 + '"')
    assert world.pump(deliver=False, patient=False) == []
    assert "memory" in world.engine.held_up(world.partition)


def test_names_from_data_are_not_remembered(world):
    for number in range(300):
        world.enqueue(lane=f"lane{number % 7}", unique=f"{number}", queue=f"queue{number}", handler=f"handler{number}")
        for invocation in world.pump():
            world.finish(invocation)
        world.pump()
    engine = world.engine
    assert set(engine._gates._gates) == {"", "paused"}
    assert {name for heaps in engine._ready._heaps.values() for name in heaps} == {""}
    assert engine.gate("queue7") is engine.gate("another")


def test_a_seed_fixed_by_the_environment_does_not_make_fingerprints_foreseeable():
    keyed = chosen("0")
    key = TaskKey(NOW, "a", "u")
    assert chosen("") is chosen("random") is hash
    assert keyed(key) == keyed(TaskKey(NOW, "a", "u")) != keyed(TaskKey(NOW, "au", ""))
    assert keyed("a") != hash("a")
    assert isinstance(fingerprint("\ud800"), int)
    assert isinstance(keyed("\ud800"), int)


@pytest.mark.slow
def test_what_the_tail_has_to_decide_never_keeps_the_tail_from_reading(world):
    """Tables that are ahead of the tail tell of many tasks whose names are unique: they wait for the tail, which waits for room."""
    commands = [Command("enqueue", TaskKey(NOW, f"lane{n}", "u"), 1_000 + n, "h", unique=True) for n in range(500)]
    world.stored = [Bearer(one.key, one.offset, True, "default", "h") for one in commands]
    world.engine.rows(world.tenure, [ScanRow(one, first=one.offset) for one in commands], Basis(2_000, 0), world.now)
    world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(2_000, 0), world.now)
    assert world.pump() == []
    assert not world.engine.choked
    for one in commands:
        world.engine.commands(world.tenure, [one], one.offset + 1, world.now)
        assert not world.engine.choked
        for run in world.pump():
            world.finish(run)
    assert sorted(run.key for run in world.released) == sorted(one.key for one in commands)


def failed_lanes(world, count=150, queue="default"):
    """Tasks of as many lanes, each of which has failed once, and waits an hour for its next attempt."""
    for n in range(count):
        world.enqueue(lane=f"failed{n:03}", queue=queue, retry=WireRetry(9, 3_600_000, 3_600_000))
        for invocation in world.pump():
            world.finish(invocation, FAILED, failure=Failure("OSError", f"no {n}"))
        world.pump()
    return list(world.released)


def test_tasks_that_wait_for_their_next_attempt_do_not_keep_out_what_can_start(world):
    failed_lanes(world)
    world.enqueue(lane="fine")
    assert [i.key.ordering_id for i in world.pump()] == ["fine"]
    assert not world.engine.choked
    world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(1_000, 1_000), world.now)
    world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(1_000, 1_000), world.now)
    assert not world.partition.attempts, "by now the tables tell of them"
    assert world.engine.held_bytes <= LIMIT


def test_tried_tasks_of_a_queue_that_is_paused_do_not_keep_out_what_can_start(world):
    world.engine.put_queue("later", QueueLimits(), world.now)
    failed_lanes(world, queue="later")
    world.engine.put_queue("later", QueueLimits(paused=True), world.now)
    world.now = NOW + 2 * 3_600 * SECOND
    world.engine.raise_horizon(world.tenure, world.now)
    world.engine.scanned(world.tenure, world.now, {}, Mark(), world.now)
    for n in range(100):
        world.enqueue(lane=f"fine{n}", due=7_200)
        for invocation in world.pump():
            world.finish(invocation)
    assert not world.engine.choked
    assert len([i for i in world.released if i.key.ordering_id.startswith("fine")]) == 100


@pytest.mark.parametrize("tells", [False, True], ids=["tables that lack it", "tables that have it"])
def test_what_is_known_of_attempts_outlives_the_tasks_that_are_let_go_of(world, tells):
    ran = failed_lanes(world)
    left = [i for i in ran if i.key.ordering_id not in world.partition.lanes]
    assert len(left) > 50
    fact = {fact.key: fact for fact in world.facts}
    for invocation in left[:20]:
        key = invocation.key
        known = {"attempt": 1, "used": 1, "next_us": fact[key].next_us, "error": fact[key].brief_error} if tells else {}
        row = ScanRow(Command("enqueue", key, 7, "h"), **known)
        world.engine.rows(world.tenure, [row], Basis(1_000, 1_000 if tells else 0), world.now)
        entry = world.partition.lanes[key.ordering_id].find(key)
        assert (entry.attempt, entry.used, entry.next_us) == (1, 1, fact[key].next_us)
        assert entry.error.message == f"no {int(key.ordering_id[-3:])}"


def test_answers_of_tables_that_lack_an_attempt_are_void_once_it_is_forgotten(world):
    ran = failed_lanes(world)
    left = [i for i in ran if i.key.ordering_id not in world.partition.lanes]
    for _ in range(2):
        assert world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(1_000, 1_000), world.now)
    world.engine.rows(
        world.tenure, [ScanRow(Command("enqueue", i.key, 7, "h")) for i in left], Basis(1_000, 10), world.now
    )
    assert not any(i.key.ordering_id in world.partition.lanes for i in left)
    assert not world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(1_000, 10), world.now)


def test_a_task_that_was_let_go_of_does_not_expire_once_it_has_begun(world):
    for n in range(150):
        retry = WireRetry(9, 3_600_000, 3_600_000)
        world.enqueue(lane=f"failed{n:03}", retry=retry, expires_ms=60_000)
        for invocation in world.pump():
            world.finish(invocation, FAILED)
        world.pump()
    left = [i for i in world.released if i.key.ordering_id not in world.partition.lanes]
    world.engine.scanned(world.tenure, NOW + 4_000 * SECOND, {}, Mark(), world.now)
    world.now = NOW + 3_700 * SECOND
    rows = [ScanRow(Command("enqueue", i.key, 7, "h", expires_ms=60_000)) for i in left[:5]]
    world.engine.rows(world.tenure, rows, Basis(1_000, 0), world.now)
    again = [i for i in world.pump() if i.key in {i.key for i in left[:5]}]
    assert [i.attempt for i in again] == [2] * 5


def test_checkpoints_of_tasks_that_are_loaded_count_as_held(world):
    world.enqueue(retry=WireRetry(9, 3_600_000, 3_600_000))
    (invocation,) = world.pump()
    before = world.engine.held_bytes
    world.finish(invocation, FAILED, work=WorkNote(checkpoint='"' + "c" * 10_000 + '"'))
    world.pump()
    assert world.engine.held_bytes > before + 10_000
    world.command("cancel", invocation.key)
    world.pump()
    assert world.engine.held_bytes < before


def let_go(world):
    """As much comes as makes it let go of all that waits for long."""
    for n in range(100):
        world.enqueue(lane=f"later{n}", due=200)
    world.pump()
    assert "a" not in world.partition.lanes


def failed_once(world):
    """A task that has failed, and waits an hour."""
    key = world.enqueue(retry=WireRetry(9, 3_600_000, 3_600_000))
    (invocation,) = world.pump()
    world.finish(invocation, FAILED, failure=Failure("OSError", "no"))
    world.pump()
    return key, world.facts[-1]


@pytest.mark.parametrize("early", [False, True])
def test_an_attempt_is_kept_in_mind_until_progress_is_past_its_record(world, early):
    """Ingest writes progress last: of two answers with the same progress one may tell of an attempt, and the other not."""
    key, fact = failed_once(world)
    place = len(world.log) - 1
    if early:
        known = Known(False, 1, 1, fact.next_us, None, fact.brief_error, place)
        world.engine.looked_up(world.tenure, {key: known}, Basis(1_000, place), world.now)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(1_000, place), world.now)
    let_go(world)
    row = ScanRow(Command("enqueue", key, 0, "h", retry=WireRetry(9, 3_600_000, 3_600_000)), first=0)
    world.engine.rows(world.tenure, [row], Basis(1_000, place), world.now)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(1_000, place), world.now, frozenset())
    assert world.pump() == []
    assert world.partition.attempts[key].known.attempt == 1


@pytest.mark.parametrize("tells", [False, True], ids=["tables that lack it", "tables that have it"])
def test_the_end_of_a_task_that_was_let_go_of_tells_its_attempts(world, tells):
    key, fact = failed_once(world)
    if tells:
        world.engine.scanned(world.tenure, NOW + 300 * SECOND, {}, Mark(1_000, len(world.log)), world.now)
    let_go(world)
    world.command("cancel", key, request_id="r")
    world.pump()
    known = Known(False, 1, 1, fact.next_us, None, fact.brief_error, len(world.log)) if tells else Known()
    world.engine.looked_up(world.tenure, {key: known}, Basis(1_000, len(world.log)), world.now)
    world.pump()
    (end,) = [fact for fact in world.facts if fact.outcome == "cancelled"]
    assert (end.attempt, end.used, end.request_id) == (1, 1, "r")


def test_a_lane_that_was_left_meanwhile_is_not_made_anew_by_the_cut_of_a_scan():
    """Of lanes of which a scan reads the leased head alone, it tells a cut before all tasks."""
    world = PullWorld(limits=Limits(max_held_bytes=LIMIT, lane_depth=4, least_wait_us=0))
    world.put(unique="1")
    world.put(unique="2", payload="x" * 3_000)
    (lease,) = world.leases(world.once(1))
    started = world.facts[-1]
    row = ScanRow(Command("enqueue", lease.task.key, 0, None, "gpu"), attempt=1, used=1, work=started.work, place=0)
    mark = Mark(2, len(world.log))
    world.report(lease.token, "yielded", after_ms=0)
    for n in range(79):
        world.put(f"other{n}")
    commands = [Command("enqueue", TaskKey(NOW, f"p{n}", "u"), 81 + n, None, "gpu", "x" * 4_000) for n in range(5)]
    commands.append(Command("enqueue", TaskKey(NOW, "a", "3"), 86, None, "gpu"))
    world.engine.commands(world.tenure, commands, 87, world.now)
    world.pump()
    assert "a" not in world.partition.lanes
    world.engine.rows(world.tenure, [row], mark.basis, world.now)
    world.engine.scanned(world.tenure, NOW + 300 * SECOND, {"a": BEFORE_ALL}, mark, world.now, frozenset())
    assert "a" not in world.partition.lanes
    rows = [
        ScanRow(Command("enqueue", TaskKey(NOW, "a", u), n, None, "gpu")) for n, u in ((0, "1"), (1, "2"), (86, "3"))
    ]
    world.engine.rows(world.tenure, rows, Basis(1_000, len(world.log)), world.now)
    assert len(world.partition.lanes["a"].entries) == 3
