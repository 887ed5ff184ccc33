"""Space: hours are closed exactly, small files put together, old hours dropped; no row is lost that somebody may need."""

import pytest

from scylla_spark.clock import from_us
from scylla_spark.config.settings import History
from scylla_spark.core.records.fact import Fence, encode_fence
from scylla_spark.core.tasks.key import HOUR_US, partition_of
from scylla_spark.core.tasks.output import outputs_place
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.output_files import OutputFiles
from scylla_spark.schemas import ATTEMPTS, AUDIT_TRAIL, COMPLETIONS, DEFERRED, FIRES, JOBS, PROGRESS, REJECTED, TASKS
from scylla_spark.services.ingest import compact
from tests.spark.batches import HOUR, NOW, PARTITIONS, done, facts, key_of, raw, rows, task
from tests.support.delta_tables import append
from tests.support.delta_tables import fact as fact_row

LANE, PLACE = "a", partition_of("a", PARTITIONS)
FENCE = Fence(1, "n")
DAY = 24 * HOUR


def enqueue(ingest, number, *dues, kind="enqueue"):
    """A batch of tasks of one lane named after their due times, sent in time, however long ago."""
    appended = [NOW + (due - 60) * 1_000_000 for due in dues]
    records = [
        task(LANE, str(due), number * 100 + n, due=due, kind=kind, stamp=stamp)
        for n, (due, stamp) in enumerate(zip(dues, appended, strict=True))
    ]
    ingest.write_tasks(raw(ingest.spark, records, appended), number)


def complete(ingest, number, *dues):
    values = [encode_fence(FENCE, "", NOW), facts(FENCE, *(done(key_of(LANE, str(due), due)) for due in dues))]
    batch = [(PLACE, number * 2 + n, None, value) for n, value in enumerate(values)]
    ingest.write_outcomes(raw(ingest.spark, batch), number)


def hour_of(due):
    return (NOW + due * 1_000_000) // HOUR_US


def open_hours(ingest):
    ingest.maintenance.closer.close(NOW)
    return ingest.tables.partition_marks()[PLACE].open_hours


def test_an_hour_is_closed_when_every_key_of_it_has_ended_whatever_the_counts_say(ingest):
    start = hour_of(-5 * HOUR) * HOUR - NOW // 1_000_000 + 10
    enqueue(ingest, 0, start, start + 20)
    complete(ingest, 0, start)
    complete(ingest, 1, start)
    assert open_hours(ingest) == (hour_of(start),)
    complete(ingest, 2, start + 20)
    assert open_hours(ingest) == ()
    mark = ingest.tables.partition_marks()[PLACE]
    assert mark.closed_hour == (NOW - 2 * HOUR_US) // HOUR_US > hour_of(start)


def test_a_task_that_never_ends_keeps_its_own_hour_open_and_a_late_record_opens_one_again(ingest):
    enqueue(ingest, 0, -9 * HOUR, -7 * HOUR, -5 * HOUR)
    complete(ingest, 0, -9 * HOUR, -5 * HOUR)
    for _ in range(2):
        assert open_hours(ingest) == (hour_of(-7 * HOUR),)
    enqueue(ingest, 1, -5 * HOUR, kind="cancel")
    assert ingest.tables.partition_marks()[PLACE].open_hours == (hour_of(-7 * HOUR), hour_of(-5 * HOUR))
    enqueue(ingest, 2, -3 * HOUR)
    assert open_hours(ingest) == (hour_of(-7 * HOUR), hour_of(-3 * HOUR))
    complete(ingest, 1, -7 * HOUR, -3 * HOUR)
    assert open_hours(ingest) == ()


def test_hours_that_are_young_or_not_folded_stay_open(ingest):
    enqueue(ingest, 0, -HOUR)
    complete(ingest, 0, -HOUR)
    assert open_hours(ingest) == ()
    assert ingest.tables.partition_marks()[PLACE].closed_hour <= hour_of(-HOUR)
    ingest.maintenance.closer.close(NOW + 30 * DAY * 1_000_000)
    assert ingest.tables.partition_marks()[PLACE].closed_hour * HOUR_US == ingest.progress.folded_until_us


@pytest.mark.promise
def test_purge_drops_old_closed_hours_and_never_an_open_one(ingest):
    ended, still, young = -20 * DAY, -19 * DAY, -13 * DAY
    enqueue(ingest, 0, ended, still, young)
    complete(ingest, 0, ended, young)
    ingest.maintenance.purge_all(NOW)  # the newest record is 13 days old: nothing is out of reach of a late record
    assert len(rows(ingest, TASKS, "uniqueness_key")) == 3
    ingest.write_tasks(raw(ingest.spark, [task(LANE, "now", 900), (PLACE, 901, None, b"junk")]), 9)
    append(ingest.tables.path, ATTEMPTS, [fact_row(key_of(LANE, "x", ended), 1, "started")])
    ingest.maintenance.purger.purge(NOW)
    assert {row[0] for row in rows(ingest, TASKS, "uniqueness_key")} == {str(still), str(young), "now"}
    assert rows(ingest, COMPLETIONS, "uniqueness_key") == [(str(young),)]
    assert rows(ingest, ATTEMPTS, "uniqueness_key") == []
    assert rows(ingest, REJECTED, "offset") == [(901,)]
    appended = NOW + 16 * DAY * 1_000_000
    ingest.write_tasks(raw(ingest.spark, [(PLACE, 902, None, b"junk")], appended), 10)
    ingest.maintenance.purger.purge(NOW)
    assert rows(ingest, REJECTED, "offset") == [(902,)]


