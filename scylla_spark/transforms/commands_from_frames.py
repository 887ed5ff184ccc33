"""Frames to records of the `tasks` topic: the wire format and the rules of `core.records.command`, as columns.

What the rules would refuse gets a reason instead of a silent place in `rejected`. JSON texts are judged by the very code that
will read the record (`payload_columns`); everything else that a frame can hold is narrower than the rules, so that no row that
passes here is refused later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from scylla_spark.clock import iso, to_us
from scylla_spark.core.records.command import (
    CANCEL,
    COMMON_VERSION,
    OPEN_NAME,
    TOO_LATE,
    TOO_OLD,
    Command,
    Rejection,
    Rules,
    encode,
    validate,
    version_of,
)
from scylla_spark.core.tasks.about import about_of
from scylla_spark.core.tasks.enqueue_options import enqueue_command
from scylla_spark.core.tasks.key import EARLIEST_US, LATEST_US, TaskKey, partition_of
from scylla_spark.core.tasks.task import MAX_PAYLOAD_BYTES
from scylla_spark.core.tasks.trace_context import current_trace
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import ArgumentError
from scylla_spark.name import PATTERN, RULE
from scylla_spark.transforms.about_columns import ABOUT, about_column, wrong_about
from scylla_spark.transforms.expires_and_tags import expires_column, tags_column, wrong_tags
from scylla_spark.transforms.payload_json import JSON_OPTIONS, payload_column, payload_conditions

REASONS: Final = {
    "ordering_id_missing": "the ordering id is null",
    "ordering_id_invalid": "the ordering id is empty, longer than 1024 characters or not UTF-8",
    "uniqueness_key_missing": "the uniqueness key is null",
    "uniqueness_key_invalid": "the uniqueness key is empty, longer than 1024 characters or not UTF-8",
    "scheduled_time_missing": "the scheduled time is null",
    "time_out_of_range": "the scheduled time is before 1970 or after 2261",
    TOO_LATE: "the scheduled time is further in the past than the grace window allows",
    TOO_OLD: "the scheduled time is older than the retention",
    "handler_invalid": f"the handler is not a name ({RULE})",
    "queue_invalid": f"the queue is null or not a name ({RULE})",
    "priority_invalid": "the priority is null or not in 0-255",
    "expires_invalid": "the time until it expires is not a duration from 1 ms to 100 years",
    "tags_invalid": "the tags are more than 16, or one of them is null or is not 1-64 printable characters without spaces around them",
    "name_invalid": "the name is not 1-200 printable characters without spaces around them",
    "description_invalid": "the description is not 1-2000 characters",
    "enqueued_by_invalid": "enqueued_by is not 1-200 printable characters without spaces around them",
    "payload_not_an_object": "the payload is not the text of a JSON object",
    "payload_not_finite": "the payload holds NaN or an infinity, which JSON cannot express",
    "payload_too_large": f"the payload has more than {MAX_PAYLOAD_BYTES} bytes",
}
_NAME: Final = rf"^{PATTERN}\z"  # in Java "$" would let a last line end pass
_TYPES: Final[dict[str, tuple[type[T.DataType], ...]]] = {
    "handler": (T.StringType,),
    "queue": (T.StringType,),
    "priority": (T.IntegralType,),
    "expires": (T.StringType, T.IntegralType, T.DayTimeIntervalType, T.NullType),
    "tags": (T.ArrayType, T.NullType),
    **dict.fromkeys(ABOUT, (T.StringType, T.NullType)),
}
_STORABLE: Final = f"(unix_micros(scheduled_time) BETWEEN {EARLIEST_US} AND {LATEST_US - 1})"


class Columns(NamedTuple):
    """Where the parts of a task stand in a frame; see `Scheduler.enqueue_df`."""

    handler: str | Column | None
    ordering_id: str | Column | None
    uniqueness_key: str | Column
    scheduled_time: str | Column | datetime | None = None
    payload: str | Column | None = None
    queue: str | Column = DEFAULT_QUEUE
    priority: int | Column = 0
    expires: object = None
    tags: Iterable[str] | Column | None = None
    unique: str | None = None
    name: str | Column | None = None
    description: str | Column | None = None
    enqueued_by: str | Column | None = None


def enqueue_records(df: DataFrame, columns: Columns, rules: Rules, now: int, *, checked: bool = True) -> DataFrame:
    """One record per row.

    Args:
        df: any frame.
        columns: where the parts stand; snake_case names also find camelCase columns and vice versa.
        rules: the deployment's.
        now: microseconds since the epoch: the stamp in the records, and the time of those that have none.
        checked: compute `reason`; else records carry no stamp and rows with bad payload text keep it, so that ingest refuses them.

    Returns:
        `key` and `value` (binary), `reason` (a key of REASONS; null: the row is fine), `fault` (the same, but blind to rows that
        come too late), and the key's parts `ordering_id`, `uniqueness_key`, `scheduled_time`.

    Raises:
        ArgumentError: a column is missing or has an unusable type, or a literal setting would be refused.
    """
    _check_literals(columns, rules, now)
    parts = _parts(df, columns, now)
    payload_type = parts.schema["payload"].dataType
    parts = parts.withColumn("text", payload_column(F.col("payload"), payload_type, checked=checked))
    varying = _varying(columns)
    if written := _written(
        parts, varying, unique=_is_unique(columns), checked=checked
    ):  # Spark Connect refuses no columns
        parts = parts.withColumns(written)
    constant = _constant(columns, now if checked else None)
    pieces = ['{"taskData":', F.coalesce(F.col("text"), F.lit("{}")), constant, *_key_pieces(varying)]
    conditions = [
        *_key_conditions(),
        _out_of_range(),
        *_setting_conditions(varying),
        *payload_conditions(payload_type),
    ]
    return _records(parts, pieces, conditions if checked else [], _time_conditions(rules, now) if checked else [])


def cancel_records(df: DataFrame, columns: Columns, now: int) -> DataFrame:
    """One cancel per row; columns, reasons and errors as in `enqueue_records`.

    Args:
        df: one row per task, with the columns of its key.
        columns: which columns of it are what.
        now: microseconds since the epoch.
    """
    parts = _parts(df, columns, now)
    fixed = f',"version":{COMMON_VERSION},"type":"{CANCEL}","enqueuedAt":"{iso(now)}"}}'
    pieces = ["{" + fixed.removeprefix(",").removesuffix("}") + ",", *_key_pieces([])]
    return _records(parts, pieces, [*_key_conditions(), _out_of_range()], [])


def _literal(text: str) -> str:
    """SQL of the text's bytes."""
    return f"X'{text.encode().hex()}'"


