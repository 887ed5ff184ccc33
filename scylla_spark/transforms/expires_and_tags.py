"""When tasks expire, and their tags, as columns of frames: judged by the very code that will read the record.

Both are texts of a free form (durations, printable characters), whose rules Spark cannot express.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from scylla_spark.core.tasks.tags import MOST_TAGS, is_tag
from scylla_spark.duration import duration_ms, duration_text
from scylla_spark.errors import ArgumentError


def expires_column(expires: Column, kind: T.DataType, *, checked: bool) -> Column:
    """Text of the duration as it travels; null for none.

    Args:
        expires: an interval, whole seconds, or the text of a duration.
        kind: its type.
        checked: whether what no reader would accept becomes an empty text; else it travels as it is, and is refused there.
    """
    text = _interval_text(expires) if isinstance(kind, T.DayTimeIntervalType) else expires.cast("string")
    if isinstance(kind, T.IntegralType):
        text = F.concat(text, F.lit("s"))
    if not checked:
        return text
    readable = F.when(text.isNull() | F.is_valid_utf8(text), text).otherwise(F.lit(""))
    judged: Column = arrow_udf(_judge_durations, T.StringType())(readable)  # type: ignore[call-overload]
    return judged


def tags_column(tags: Column) -> Column:
    """The tags as they travel, each once, in their order; null for none."""
    return F.when(F.size(tags) > 0, F.array_distinct(tags))


def wrong_tags(tags: Column) -> Column:
    """Whether no reader would accept the tags that `tags_column` gave; not null."""
    unreadable = F.exists(tags, lambda tag: tag.isNull() | ~F.is_valid_utf8(tag))
    readable = F.transform(tags, F.make_valid_utf8)
    judged: Column = arrow_udf(_judge_tags, T.BooleanType())(readable)  # type: ignore[call-overload]
    return F.coalesce(unreadable, F.lit(False)) | ~judged


def _interval_text(interval: Column) -> Column:
    """The interval in milliseconds; its parts, since the zone of the session would have a say in its sum with a time."""
    whole = interval.cast(T.DayTimeIntervalType())  # an interval of minutes has no days
    part = {name: F.extract(F.lit(name), whole) for name in ("DAY", "HOUR", "MINUTE", "SECOND")}
    minutes = (part["DAY"].cast("long") * 24 + part["HOUR"]) * 60 + part["MINUTE"]
    return F.concat((minutes * 60_000 + F.bround(part["SECOND"] * 1000).cast("long")).cast("string"), F.lit("ms"))


def _judge_durations(texts: pa.Array) -> pa.Array:
    return pa.array([None if text is None else _duration(text) for text in texts.to_pylist()], pa.string())


def _duration(text: str) -> str:
    try:
        ms = duration_ms(text)
    except ArgumentError:
        return ""
    return duration_text(timedelta(milliseconds=ms)) if ms else ""


def _judge_tags(rows: pa.Array) -> pa.Array:
    return pa.array([tags is None or (len(tags) <= MOST_TAGS and all(map(is_tag, tags))) for tags in rows.to_pylist()])
