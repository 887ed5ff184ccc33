"""What handlers say of their work, as the engine records it and hands it to the next attempt."""

from scylla_spark.core.tables.progress import Basis
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.core.tasks.task import FAILED, MAX_LAST_ERROR_CHARS, STARTED, TIMED_OUT, YIELDED, Failure, LastError
from tests.support.engine_harness import NOW, SECOND, Harness

LEFT = WorkNote(progress=0.5, checkpoint='{"row":7}')


def next_attempt(world, after=60):
    (found,) = world.at(after)
    return found


def test_next_attempt_gets_what_the_last_one_left_behind():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    assert first.checkpoint is None
    world.finish(first, FAILED, work=LEFT)
    assert world.at(0.1) == []
    second = next_attempt(world)
    assert (second.attempt, second.checkpoint) == (2, '{"row":7}')


def test_what_was_left_behind_holds_until_something_newer_is():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    world.finish(first, TIMED_OUT, work=LEFT)
    second = next_attempt(world)
    world.finish(second, YIELDED, work=WorkNote(progress=0.7), after_ms=1000)
    third = next_attempt(world, 120)
    assert third.checkpoint == '{"row":7}'
    assert world.facts[-1].work == WorkNote(progress=0.7, checkpoint='{"row":7}')
    world.finish(third, FAILED, work=WorkNote(checkpoint='{"row":9}'))
    assert next_attempt(world, 180).checkpoint == '{"row":9}'


def test_start_of_a_long_run_keeps_what_was_left_behind():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    world.finish(first, FAILED, work=LEFT)
    second = next_attempt(world)
    began = world.now
    world.engine.handed([second.id], began)
    world.at(63)
    world.engine.running({second.id: began}, world.now)
    world.pump()
    assert (world.facts[-1].outcome, world.facts[-1].work) == (STARTED, WorkNote(checkpoint='{"row":7}'))
    world.finish(second, FAILED)
    assert next_attempt(world, 120).checkpoint == '{"row":7}'


def test_what_a_handler_says_while_it_runs_is_a_start_that_is_told_again():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    began = world.now
    for row in range(30):  # every tenth of a second
        world.now = began + row * SECOND // 10
        note = WorkNote(progress=row / 100, checkpoint=f'{{"row":{row}}}')
        world.engine.noted({first.id: note}, {first.id: began}, world.now)
        world.pump(patient=False)
    world.at(10)
    world.engine.noted({}, {}, world.now)
    world.pump()
    said = [(fact.outcome, fact.attempt, fact.used, fact.work.checkpoint) for fact in world.facts]
    assert {one[:3] for one in said} == {(STARTED, 1, 1)}
    assert 3 <= len(said) <= 5, "one a second"
    assert said[-1][3] == '{"row":29}', "the last word counts"
    world.finish(first, FAILED)
    assert next_attempt(world).checkpoint == '{"row":29}'


def test_what_is_said_of_runs_that_are_over_is_dropped():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    world.finish(first)
    world.engine.noted({first.id: LEFT, 12345: LEFT}, {first.id: world.now}, world.now)
    world.pump()
    assert [fact.outcome for fact in world.facts] == ["succeeded"]


def test_next_owner_hands_on_what_stands_in_the_tables():
    world = Harness()
    key = world.enqueue(due=30)
    command = world.engine.partitions[0].lanes["a"].find(key).data
    row = ScanRow(command, attempt=1, used=1, next_us=NOW + 40 * SECOND, work=LEFT)
    world.engine.rows(world.tenure, [row], Basis(), world.now)
    assert next_attempt(world).checkpoint == '{"row":7}'


def test_next_attempt_is_told_in_brief_why_the_last_one_failed_and_nothing_of_what_yielded():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    assert first.last_error is None
    world.finish(first, FAILED, failure=Failure("Busy", "m" * 5_000, "stack"))
    second = next_attempt(world)
    assert second.last_error == LastError("Busy", "m" * MAX_LAST_ERROR_CHARS)
    world.finish(second, YIELDED, after_ms=1000)
    assert next_attempt(world, 120).last_error is None


def test_start_of_a_run_keeps_why_the_attempt_before_failed_until_its_end_is_known():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    world.finish(first, FAILED, failure=Failure("Busy"))
    second = next_attempt(world)
    began = world.now
    world.engine.handed([second.id], began)
    world.at(63)
    world.engine.running({second.id: began}, world.now)
    world.pump()
    entry = world.partition.lanes["a"].find(second.key)
    assert (world.facts[-1].outcome, entry.error) == (STARTED, LastError("Busy", ""))
    world.finish(second, TIMED_OUT, failure=Failure("timed_out", "late"))
    assert next_attempt(world, 120).last_error == LastError("timed_out", "late")


def test_next_owner_tells_why_the_last_attempt_in_the_tables_failed():
    world = Harness()
    key = world.enqueue(due=30)
    command = world.engine.partitions[0].lanes["a"].find(key).data
    row = ScanRow(command, attempt=1, used=1, next_us=NOW + 40 * SECOND, error=LastError("Busy", "m"))
    world.engine.rows(world.tenure, [row], Basis(), world.now)
    assert next_attempt(world).last_error == LastError("Busy", "m")
