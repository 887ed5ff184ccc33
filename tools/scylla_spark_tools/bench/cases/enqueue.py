"""`enqueue`: rows of a DataFrame through `Scheduler.enqueue_df`, all checks on, until Kafka has acknowledged every one.

Broker and one Spark session run, as at a client; no ingest or dispatch shares the cores. Floor: Spark's Kafka sink, as it is by
default, writes the same bytes, built beforehand, in the same session. Two stricter floors: the sink with the batches that
`enqueue_df` uses, and with its compression too. All read their rows from memory and take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.tasks.frames import SINK
from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.records.command import Rules
from scylla_spark.processes.deployment import Deployment
from scylla_spark.transforms.commands_from_frames import Columns, enqueue_records
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import Options, ends, place, say
from scylla_spark_tools.bench.floor_measurements import SINK_TOPIC, make_topic, sink
from scylla_spark_tools.bench.handlers import NOOP
from scylla_spark_tools.bench.load import enqueue, tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS: Final = 3
_BATCHED: Final = {name: value for name, value in SINK.items() if name != "kafka.compression.type"}
_HOUR_US: Final = 3_600_000_000


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000,000 rows over 1,000 lanes, three times."""
    count, lanes = options.tasks or 1_000_000, options.lanes or 1_000
    warm = options.warm if options.warm is not None else count // 10
    with place(options) as home, Scheduler(home.settings, spark=home.spark) as scheduler:
        assert home.spark is not None
        make_topic(home.settings, SINK_TOPIC, home.settings.partitions)
        records = _records(home, scheduler.connection.rules, count, lanes)
        _warm_up(home, scheduler, records, warm, lanes)
        before = sum(ends(home.settings).values())
        ours, bare, batched, packed = [], [], [], []
        for number in range(ROUNDS):
            say(f"round {number + 1}: enqueue_df, then the sinks")
            ours.append(_enqueue(home, scheduler, count, lanes, number))
            bare.append(sink(records, home.settings))
            batched.append(sink(records, home.settings, _BATCHED))
            packed.append(sink(records, home.settings, SINK))
        arrived = sum(ends(home.settings).values()) - before
    surplus = arrived - ROUNDS * count
    return report.rate(
        "enqueue", ROUNDS * count, sum(ours), ROUNDS * count / sum(bare), violations=max(surplus, 0), lost=max(-surplus, 0),
        rounds=[round(count / seconds) for seconds in ours], floor_rounds=[round(count / seconds) for seconds in bare],
        floor_batched_per_s=round(ROUNDS * count / sum(batched)), floor_compressed_per_s=round(ROUNDS * count / sum(packed)),
    )  # fmt: skip


def _records(home: Deployment, rules: Rules, count: int, lanes: int) -> DataFrame:
    """The same rows as `enqueue_df` sends them, in memory."""
    assert home.spark is not None
    frame = tasks(home.spark, count, lanes, now_us() + _HOUR_US, 1_000)
    columns = Columns(NOOP, "ordering_id", "uniqueness_key", "scheduled_time", "payload")
    records = enqueue_records(frame, columns, rules, now_us()).select("key", "value").persist()
    records.count()
    return records


def _warm_up(home: Deployment, scheduler: Scheduler, records: DataFrame, rows: int, lanes: int) -> None:
    if rows:
        say(f"warming up with {rows} rows")
        _enqueue(home, scheduler, rows, lanes, -1)
        sink(records.limit(rows), home.settings)


def _enqueue(home: Deployment, scheduler: Scheduler, count: int, lanes: int, number: int) -> float:
    assert home.spark is not None
    frame = tasks(home.spark, count, lanes, now_us() + (2 + number) * _HOUR_US, 1_000)
    frame.persist().count()
    begun = boot_us()
    enqueue(scheduler, frame)
    seconds = (boot_us() - begun) / 1e6
    frame.unpersist()
    return seconds
