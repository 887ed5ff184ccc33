"""Raw records to typed rows, as the JVM will get them; no JVM needed."""

import json

import pyarrow as pa
import pytest

from scylla_spark import failpoint
from scylla_spark.clock import from_us
from scylla_spark.core.records.command import Command, Rules, WireRetry, encode
from scylla_spark.core.records.fact import Fact, Fence, encode_facts, encode_fence
from scylla_spark.core.tables.progress import Mark, OpenHours
from scylla_spark.core.tasks.about import About
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import HOUR_US, TaskKey, partition_of
from scylla_spark.core.tasks.task import Failure
from scylla_spark.io.delta.rows import fact
from scylla_spark.schemas import TASKS
from scylla_spark.transforms import bounded_arrow, records
from scylla_spark.transforms.portions import CUT

NOW = 4_000_000_000_123_456
KEY = TaskKey(NOW + 1, "lane", "u")
PLACE = partition_of("lane", 4)


def raw_batch(values, places=None):
    """Values as Spark reads them, from offset 0 on."""
    count = len(values)
    return pa.RecordBatch.from_pydict({
        "partition": pa.array(places or [PLACE] * count, pa.int32()), "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([NOW] * count, pa.timestamp("us")), "key": pa.array([None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
    })  # fmt: skip


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def judged(values, marks=None, places=None, past=None, times=None):
    """Rows of kind → list of dicts, for the values of one partition of `tasks`."""
    found = {}
    raw = raw_batch(values, places)
    if times is not None:
        raw = raw.set_column(2, "timestamp", pa.array(times, pa.timestamp("us")))
    for batch in records.judge_commands(Rules(4), marks or {}, past)(iter([raw])):
        assert batch.schema == bounded_arrow.arrow_schema(records.COMMAND_ROWS)
        for row in batch.to_pylist():
            found.setdefault(row["kind"], []).append(row)
    return found


def test_a_task_has_all_its_columns_to_the_microsecond():
    command = Command(
        "enqueue", KEY, 0, "h", "mail", '{"a":1}', 7, 5_000, WireRetry(None, 20, 30), NOW - 1, '{"trace":"x"}',
        expires_ms=90_000, tags=("billing", "eu"), traceparent=TRACE, unique=True,
        about=About("Invoices", None, "ann"),
    )  # fmt: skip
    (row,) = judged([encode(command)])[records.ROW]
    assert {name: row[name] for name in TASKS.names} == {
        "partition_id": PLACE, "hour": KEY.hour, "scheduled_time": from_us(KEY.time_us), "ordering_id": "lane", "uniqueness_key": "u",
        "handler": "h", "queue": "mail", "priority": 7, "payload": '{"a":1}', "timeout_ms": 5_000,
        "retry": {"max_retries": None, "base_ms": 20, "cap_ms": 30}, "enqueued_at": from_us(NOW - 1), "extra": row["extra"],
        "data_offset": 0, "cancel_offset": None, "expires_ms": 90_000, "tags": ["billing", "eu"], "traceparent": TRACE,
        "first_offset": 0, "unique_open": True,
        "about": {"name": "Invoices", "description": None, "enqueued_by": "ann", "proof": None},
    }  # fmt: skip


def test_a_cancel_alone_leaves_the_data_empty():
    (row,) = judged([encode(Command("cancel", KEY, 0, enqueued_us=NOW))])[records.ROW]
    data = {name: row[name] for name in TASKS.names[5:]}
    assert data == dict.fromkeys(data) | {"cancel_offset": 0}


def test_one_row_per_key_one_per_refusal_and_one_for_the_end():
    kinds = ("enqueue", "cancel", "enqueue")
    values = [encode(Command(kind, KEY, n, enqueued_us=NOW, payload=f'{{"v":{n}}}')) for n, kind in enumerate(kinds)]
    found = judged([*values, b"junk"])
    assert [(row["payload"], row["data_offset"], row["cancel_offset"]) for row in found[records.ROW]] == [
        ('{"v":2}', 2, 1)
    ]
    assert [(row["offset"], row["reason"], row["value"]) for row in found[records.REJECT]] == [(3, "not_json", b"junk")]
    assert [(row["next_offset"], row["appended_at"]) for row in found[records.END]] == [(4, from_us(NOW))]


def _cancels(*hours_ago):
    keys = [TaskKey(NOW - ago * HOUR_US, "lane", str(ago)) for ago in hours_ago]
    return [encode(Command("cancel", key, 0, enqueued_us=NOW)) for key in keys]


