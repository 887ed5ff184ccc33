"""Near and far: what is due later than `folded_until` waits in `deferred`, is folded in time, and is seen by every reader."""

import pytest

from scylla_spark.client.tasks.frames import status
from scylla_spark.clock import now_us
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.filter import Range, TaskFilter, read_filter
from scylla_spark.core.tasks.key import HOUR_US, partition_of
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_pages import TaskPages
from scylla_spark.schemas import DEFERRED, TASKS
from scylla_spark.services.ingest.ingest import Ingest
from tests.spark.batches import HOUR, NOW, PARTITIONS, TOPIC_IDS, key_of, raw, rows, task

FAR = 10 * HOUR  # seconds from NOW
LATER = NOW + (FAR - HOUR) * 1_000_000  # an hour before FAR: its slices are due


def fold_all(ingest, now=LATER):
    while ingest.turn(now):
        pass


def batch(ingest, number, *records):
    ingest.write_tasks(raw(ingest.spark, records), number)


def between(ingest, after_us=None, until_us=None):
    edge = ingest.tables.folded_until_us()
    frame = ingest.tables.tasks_between(None, after_us, until_us, edge)
    return sorted(
        tuple(row) for row in frame.select("uniqueness_key", "payload", "data_offset", "cancel_offset").collect()
    )


def test_only_what_is_near_is_merged_and_the_rest_is_appended(ingest):
    batch(
        ingest, 0, task("a", "near", 0), task("a", "far", 1, due=FAR), task("a", "far", 2, due=FAR, payload='{"v":2}')
    )
    assert rows(ingest, TASKS, "uniqueness_key") == [("near",)]
    assert rows(ingest, DEFERRED, "uniqueness_key", "payload", "data_offset") == [("far", '{"v":2}', 2)]
    assert ingest.tables.partition_marks()[partition_of("a", PARTITIONS)].tasks_offset == 3
    assert [row[0] for row in between(ingest)] == ["far", "near"]


def test_folded_until_keeps_ahead_of_the_clock_and_never_falls(ingest):
    assert NOW + 2 * HOUR_US <= ingest.progress.folded_until_us < now_us() + 3 * HOUR_US  # opened between the two
    fold_all(ingest)
    assert LATER + 2 * HOUR_US <= ingest.progress.folded_until_us < LATER + 3 * HOUR_US
    assert not ingest.turn(NOW)
    assert ingest.tables.folded_until_us() == ingest.progress.folded_until_us


def test_chores_have_their_turn_also_where_what_is_deferred_cannot_be_folded(ingest, monkeypatch):
    def broken(now):
        raise OSError("a file of deferred is gone")

    done = []
    monkeypatch.setattr(ingest.promotion, "turn", broken)
    monkeypatch.setattr(ingest.maintenance, "turn", done.append)
    for now in (LATER, LATER + 1):
        with pytest.raises(OSError, match="is gone"):
            ingest.turn(now)
    assert done == [LATER, LATER + 1]


def test_a_slice_is_folded_by_key_and_offset_once_however_often_it_is_repeated(ingest, monkeypatch):
    batch(
        ingest, 0, task("a", "1", 0, due=FAR), task("a", "2", 1, due=FAR, kind="cancel"), task("a", "4", 2, due=2 * FAR)
    )
    batch(
        ingest,
        1,
        task("a", "1", 3, due=FAR, payload='{"v":3}'),
        task("a", "2", 4, due=FAR),
        task("b", "3", 5, due=FAR + HOUR),
    )
    expected = [("1", '{"v":3}', 3, None), ("2", "{}", 4, 1), ("3", "{}", 5, None), ("4", "{}", 2, None)]
    assert between(ingest) == expected

    def crash(*_):
        raise RuntimeError("killed")

    before = ingest.progress.folded_until_us
    with monkeypatch.context() as patch:
        patch.setattr(ingest.tables, "write_marks", crash)
        with pytest.raises(RuntimeError, match="killed"):
            fold_all(ingest)
    again = Ingest(ingest.spark, ingest.settings)
    again.open_tables(TOPIC_IDS)
    assert again.progress.folded_until_us == before
    fold_all(again)
    assert rows(again, TASKS, "uniqueness_key", "payload", "data_offset", "cancel_offset") == expected[:3]
    assert between(again) == expected


def test_readers_with_an_older_progress_see_the_same(ingest):
    batch(ingest, 0, task("a", "1", 0, due=FAR), task("a", "2", 1, due=FAR + HOUR, kind="cancel"), task("a", "3", 2))
    old, expected = ingest.tables.folded_until_us(), between(ingest)
    fold_all(ingest)
    frame = ingest.tables.tasks_between(None, None, None, old)
    names = ("uniqueness_key", "payload", "data_offset", "cancel_offset")
    assert sorted(tuple(row) for row in frame.select(*names).collect()) == expected == between(ingest)


def test_a_record_for_a_time_that_is_folded_already_is_merged(ingest):
    batch(ingest, 0, task("a", "1", 0, due=FAR))
    fold_all(ingest)
    batch(ingest, 1, task("a", "1", 1, due=FAR, kind="cancel"), task("a", "2", 2, due=FAR))
    assert rows(ingest, DEFERRED, "uniqueness_key") == [("1",)]
    assert rows(ingest, TASKS, "uniqueness_key", "cancel_offset") == [("1", 1), ("2", None)]
    assert [row[0] for row in between(ingest)] == ["1", "2"]


