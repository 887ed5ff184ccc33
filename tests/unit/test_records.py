"""Raw records to typed rows, as the JVM will get them; no JVM needed."""

import pyarrow as pa
import pytest

from scylla_spark.clock import from_us
from scylla_spark.core.key import TaskKey, partition_of
from scylla_spark.core.wire import Command, RetryTerms, Rules, encode
from scylla_spark.schemas import TASKS
from scylla_spark.transforms import records

NOW = 4_000_000_000_123_456
KEY = TaskKey(NOW + 1, "lane", "u")
PLACE = partition_of("lane", 4)


def judged(values, marks=None):
    """Rows of kind → list of dicts, for the values of one partition of `tasks` from offset 0 on."""
    count = len(values)
    raw = pa.RecordBatch.from_pydict({
        "partition": pa.array([PLACE] * count, pa.int32()), "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([NOW] * count, pa.timestamp("us")), "key": pa.array([None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
    })  # fmt: skip
    found = {}
    for batch in records.judge_commands(Rules(4), marks or {})(iter([raw])):
        assert batch.schema == records.arrow_schema(records.COMMAND_ROWS)
        for row in batch.to_pylist():
            found.setdefault(row["kind"], []).append(row)
    return found


def test_a_task_has_all_its_columns_to_the_microsecond():
    command = Command(
        "enqueue", KEY, 0, "h", "mail", '{"a":1}', 7, 5_000, RetryTerms(None, 20, 30), NOW - 1, '{"trace":"x"}'
    )
    (row,) = judged([encode(command)])[records.ROW]
    assert {name: row[name] for name in TASKS.names} == {
        "partition_id": PLACE, "hour": KEY.hour, "scheduled_time": from_us(KEY.time_us), "ordering_id": "lane", "uniqueness_key": "u",
        "handler": "h", "queue": "mail", "priority": 7, "payload": '{"a":1}', "timeout_ms": 5_000,
        "retry": {"max_retries": None, "base_ms": 20, "cap_ms": 30}, "enqueued_at": from_us(NOW - 1), "extra": row["extra"],
        "data_offset": 0, "cancel_offset": None,
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


@pytest.mark.parametrize("values", [[], [b"junk"] * 3])
def test_what_stands_in_the_tables_already_is_skipped(values):
    assert judged(values, {PLACE: 3}) == {}


def test_many_tasks_come_in_several_batches(monkeypatch):
    monkeypatch.setattr(records, "_CHUNK", 2)
    values = [encode(Command("enqueue", KEY._replace(uniqueness_key=str(n)), n, enqueued_us=NOW)) for n in range(5)]
    assert [row["uniqueness_key"] for row in judged(values)[records.ROW]] == list("01234")