def test_cancels_of_more_past_hours_than_a_portion_may_touch_are_left_for_the_next():
    now, past = encode(Command("cancel", KEY, 0, enqueued_us=NOW)), records.PastHours(3)
    values = [*_cancels(2, 3, 2, 4), now, *_cancels(3, 5), now, b"junk"]
    found = judged(values, past=past)
    assert [row["uniqueness_key"] for row in found[records.ROW]] == ["2", "3", "4", "u"]
    assert [(row["partition_id"], row["next_offset"]) for row in found[CUT]] == [(PLACE, 6)]
    assert [row["next_offset"] for row in found[records.END]] == [6]
    rest = judged(values, {PLACE: 6}, past=past)
    assert [row["uniqueness_key"] for row in rest[records.ROW]] == ["5", "u"]
    assert (CUT in rest, len(rest[records.REJECT])) == (False, 1)


def test_a_cancel_of_an_hour_that_is_older_than_the_retention_and_holds_no_open_task_is_refused():
    days = Rules(4).retention_ms // 3_600_000
    old, kept = days + 5, days + 6
    hours = OpenHours((NOW // HOUR_US), (NOW // HOUR_US - kept,))
    found = judged(_cancels(old, kept, days - 1), past=records.PastHours(open={PLACE: hours}))
    assert [row["uniqueness_key"] for row in found[records.ROW]] == [str(kept), str(days - 1)]
    assert [(row["offset"], row["reason"]) for row in found[records.REJECT]] == [(0, "too_old")]
    unknown = judged(_cancels(old), past=records.PastHours(open={PLACE + 1: hours}))
    assert records.REJECT not in unknown


def test_a_cancel_of_an_old_task_that_the_same_portion_enqueues_is_no_cancel_of_nothing():
    then = NOW - Rules(4).retention_ms * 1000 - 5 * HOUR_US  # the tables were not written since
    key = TaskKey(then, "lane", "u")
    values = [encode(Command(kind, key, 0, enqueued_us=then)) for kind in ("enqueue", "cancel")]
    past = records.PastHours(open={PLACE: OpenHours(NOW // HOUR_US)})
    (row,) = judged(values, past=past, times=[then, NOW])[records.ROW]
    assert (row["data_offset"], row["cancel_offset"]) == (0, 1)


@pytest.mark.parametrize("values", [[], [b"junk"] * 3])
def test_what_stands_in_the_tables_already_is_skipped(values):
    assert judged(values, {PLACE: 3}) == {}


def test_many_tasks_come_in_several_batches(monkeypatch):
    monkeypatch.setattr(bounded_arrow, "MAX_ROWS", 2)
    values = [encode(Command("enqueue", KEY._replace(uniqueness_key=str(n)), n, enqueued_us=NOW)) for n in range(5)]
    assert [row["uniqueness_key"] for row in judged(values)[records.ROW]] == list("01234")


def test_batches_are_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(bounded_arrow, "MAX_BYTES", 10_000)
    payload = '{"x":"%s"}' % ("é" * 900)
    values = [
        encode(Command("enqueue", KEY._replace(uniqueness_key=str(n)), n, payload=payload, enqueued_us=NOW))
        for n in range(20)
    ]
    values += [b"junk" * 800] * 20
    batches = list(records.judge_commands(Rules(4), {})(iter([raw_batch(values)])))
    assert sum(batch.num_rows for batch in batches) == 41
    assert max(batch.get_total_buffer_size() for batch in batches) < 15_000
    assert len(batches) > 7


def test_a_row_larger_than_a_batch_goes_alone(monkeypatch):
    monkeypatch.setattr(bounded_arrow, "MAX_BYTES", 1_000)
    payload = '{"x":"%s"}' % ("x" * 5_000)
    found = judged([encode(Command("enqueue", KEY, 0, payload=payload, enqueued_us=NOW)), b"junk" * 1_000])
    assert found[records.ROW][0]["payload"] == payload
    assert found[records.REJECT][0]["value_bytes"] == 4_000


def test_tasks_of_several_partitions_in_one_batch_keep_their_own():
    lanes = {partition_of(name, 4): name for name in "abcdefgh"}
    values = {place: encode(Command("enqueue", TaskKey(NOW, lane, "u"), 0)) for place, lane in lanes.items()}
    found = judged([*values.values()], places=list(values))
    assert {row["partition_id"]: row["ordering_id"] for row in found[records.ROW]} == lanes
    assert sorted(row["partition_id"] for row in found[records.END]) == sorted(lanes)


def test_a_defect_while_a_record_is_judged_sets_that_record_aside(monkeypatch):
    monkeypatch.setattr(failpoint, "armed", failpoint.parse("judge.command:raise:2"))
    values = [encode(Command("enqueue", KEY._replace(uniqueness_key=str(n)), n, enqueued_us=NOW)) for n in range(3)]
    found = judged(values)
    assert [row["uniqueness_key"] for row in found[records.ROW]] == ["0", "2"]
    ((refused,), (end,)) = found[records.REJECT], found[records.END]
    assert (refused["offset"], refused["reason"], refused["value"]) == (1, "defect", values[1])
    assert "InjectedFault" in refused["detail"]
    assert end["next_offset"] == 3


def test_a_defect_while_a_task_is_converted_sets_that_task_aside(monkeypatch):
    def planted(data, convert=records.newest_cells):
        assert data.payload != '{"v":3}', "planted"
        return convert(data)

    monkeypatch.setattr(records, "newest_cells", planted)
    keys = [KEY._replace(uniqueness_key=str(n)) for n in range(6)]
    values = [encode(Command("enqueue", key, n, payload=f'{{"v":{n}}}')) for n, key in enumerate(keys)]
    found = judged(values)
    assert [row["uniqueness_key"] for row in found[records.ROW]] == list("01245")
    (refused,) = found[records.REJECT]
    assert (refused["offset"], refused["reason"], refused["partition_id"]) == (3, "defect", PLACE)
    assert json.loads(refused["value"])["uniquenessKey"] == "3"


# -- facts --------------------------------------------------------------------------------------------------------------

FENCE = Fence(1, "n")
DONE = Fact(KEY, 1, "succeeded", NOW, NOW + 1, NOW, 1)


def facts_judged(values, marks=None, **options):
    """Rows of kind → list of dicts, for the values of one partition of `outcomes` from offset 0 on."""
    found = {}
    for batch in records.judge_facts(marks or {}, **options)(iter([raw_batch(values)])):
        assert batch.schema == bounded_arrow.arrow_schema(records.FACT_ROWS)
        for row in batch.to_pylist():
            found.setdefault(row["kind"], []).append(row)
    return found


def group(*facts, fence=FENCE):
    (value,) = encode_facts(fence, facts)
    return value


def newer(fence=FENCE):
    return json.dumps({"v": 5, "kind": "facts", "epoch": fence.epoch, "nonce": fence.nonce, "facts": "?"}).encode()


def test_facts_that_count_become_rows_with_all_their_columns():
    retried = Fact(KEY, 1, "failed", NOW, NOW + 1, NOW, 1, NOW + 9, None, Failure("E", "m", "s"))
    found = facts_judged([encode_fence(FENCE, "", NOW), group(retried, Fact(KEY, 1, "too_late")), group(DONE)])
    (attempt,), (completion,), (end,) = found[records.ATTEMPT], found[records.COMPLETION], found[records.END]
    assert (attempt["outcome"], attempt["next_at"], attempt["error_class"], attempt["fact_offset"]) == (
        "failed",
        from_us(NOW + 9),
        "E",
        1,
    )
    assert (completion["outcome"], completion["used"], completion["epoch"], completion["fact_offset"]) == (
        "succeeded",
        1,
        1,
        2,
    )
    assert (end["next_offset"], end["epoch"], end["nonce"], end["resigned"]) == (3, 1, "n", False)


def test_the_level_of_isolation_is_a_column_of_its_own_and_no_part_of_what_was_there_before():
    note = WorkNote(progress=0.5, isolation="sandbox")
    ended, waits = (
        Fact(KEY, 1, "succeeded", NOW, NOW, work=note),
        Fact(KEY, 1, "failed", NOW, NOW, next_us=NOW, work=note),
    )
    found = facts_judged([encode_fence(FENCE, "", NOW), group(waits, ended)])
    for kind in (records.ATTEMPT, records.COMPLETION):
        (row,) = found[kind]
        assert (row["isolation"], row["work"]["progress"]) == ("sandbox", 0.5)
        assert "isolation" not in row["work"]


def test_what_an_attempt_says_in_words_is_a_column_of_its_own_that_readers_of_older_tables_do_without():
    note = WorkNote(progress=0.5, progress_note="page 3 of 7")
    end = Fact(KEY, 1, "succeeded", NOW, NOW, work=note)
    (row,) = facts_judged([encode_fence(FENCE, "", NOW), group(end)])[records.COMPLETION]
    assert (row["progress_note"], row["work"]["progress"]) == ("page 3 of 7", 0.5)
    assert "progress_note" not in row["work"]
    read = fact(row | {"scheduled_time": KEY.time_us})
    assert read.work == note
    older = {name: value for name, value in row.items() if name != "progress_note"}
    assert fact(older | {"scheduled_time": KEY.time_us}).work == WorkNote(progress=0.5)


def test_a_record_of_outcomes_that_cannot_be_read_is_rejected_and_the_rest_goes_on():
    values = [
        encode_fence(FENCE, "", NOW),
        b"junk",
        None,
        group(DONE).replace(b'"used":[1]', b'"used":[-1]'),
        group(DONE),
    ]
    found = facts_judged(values)
    assert [(row["offset"], row["reason"], row["value"]) for row in found[records.REJECT]] == [
        (1, "not_json", b"junk"),
        (2, "empty", None),
        (3, "wrong_value", values[3]),
    ]
    assert all(row["detail"] and row["appended_at"] == from_us(NOW) for row in found[records.REJECT])
    assert len(found[records.COMPLETION]) == 1
    assert found[records.END][0]["next_offset"] == 5


def test_a_newer_record_that_counts_stops_its_partition_before_it():
    fence = encode_fence(FENCE, "", NOW)
    found = facts_judged([fence, group(DONE), newer(), group(DONE._replace(attempt=2)), b"junk"])
    assert len(found[records.COMPLETION]) == 1
    assert records.REJECT not in found
    (stop,), (end,) = found[records.NEWER], found[records.END]
    assert (stop["partition_id"], stop["offset"]) == (PLACE, 2)
    assert "version 5" in stop["detail"]
    assert (end["next_offset"], end["epoch"]) == (2, 1)


def test_a_newer_record_right_behind_the_tables_leaves_them_where_they_are():
    mark = Mark(outcomes_offset=2, fence=FENCE, resigned=False)
    found = facts_judged([b"", b"", newer(), group(DONE)], {PLACE: mark})
    assert set(found) == {records.NEWER, records.END}
    assert found[records.END][0]["next_offset"] == 2


def test_a_newer_record_of_an_owner_that_was_fenced_off_is_passed():
    found = facts_judged([encode_fence(FENCE, "", NOW), newer(Fence(1, "other")), group(DONE)])
    assert set(found) == {records.COMPLETION, records.END}
    assert found[records.END][0]["next_offset"] == 3


def test_a_newer_fence_is_a_fence():
    fence = json.dumps({"v": 5, "kind": "fence", "epoch": 2, "nonce": "m", "where": []}).encode()
    values = [encode_fence(FENCE, "", NOW), fence, group(DONE), group(DONE, fence=Fence(2, "m"))]
    found = facts_judged(values)
    assert [row["fact_offset"] for row in found[records.COMPLETION]] == [3]


def test_a_fact_of_a_lane_that_belongs_elsewhere_is_rejected():
    stray = next(name for name in "abcdefgh" if partition_of(name, 4) != PLACE)
    values = [encode_fence(FENCE, "", NOW), group(DONE._replace(key=KEY._replace(ordering_id=stray)), DONE)]
    found = facts_judged(values, partitions=4)
    assert [row["ordering_id"] for row in found[records.COMPLETION]] == ["lane"]
    assert [(row["offset"], row["reason"]) for row in found[records.REJECT]] == [(1, "wrong_partition")]


def test_a_defect_while_a_fact_is_read_or_converted_sets_its_record_aside(monkeypatch):
    def planted(record, fence, fact, convert=records._fact_row):
        row = convert(record, fence, fact)
        return row._replace(cells=row.cells | {"used": "planted"}) if fact.attempt == 3 else row

    monkeypatch.setattr(failpoint, "armed", failpoint.parse("judge.fact:raise:2"))
    monkeypatch.setattr(records, "_fact_row", planted)
    values = [encode_fence(FENCE, "", NOW), *(group(DONE._replace(attempt=n)) for n in range(1, 6))]
    found = facts_judged(values)
    assert [row["attempt"] for row in found[records.COMPLETION]] == [2, 4, 5]
    assert [(row["offset"], row["reason"], row["value"]) for row in found[records.REJECT]] == [
        (1, "defect", values[1]),
        (3, "defect", values[3]),
    ]
    assert found[records.END][0]["next_offset"] == 6
