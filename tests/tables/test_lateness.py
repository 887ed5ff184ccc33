"""How late tasks started, by queue and five minutes, from small tables of our own."""

from __future__ import annotations

import pytest

from scylla_spark.clock import from_us, iso
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.delta.lateness import Lateness
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from tests.support.delta_tables import append, at, fact, make, task

MS, S = 1_000, 1_000_000
BEGIN, NOW, END = at(0), at(12), at(23)


def key(when: int, lane: str = "a") -> TaskKey:
    return TaskKey(when, lane, "k")


@pytest.fixture
def path(tmp_path):
    make(f"{tmp_path}/tables")
    return f"{tmp_path}/tables"


def cells(path, start=BEGIN, stop=END, now=NOW):
    return Lateness(TableReader(path)).cells(start, stop, now)


def ran(path, some: dict[TaskKey, int], **more) -> None:
    """Tasks that started so many microseconds after they were due."""
    append(path, TASKS, [task(one, 1, **more) for one in some])
    append(
        path,
        COMPLETIONS,
        [fact(one, 1, "succeeded", 2, started_at=from_us(one.time_us + late)) for one, late in some.items()],
    )


def test_tables_without_tasks_have_no_cells(path):
    assert cells(path) == []


def test_tasks_are_counted_by_queue_and_by_stretch_of_their_scheduled_time(path):
    ran(path, {key(at(10, 4)): 5 * MS, key(at(10, 4), "b"): 9 * MS, key(at(10, 5)): 2 * S}, queue="mail")
    ran(path, {key(at(10, 4), "c"): 0}, queue=None)
    found = [(one["queue"], one["at_us"], one["started"], one["p50_us"], one["worst_us"]) for one in cells(path)]
    assert found == [
        ("default", at(10), 1, 0, 0), ("mail", at(10), 2, 9 * MS, 9 * MS), ("mail", at(10, 5), 1, 2 * S, 2 * S),
    ]  # fmt: skip


def test_a_task_is_not_late_before_it_was_enqueued_or_while_nobody_knows_when(path):
    late, unknown = key(at(10)), key(at(10, 5))
    append(path, TASKS, [task(late, 1, enqueued_at=from_us(at(10) + 30 * S)), task(unknown, 2, enqueued_at=None)])
    starts = [(late, 31 * S), (unknown, 2 * S)]
    append(
        path, COMPLETIONS, [fact(one, 1, "succeeded", 2, started_at=from_us(one.time_us + us)) for one, us in starts]
    )
    assert [one["worst_us"] for one in cells(path)] == [S, 2 * S]


def test_a_task_is_as_late_as_its_first_attempt_not_as_its_last(path):
    ran(path, {key(at(10)): 90 * S})
    append(path, ATTEMPTS, [fact(key(at(10)), 1, "failed", 1, started_at=from_us(at(10) + 3 * MS))])
    assert cells(path)[0]["worst_us"] == 3 * MS


def test_lateness_counts_from_when_the_task_came(path):
    append(path, TASKS, [task(key(at(10)), 1, enqueued_at=from_us(at(10, 0, 8)))])
    append(path, COMPLETIONS, [fact(key(at(10)), 1, "succeeded", 2, started_at=from_us(at(10, 0, 9)))])
    assert cells(path)[0]["worst_us"] == 1 * S


def test_what_is_due_and_has_not_started_is_open_and_says_since_when(path):
    append(path, TASKS, [task(key(at(10, 1)), 1), task(key(at(10, 2)), 2), task(key(at(13)), 3)])
    (cell,) = cells(path)
    assert (cell["open"], cell["open_since_us"], cell["started"], cell["p50_us"]) == (2, at(10, 1), 0, None)


def test_what_ended_without_a_start_is_not_open(path):
    append(path, TASKS, [task(key(at(10)), 1)])
    append(path, COMPLETIONS, [fact(key(at(10)), 0, "cancelled", 2, started_at=None)])
    assert [(one["started"], one["open"]) for one in cells(path)] == [(0, 0)]


def test_the_window_is_cut_to_whole_stretches(path):
    ran(path, {key(at(9, 59)): 0, key(at(10, 1)): 0, key(at(10, 7)): 0, key(at(11)): 0})
    assert [iso(one["at_us"])[11:16] for one in cells(path, at(10, 3), at(11))] == ["10:00", "10:05"]
    assert cells(path, at(11), at(10)) == []


def test_a_repeated_completion_counts_once(path):
    ran(path, {key(at(10)): 0})
    append(path, COMPLETIONS, [fact(key(at(10)), 1, "succeeded", 3)])
    assert cells(path)[0]["started"] == 1


def test_numbers_of_an_hour_are_made_anew_when_its_files_change(path):
    lateness = Lateness(TableReader(path))
    append(path, TASKS, [task(key(at(10)), 1)])
    assert [one["open"] for one in lateness.cells(at(10), at(11), NOW)] == [1]
    append(path, COMPLETIONS, [fact(key(at(10)), 1, "succeeded", 2)])
    assert [(one["open"], one["started"]) for one in lateness.cells(at(10), at(11), NOW)] == [(0, 1)]


def test_what_becomes_due_in_an_hour_that_is_not_over_is_seen_though_no_file_changes(path):
    lateness = Lateness(TableReader(path))
    append(path, TASKS, [task(key(at(12, 1)), 1), task(key(at(12, 30)), 2)])
    assert [one["open"] for one in lateness.cells(at(12), at(13), at(12, 2))] == [1]
    assert [one["open"] for one in lateness.cells(at(12), at(13), at(12, 40))] == [1, 1]


def test_hours_whose_files_are_the_same_are_not_read_again(path):
    ran(path, {key(at(10)): 5 * MS})
    reader = TableReader(path)
    lateness = Lateness(reader)
    first = lateness.cells(at(10), at(11), NOW)
    reader.frame = None  # whoever reads now fails
    assert lateness.cells(at(10), at(11), NOW) == first


def test_of_an_hour_that_is_not_over_more_becomes_due_and_it_is_not_read_again(path):
    append(path, TASKS, [task(key(at(10, 1)), 1), task(key(at(10, 40)), 2)])
    readers = TableReader(path)
    lateness = Lateness(readers)
    assert [one["open"] for one in lateness.cells(BEGIN, END, at(10, 30))] == [1]
    reads, readers.frame = [], lambda *_: reads.append(1)
    assert [one["open"] for one in lateness.cells(BEGIN, END, at(10, 50))] == [1, 1]
    assert reads == []
