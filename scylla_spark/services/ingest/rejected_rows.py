"""Rows of `rejected` for records that were set aside without being judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from scylla_spark.clock import from_us, now_us
from scylla_spark.io.delta.spark_tables import Tables
from scylla_spark.schemas import REJECTED
from scylla_spark.services.ingest.micro_batch import Refusal, same_append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEPT_KEY_BYTES: Final = 1024
_KEPT_VALUE_BYTES: Final = 1024 * 1024
_KEPT_DETAIL: Final = 4_000


def append_refusal(tables: Tables, topic: str, refusal: Refusal, unread: DataFrame | None) -> None:
    """Appends one row per offset; a repeat is skipped.

    Args:
        tables: of the deployment.
        topic: of the records.
        refusal: which, and why.
        unread: the records, with the columns of Spark's Kafka source; None: they must not be read, and keep no bytes.
    """
    rows = _rows_of(unread) if unread is not None else _rows_without(tables, refusal)
    frame = rows.withColumns({
        "topic": F.lit(topic),
        "partition_id": F.lit(refusal.partition).cast("int"),
        "day": F.to_date("appended_at"),
        "reason": F.lit(refusal.reason),
        "detail": F.lit(refusal.detail[-_KEPT_DETAIL:]),
    })  # fmt: skip
    tables.append(frame, REJECTED, same_append(topic, *refusal[:3]))


def _rows_of(unread: DataFrame) -> DataFrame:
    return unread.select(
        F.col("offset"),
        F.col("timestamp").alias("appended_at"),
        F.substring("key", 1, _KEPT_KEY_BYTES).alias("key"),
        F.substring("value", 1, _KEPT_VALUE_BYTES).alias("value"),
        F.coalesce(F.octet_length("value"), F.lit(0)).cast("bigint").alias("value_bytes"),
    )


def _rows_without(tables: Tables, refusal: Refusal) -> DataFrame:
    nothing = F.lit(None)
    return tables.spark.range(refusal.offsets.begin, refusal.offsets.end).select(
        F.col("id").alias("offset"),
        F.lit(from_us(now_us())).alias(
            "appended_at"
        ),  # when it was refused: its own time is inside what is not unpacked
        nothing.cast("binary").alias("key"),
        nothing.cast("binary").alias("value"),
        nothing.cast("bigint").alias("value_bytes"),
    )
