"""Batches of both topics as static frames, and what the tables hold afterwards."""

from __future__ import annotations

from deltalake import DeltaTable

from scylla_spark.clock import from_us, now_us
from scylla_spark.core.records.command import Command, encode
from scylla_spark.core.records.fact import Fact, encode_facts
from scylla_spark.core.tasks.key import HOUR_US, TaskKey, partition_of

RAW = "partition int, offset long, timestamp timestamp, key binary, value binary"
TOPIC_IDS = {"tasks": "t", "outcomes": "o"}
PARTITIONS = 4
NOW = now_us()
HOUR = HOUR_US // 1_000_000


def raw(spark, records, appended=NOW):
    """Records as they come from a topic: (partition, offset, key, value), appended at one time or each at its own."""
    times = appended if isinstance(appended, list) else [appended] * len(records)
    rows = [
        (partition, offset, from_us(time), key, value)
        for (partition, offset, key, value), time in zip(records, times, strict=True)
    ]
    return spark.createDataFrame(rows, RAW).coalesce(1)


def lane_of(partition):
    """A lane that belongs to a partition."""
    return next(f"l{number}" for number in range(99) if partition_of(f"l{number}", PARTITIONS) == partition)


def key_of(lane, unique, due=1):
    """A key due so many seconds from NOW."""
    return TaskKey(NOW + due * 1_000_000, lane, unique)


def task(lane, unique, offset, *, due=1, kind="enqueue", stamp=NOW, **fields):
    """A record of `tasks`, due so many seconds from NOW."""
    value = encode(Command(kind, key_of(lane, unique, due), offset, enqueued_us=stamp, **fields))
    return partition_of(lane, PARTITIONS), offset, lane.encode(), value


def facts(fence, *facts):
    """The value of a record of `outcomes`."""
    (value,) = encode_facts(fence, facts)
    return value


def done(key, outcome="succeeded"):
    """The completion of a task at its first attempt."""
    return Fact(key, 1, outcome, key.time_us, key.time_us, key.time_us, 1)


def rows(ingest, table, *columns):
    """What a table holds, sorted; read as all but ingest read it, which costs a tenth of a look through Spark."""
    found = DeltaTable(f"{ingest.tables.path}/{table.name}").to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)