def _records(
    parts: DataFrame,
    pieces: Sequence[str | Column],
    conditions: list[tuple[str, Column]],
    of_time: list[tuple[str, Column]],
) -> DataFrame:
    fault = _first_that_holds(conditions)
    return parts.withColumns(_time_digits()).select(
        F.col("ordering_id").cast("binary").alias("key"),
        F.concat(*(F.expr(_literal(p)) if isinstance(p, str) else p.cast("binary") for p in pieces)).alias("value"),
        fault.alias("fault"),
        F.coalesce(fault, _first_that_holds(of_time)).alias("reason"),
        "ordering_id",
        "uniqueness_key",
        "scheduled_time",
    )


def _first_that_holds(conditions: list[tuple[str, Column]]) -> Column:
    reason = F.lit(None).cast("string")
    for code, holds in reversed(conditions):
        reason = F.when(holds, F.lit(code)).otherwise(reason)
    return reason


def _parts(df: DataFrame, columns: Columns, now: int) -> DataFrame:
    """The frame with our own column names, and types that the rest relies on."""
    time = columns.scheduled_time
    if time is None or isinstance(time, datetime):
        try:
            moment = F.timestamp_micros(F.lit(now if time is None else to_us(time)))
        except ValueError as error:
            raise ArgumentError(f"scheduled_time: {error}.") from None
    else:
        moment = _find(df, "scheduled_time", time)
    unique = _find(df, "uniqueness_key", columns.uniqueness_key)
    lane = unique if columns.ordering_id is None else _find(df, "ordering_id", columns.ordering_id)
    payload = F.lit("{}") if columns.payload is None else _find(df, "payload", columns.payload)
    settings = [_column(getattr(columns, name)).alias(name) for name in _varying(columns)]
    frame = df.select(
        lane.alias("ordering_id"),
        unique.alias("uniqueness_key"),
        moment.alias("scheduled_time"),
        payload.alias("payload"),
        *settings,
    )
    _check_types(frame)
    return frame.withColumns({name: F.col(name).cast("string") for name in ("ordering_id", "uniqueness_key")})


def _varying(columns: Columns) -> list[str]:
    """The settings that come from columns; with one part of `about` all of it, since it is one object in records."""
    found = {name for name in _TYPES if isinstance(getattr(columns, name), Column)}
    return [name for name in _TYPES if name in found or (name in ABOUT and not found.isdisjoint(ABOUT))]


def _column(setting: Any) -> Column:
    return setting if isinstance(setting, Column) else F.lit(setting)