def test_rows_of_schedules_and_the_audit_are_kept_as_long_as_their_settings_say_and_those_of_open_runs_longer(ingest):
    ended, still = -20 * DAY, -19 * DAY
    enqueue(ingest, 0, ended, still)
    complete(ingest, 0, ended)
    old = [from_us(NOW + days * DAY * 1_000_000) for days in (-20, -19, -7, -4)]
    due = [from_us(NOW + offset * 1_000_000) for offset in (ended, still)] + [None, None]
    fires = [
        {"decided_at": at, "scheduled_time": of, "why": str(n)} for n, (at, of) in enumerate(zip(old, due, strict=True))
    ]
    append(ingest.tables.path, FIRES, fires)
    append(ingest.tables.path, JOBS, [{"changed_at": at, "state": str(n)} for n, at in enumerate(old)])
    append(ingest.tables.path, AUDIT_TRAIL, [{"at": at, "status": n} for n, at in enumerate(old)])
    ingest.maintenance.purger._history = History(jobs="3d")
    ingest.maintenance.purge_all(NOW)
    assert rows(ingest, FIRES, "why") == [("1",), ("2",), ("3",)], "the first has ended, the second is open"
    assert rows(ingest, JOBS, "state") == [("3",)]
    assert len(rows(ingest, AUDIT_TRAIL, "status")) == 4
    ingest.maintenance.purger._history = History(fires="1d", audit="10d")
    ingest.maintenance.purge_all(NOW)
    assert rows(ingest, FIRES, "why") == [("1",)]
    assert rows(ingest, AUDIT_TRAIL, "status") == [(2,), (3,)]


def test_a_partition_to_which_nothing_more_is_sent_is_purged_when_all_of_it_was_read(ingest):
    enqueue(ingest, 0, -20 * DAY)
    complete(ingest, 0, -20 * DAY)
    ingest.maintenance.closer.close(NOW)
    for end, left in ((2, 1), (1, 0)):  # a record that was not read yet may be of that hour
        ingest.maintenance.purger._ends = lambda end=end: {PLACE: end}
        ingest.maintenance.purger.purge(NOW)
        assert len(rows(ingest, TASKS, "uniqueness_key")) == len(rows(ingest, COMPLETIONS, "uniqueness_key")) == left


def test_files_that_attempts_left_behind_go_with_the_hour_of_their_task(ingest):
    ended, still, foreign = -20 * DAY, -19 * DAY, -20 * DAY
    enqueue(ingest, 0, ended, still)
    complete(ingest, 0, ended)
    files = OutputFiles(ingest.settings.outputs_path)
    places = [outputs_place(key_of(LANE, str(due), due), 1, PARTITIONS) for due in (ended, still)]
    for place in (*places, f"{PARTITIONS + 7}/{hour_of(foreign)}/x/1"):
        files.write(place, "a.txt", b"abc", 3)
    ingest.write_tasks(raw(ingest.spark, [task(LANE, "now", 900)]), 9)
    ingest.maintenance.purge_all(NOW)
    assert set(files.hours()) == {(PLACE, hour_of(still)), (PARTITIONS + 7, hour_of(foreign))}


def test_small_files_are_put_together_and_no_row_changes(ingest, monkeypatch):
    monkeypatch.setattr(compact, "_MANY_FILES", 3)
    for number in range(3):
        due = -5 * HOUR + number
        enqueue(ingest, number, due, due + 50 * HOUR)
        complete(ingest, number, due)
    ingest.write_tasks(raw(ingest.spark, [(PLACE, 990 + n, None, b"junk") for n in range(3)]), 9)
    before = {table: rows(ingest, table, *table.names) for table in (TASKS, DEFERRED, COMPLETIONS, REJECTED)}
    readers = TableReader(ingest.settings.tables_path)
    counts = {table: len(readers.files(table)) for table in before}
    ingest.maintenance.compactor.compact_all(NOW)
    for table in before:
        assert rows(ingest, table, *table.names) == before[table]
    after = {table: len(readers.files(table)) for table in before}
    assert counts[TASKS] == counts[DEFERRED] == counts[COMPLETIONS] == 3
    assert (after[TASKS], after[DEFERRED], after[COMPLETIONS]) == (1, 1, 1)


def test_folded_rows_of_deferred_go_when_no_reader_can_need_them(ingest):
    enqueue(ingest, 0, 10 * HOUR, 20 * HOUR)
    chores, later = ingest.maintenance.purger, NOW + 9 * HOUR_US
    chores.drop_folded(NOW)
    while ingest.promotion.turn(later):
        pass
    for minutes, left in ((0, 2), (5, 2), (20, 1)):
        chores.drop_folded(later + minutes * 60_000_000)
        assert len(rows(ingest, DEFERRED, "uniqueness_key")) == left
    assert rows(ingest, TASKS, "uniqueness_key") == [(str(10 * HOUR),)]


def test_turns_do_what_is_due_and_come_to_rest(ingest):
    enqueue(ingest, 0, -5 * HOUR)
    complete(ingest, 0, -5 * HOUR)
    while ingest.turn(NOW):
        pass
    assert ingest.tables.partition_marks()[PLACE].closed_hour > 0
    ingest.maintenance.purger.vacuum(PROGRESS, NOW)
    assert rows(ingest, TASKS, "uniqueness_key") == [(str(-5 * HOUR),)]
