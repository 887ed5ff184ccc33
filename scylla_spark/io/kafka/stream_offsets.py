"""Which offsets a micro-batch of a streaming query covers, and how they are read once more.

Spark hands a frame to `foreachBatch` and does not say which offsets it was made for. The query's checkpoint does: its log of
offsets is written before the batch begins, and is a format that Spark keeps stable. This module is the only one that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Range(NamedTuple):
    """Offsets of one partition: the first, and the one after the last."""

    begin: int
    end: int


class Batch(NamedTuple):
    """The records of one micro-batch.

    Attributes:
        frame: all of them, as Spark handed them over.
        planned: partition → the offsets that Spark planned to read.
        again: reads ranges once more; its second argument is the most records that a Kafka client may unpack at a time.
    """

    frame: DataFrame
    planned: Mapping[int, Range]
    again: Callable[[Mapping[int, Range], int | None], DataFrame]


def offsets_in(text: str, topic: str) -> dict[int, int]:
    """Partition → offset, from a file of a checkpoint's `offsets` or `sources` folder; the last line is the only source's."""
    lines = [line for line in text.strip("\0\n ").splitlines() if line.strip()]
    return {int(number): offset for number, offset in json.loads(lines[-1])[topic].items()}


def planned(spark: SparkSession, checkpoint: str, batch_id: int, topic: str) -> dict[int, Range]:
    """Returns what a running micro-batch covers: partition → offsets.

    Args:
        spark: a classic session.
        checkpoint: folder or URI of the query's checkpoint.
        batch_id: number of the batch that is being written.
        topic: the only one that the query reads.
    """
    before = f"offsets/{batch_id - 1}" if batch_id else "sources/0/0"
    begins = offsets_in(_text(spark, f"{checkpoint}/{before}"), topic)
    ends = offsets_in(_text(spark, f"{checkpoint}/offsets/{batch_id}"), topic)
    return {number: Range(begins.get(number, 0), end) for number, end in ends.items()}


def _text(spark: SparkSession, path: str) -> str:
    """A small file on whatever file system Spark keeps its checkpoints."""
    jvm: Any = spark._jvm  # noqa: SLF001 - Spark has no public way to read a file of its checkpoint as it is
    place = jvm.org.apache.hadoop.fs.Path(path)
    stream = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).open(place)  # noqa: SLF001
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def read_again(
    spark: SparkSession, options: Mapping[str, str], topic: str, ranges: Mapping[int, Range], unpacked: int | None
) -> DataFrame:
    """Records of ranges of a topic, lazily, with the columns of Spark's Kafka source.

    Args:
        spark: session.
        options: how to reach the brokers.
        topic: name.
        ranges: which offsets; a partition that is not named is not read.
        unpacked: most records that a Kafka client unpacks at a time; None: as many as it likes.
    """
    wanted = {number: wide for number, wide in ranges.items() if wide.begin < wide.end}
    reader = spark.read.format("kafka").options(**options)
    if unpacked is not None:
        reader = reader.option("kafka.max.poll.records", str(unpacked))
    return reader.options(
        assign=json.dumps({topic: sorted(wanted)}),
        startingOffsets=json.dumps({topic: {str(number): wide.begin for number, wide in wanted.items()}}),
        endingOffsets=json.dumps({topic: {str(number): wide.end for number, wide in wanted.items()}}),
        failOnDataLoss="true",
        **{"kafka.fetch.max.wait.ms": "10"},
    ).load()


def static_batch(frame: DataFrame) -> Batch:
    """A batch of a frame that is no stream's: what it covers is what it holds."""
    found = frame.groupBy("partition").agg(F.min("offset").alias("first"), F.max("offset").alias("last")).collect()

    def again(ranges: Mapping[int, Range], _unpacked: int | None) -> DataFrame:
        inside = F.lit(False)
        for number, wide in ranges.items():
            inside |= (F.col("partition") == number) & (F.col("offset") >= wide.begin) & (F.col("offset") < wide.end)
        return frame.where(inside)

    return Batch(frame, {row["partition"]: Range(row["first"], row["last"] + 1) for row in found}, again)