def test_a_replay_after_folded_until_has_moved_loses_and_doubles_nothing(ingest):
    records = [
        task("a", "1", 0, due=FAR),
        task("a", "2", 1, due=2 * FAR),
        task("a", "2", 2, due=2 * FAR, kind="cancel"),
    ]
    batch(ingest, 0, *records)
    fold_all(ingest)
    expected = between(ingest)
    places = {place: mark._replace(tasks_offset=0) for place, mark in ingest.tables.marks().items()}
    ingest.tables.write_marks(places)  # as if the first time had died before its progress
    again = Ingest(ingest.spark, ingest.settings)
    again.open_tables(TOPIC_IDS)
    batch(again, 0, *records)
    assert between(again) == expected == [("1", "{}", 0, None), ("2", "{}", 1, 2)]


def test_a_slice_ends_after_an_hour_when_there_are_many_rows(ingest):
    small = ingest.settings.model_copy(update={"ingest": ingest.settings.ingest.model_copy(update={"max_records": 2})})
    service = Ingest(ingest.spark, small)
    service.open_tables(TOPIC_IDS)
    start = service.progress.folded_until_us
    hours = [(start - NOW) // 1_000_000 + HOUR * hour + 1 for hour in range(3)]
    batch(service, 0, *(task("a", str(n), n, due=hours[n // 2]) for n in range(6)))
    found = []
    while service.turn(start + HOUR_US):
        found.append(
            (len(rows(service, TASKS, "uniqueness_key")), (service.progress.folded_until_us - start) // HOUR_US)
        )
    assert list(dict.fromkeys(found)) == [(2, 1), (4, 2), (6, 3)]  # further turns do other chores


def test_a_window_takes_its_end_and_leaves_its_start_also_among_deferred(ingest):
    batch(ingest, 0, *(task("a", str(n), n, due=FAR + n) for n in range(4)), task("a", "near", 9))
    at = [NOW + (FAR + n) * 1_000_000 for n in range(4)]
    assert [row[0] for row in between(ingest, at[0], at[2])] == ["1", "2"]
    assert [row[0] for row in between(ingest, None, at[0])] == ["0", "near"]
    edge = ingest.tables.folded_until_us()
    other = partition_of("a", PARTITIONS) + 1
    assert ingest.tables.tasks_between([other % PARTITIONS], None, None, edge).count() == 0


@pytest.mark.promise
def test_every_reader_sees_deferred_tasks_with_what_came_after_them(ingest):
    first, second, near = key_of("a", "1", FAR), key_of("a", "2", FAR), key_of("a", "near")
    batch(ingest, 0, task("a", "1", 0, due=FAR), task("a", "2", 1, due=FAR), task("a", "near", 2))
    batch(
        ingest,
        1,
        task("a", "1", 3, due=FAR, payload='{"v":3}', queue="mail"),
        task("a", "2", 4, due=FAR, kind="cancel"),
    )
    for folded in (False, True):
        if folded:
            fold_all(ingest)
        readers = TableReader(ingest.settings.tables_path)
        assert readers.task(first).command.payload == '{"v":3}'
        assert [readers.task(key).cancelled for key in (first, second, near)] == [False, True, False]
        assert readers.task(first._replace(uniqueness_key="3")) is None
        lane = readers.lane(partition_of("a", PARTITIONS), "a", None, 10)
        assert [(row.command.key, row.cancelled) for row in lane] == [(near, False), (first, False), (second, True)]
        assert [row.command.key for row in readers.lane(partition_of("a", PARTITIONS), "a", None, 2)] == [near, first]
        assert len(readers.lane(partition_of("a", PARTITIONS), "a", None, 10, NOW + HOUR_US)) == 1
        pages = TaskPages(readers)
        listed = pages.page(read_filter("state:scheduled", NOW), 10, now=NOW)
        assert [(row["uniqueness_key"], row["queue"]) for row in listed] == [
            ("near", "default"),
            ("1", "mail"),
            ("2", "default"),
        ]
        assert [row["uniqueness_key"] for row in pages.page(read_filter("queue:mail", NOW), 10, now=NOW)] == ["1"]
        window = TaskFilter((Range("scheduled", first.time_us, first.time_us + 1),))
        assert [row["uniqueness_key"] for row in pages.page(window, 10, now=NOW, after=first)] == ["2"]
        view = status(ingest.spark, ingest.settings.tables_path, NOW, history=False)
        assert sorted((row.uniqueness_key, row.queue, row.cancel_requested) for row in view.collect()) == [
            ("1", "mail", False), ("2", "default", True), ("near", "default", False)
        ]  # fmt: skip


def test_progress_says_the_same_to_spark_and_without(ingest):
    batch(ingest, 0, task("a", "1", 0, due=FAR))
    ingest.progress.closed(7, {0: [3, 5]})
    marks = ingest.tables.marks()
    assert marks == TableReader(ingest.settings.tables_path).marks()
    assert (marks["tasks", 0].closed_hour, marks["tasks", 0].open_hours) == (7, (3, 5))
    place = partition_of("a", PARTITIONS)
    assert marks["tasks", place].appended_us == NOW
    assert ingest.tables.partition_marks()[place]._replace(closed_hour=0, open_hours=()) == Mark(
        1, folded_until_us=ingest.progress.folded_until_us, appended_us=NOW
    )