def _written(parts: DataFrame, varying: list[str], *, unique: bool, checked: bool) -> dict[str, Column]:
    """The settings that do not travel as they stand in their columns, and the version of records that may expire."""
    written = {}
    if "expires" in varying:
        kind = parts.schema["expires"].dataType
        written["expires"] = expires_column(F.col("expires"), kind, checked=checked)
        lasting, expiring = (F.lit(version_of(expires=expires, unique=unique)) for expires in (False, True))
        written["version"] = F.when(F.col("expires").isNull(), lasting).otherwise(expiring)
    if "tags" in varying:
        written["tags"] = tags_column(F.col("tags"))
    if "name" in varying:
        written["about"] = about_column(checked=checked)
    return written


def _check_types(frame: DataFrame) -> None:
    schema = {field.name: field.dataType for field in frame.schema.fields}
    if not isinstance(schema["scheduled_time"], T.TimestampType):
        raise ArgumentError(
            f"The scheduled time is of type {schema['scheduled_time'].simpleString()}, which names no instant.",
            hint="Pass a timestamp column, such as to_timestamp(text) or to_utc_timestamp(local, 'Europe/Berlin').",
        )
    for name in ("ordering_id", "uniqueness_key"):
        if not isinstance(schema[name], T.StringType | T.IntegralType):
            raise ArgumentError(
                f"{name} is of type {schema[name].simpleString()}.", hint="Pass text or an integer; cast it yourself."
            )
    payload = schema["payload"]
    if not isinstance(payload, T.StringType | T.StructType | T.MapType | T.VariantType | T.NullType):
        raise ArgumentError(
            f"The payload is of type {payload.simpleString()}.", hint="Pass a struct, a map, or JSON text."
        )
    for name in _TYPES.keys() & schema.keys():
        if not isinstance(schema[name], _TYPES[name]) or not _holds_texts(schema[name]):
            raise ArgumentError(
                f"{name} is of type {schema[name].simpleString()}.",
                hint="Pass integers for priorities, intervals, seconds or text for expires, arrays of text for tags, text for all others.",
            )


def _holds_texts(kind: T.DataType) -> bool:
    return not isinstance(kind, T.ArrayType) or isinstance(kind.elementType, T.StringType | T.NullType)


def _check_literals(columns: Columns, rules: Rules, now: int) -> None:
    sample = _sample(columns, TaskKey(now, "x", "x"), now)
    try:
        verdict = validate(partition_of("x", rules.partitions), 0, now, b"x", encode(sample), rules)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"A setting cannot be written: {error}.") from None
    if isinstance(verdict, Rejection):
        raise ArgumentError(verdict.detail, hint="Nothing was sent.", reason=verdict.reason)


def _constant(columns: Columns, stamp: int | None) -> str:
    """Returns what is the same in all records, from the payload to the key, as `encode` would write it."""
    elsewhere: dict[str, Any] = dict.fromkeys(ABOUT.keys() & _varying(columns))
    sample = _sample(columns._replace(**elsewhere), TaskKey(0, "", ""), stamp or 0)
    text = encode(sample, with_stamp=stamp is not None).decode().removesuffix(',"taskData":{}}')
    text = text.removeprefix('{"orderingId":"","scheduledTime":"1970-01-01T00:00:00Z","uniquenessKey":""')
    if isinstance(columns.expires, Column):
        text = text.replace(f',"version":{version_of(expires=False, unique=sample.unique)}', "")
    return (text.replace(f',"queue":"{DEFAULT_QUEUE}"', "") if isinstance(columns.queue, Column) else text) + ","


def _sample(columns: Columns, key: TaskKey, stamp: int) -> Command:
    """A task with all that is the same in all rows; a stamp of 0 stands for none, and none has a trace then."""
    literal: dict[str, Any] = {name: getattr(columns, name) for name in _TYPES}
    given: Any = {name: value for name, value in literal.items() if value is not None and not isinstance(value, Column)}
    trace = current_trace() if stamp else None
    about = about_of(*(given.pop(part, None) for part in ABOUT))
    handler, unique = given.pop("handler", None), _is_unique(columns)
    return enqueue_command(key, handler, None, given, enqueued_us=stamp, unique=unique, trace=trace, about=about)


def _is_unique(columns: Columns) -> bool:
    """Returns True if names are to be unique.

    Raises:
        ArgumentError: it is said in a way that nobody knows.
    """
    if columns.unique not in (None, OPEN_NAME):
        raise ArgumentError(
            f"unique is {columns.unique!r}.", hint='Pass "open", or leave it out.', reason="wrong_value"
        )
    return columns.unique == OPEN_NAME


def _key_pieces(varying: list[str]) -> list[str | Column]:
    """The last fields of a record, and its end."""
    fields = {"orderingId": "ordering_id", "uniquenessKey": "uniqueness_key"} | {
        name: name for name in varying if name not in ABOUT
    }
    if "name" in varying:
        fields["about"] = "about"
    if "expires" in varying:
        fields["version"] = "version"
    struct = ", ".join(f"'{wire}', {column}" for wire, column in fields.items())
    # bytes, not text: the substring of a text would count its characters
    return [_time_field(), F.expr(f"substring(cast(to_json(named_struct({struct})) as binary), 2, {1 << 30})")]


def _time_digits() -> dict[str, Column]:
    """`days` (yyyymmdd) and `micros` (1, then hhmmss and six decimals) of the scheduled time in UTC, as bytes; from 1970 on.

    In columns of their own, or they would be counted anew for each piece of the text.
    """
    us = "unix_micros(scheduled_time)"
    day = f"date_from_unix_date(cast({us} div 86400000000 as int))"
    days = f"year({day}) * 10000L + month({day}) * 100 + day({day})"
    clock = f"{us} div 3600000000 % 24 * 10000 + {us} div 60000000 % 60 * 100 + {us} div 1000000 % 60"
    micros = f"({clock} + 1000000) * 1000000 + {us} % 1000000"
    return {
        name: F.expr(f"cast(cast({digits} as string) as binary)")
        for name, digits in (("days", days), ("micros", micros))
    }


def _time_field() -> Column:
    """The scheduled time as a field of a record. Spark's own formatting, four times as slow, is left what has no four-digit year."""
    cuts = [("days", 1, 4, "-"), ("days", 5, 2, "-"), ("days", 7, 2, "T")]
    cuts += [("micros", 2, 2, ":"), ("micros", 4, 2, ":"), ("micros", 6, 2, "."), ("micros", 8, 6, 'Z",')]
    pieces = [_literal('"scheduledTime":"')]
    pieces += [f"substring({text}, {first}, {size}), {_literal(then)}" for text, first, size, then in cuts]
    usual = F.expr(f"concat({', '.join(pieces)})")
    other = F.to_json(F.struct(F.col("scheduled_time").alias("scheduledTime")), JSON_OPTIONS)
    unusual = F.concat(F.substring(other, F.lit(2), F.length(other) - 2), F.lit(",")).cast("binary")
    return (
        F.when(F.expr(_STORABLE), usual)
        .when(F.expr("scheduled_time IS NOT NULL"), unusual)
        .otherwise(F.expr(_literal("")))
    )


def _key_conditions() -> list[tuple[str, Column]]:
    conditions = []
    for name in ("ordering_id", "uniqueness_key"):
        conditions.append((f"{name}_missing", F.expr(f"{name} IS NULL")))
        size = f"octet_length({name})"  # known at once; characters have to be counted
        wrong = f"{size} = 0 OR ({size} > 1024 AND char_length({name}) > 1024) OR NOT is_valid_utf8({name})"
        conditions.append((f"{name}_invalid", F.expr(wrong)))
    return [*conditions, ("scheduled_time_missing", F.col("scheduled_time").isNull())]


def _out_of_range() -> tuple[str, Column]:
    return "time_out_of_range", F.expr(f"NOT {_STORABLE}")


def _time_conditions(rules: Rules, now: int) -> list[tuple[str, Column]]:
    """Returns what the rules refuse of who enqueues now, and appends at once."""
    bounds = {TOO_LATE: rules.late_before_us(now), TOO_OLD: rules.old_before_us(now)}
    return [(code, F.col("scheduled_time") < F.timestamp_micros(F.lit(us))) for code, us in bounds.items()]


def _setting_conditions(varying: list[str]) -> list[tuple[str, Column]]:
    rules = {
        "handler": lambda: F.col("handler").isNotNull() & ~F.col("handler").rlike(_NAME),
        "queue": lambda: F.col("queue").isNull() | ~F.col("queue").rlike(_NAME),
        "priority": lambda: F.col("priority").isNull() | ~F.col("priority").between(0, 255),
        "expires": lambda: F.col("expires") == "",
        "tags": lambda: wrong_tags(F.col("tags")),
    }
    return [(f"{name}_invalid", wrong_about(name) if name in ABOUT else rules[name]()) for name in varying]


def _find(df: DataFrame, part: str, what: str | Column) -> Column:
    """A column given as such or by name, in the frame's spelling or the other case."""
    if isinstance(what, Column):
        return what
    if not isinstance(what, str):
        raise ArgumentError(f"{part} is {what!r}.", hint="Pass a column name or a Column.")
    for name in (what, _camel(what), _snake(what)):
        if name in df.columns:
            quoted = name.replace("`", "``")
            return F.col(f"`{quoted}`")
    if "." in what:
        return F.col(what)
    raise ArgumentError(f"The frame has no column {what!r} for {part}.", hint=f"It has: {', '.join(df.columns)}.")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
