"""Rows of the tables without a JVM: as polars frames, conditions on them, and as the records of `core`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import from_us
from scylla_spark.core.records.command import CANCEL, WireRetry
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.records.log_record import LogLine, LogRecord
from scylla_spark.core.tables.progress import ALL_FOLDED_US, Mark
from scylla_spark.core.tasks.about import About
from scylla_spark.core.tasks.attempt_note import COLUMNS, WorkNote
from scylla_spark.core.tasks.key import HOUR_US, TaskKey
from scylla_spark.core.tasks.state import ATTEMPT_ORDER_SQL
from scylla_spark.core.tasks.stored_records import ENQUEUED, NEWEST, ScanRow, stored_command
from scylla_spark.core.tasks.task import MAX_LAST_ERROR_CHARS, Failure, LastError
from scylla_spark.schemas import DATA

if TYPE_CHECKING:
    import polars as pl

Pruning = list[list[tuple[str, str, Any]]]
"""Alternatives of conditions by which files are left out."""
IDENTITY: Final = ("scheduled_time", "ordering_id", "uniqueness_key")


def folded(*operations: pl.LazyFrame) -> pl.LazyFrame:
    """The fold of `core.tasks.fold_commands` on frames, a row per key: the newest data, what the first enqueue said, the newest cancel.

    Args:
        *operations: columns of `tasks` without partition columns; any number of rows per key, repeats included.
    """
    import polars as pl

    newest = pl.col(NEWEST).sort_by(pl.col("data_offset"), nulls_last=False).last()
    oldest = pl.col("unique_open").sort_by(first_offset(), nulls_last=True).first()
    first = first_offset().min().alias("first_offset")
    rows = pl.concat(operations).group_by(IDENTITY).agg(newest, first, oldest, pl.col("cancel_offset").max())
    return rows.select(*IDENTITY, *[column.name for column in DATA])


def first_offset() -> pl.Expr:
    """Offset of the first enqueue of a row's key; rows of older versions hold that of the newest only."""
    import polars as pl

    return pl.coalesce("first_offset", "data_offset")


def in_us(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Instants as microseconds since the epoch."""
    import polars.selectors as cs

    return frame.with_columns(cs.datetime().dt.epoch("us"))


def epoch_us(name: str) -> pl.Expr:
    """An instant column as microseconds since the epoch."""
    import polars as pl

    return pl.col(name).dt.epoch("us")


def could_start_us(due: pl.Expr, enqueued: pl.Expr, started: pl.Expr) -> pl.Expr:
    """Returns when tasks could start at the earliest, as `core.tasks.state.could_start_us` says; all in microseconds since the epoch.

    Args:
        due: their scheduled times.
        enqueued: their newest enqueueings; null: not known.
        started: of their first attempts, null: none. A task that was enqueued again after its start is not taken to have come later.
    """
    import polars as pl

    return pl.max_horizontal(due, pl.min_horizontal(enqueued.fill_null(0), started))


def scan_row(row: Mapping[str, Any]) -> ScanRow:
    """Returns what the tables say of one task; `row` holds the columns of `tasks` and, where known, of its newest attempt."""
    known = row["data_offset"] is not None
    key = TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"])
    offset, retry = row["data_offset"] if known else row["cancel_offset"], row["retry"]
    terms = WireRetry(**retry) if retry and retry["base_ms"] is not None else None
    command = stored_command(key, offset, [row[name] for name in ENQUEUED], terms, row["enqueued_at"] or 0)
    if not known:
        command = command._replace(kind=CANCEL)
    elif (about := row.get("about")) is not None and any(about.values()):
        command = command._replace(about=About(**about))
    return ScanRow(
        command,
        row["cancel_offset"] is not None,
        row.get("attempt") or 0,
        row.get("used") or 0,
        row.get("next_at") or 0,
        work_note(row.get("work")),
        last_error(row.get("error")),
        row["data_offset"] if known and row["first_offset"] is None else row["first_offset"] if known else -1,
        -1 if (place := row.get("fact_offset")) is None else place,
    )


def work_note(cell: Mapping[str, Any] | None) -> WorkNote | None:
    """The note in a cell of column `work`; polars gives a struct of nulls where there is none."""
    if cell is None or not any(value is not None for value in cell.values()):
        return None
    numbers = {name: cell[name] or 0 for name in ("lease_ms", "since_us", "until_us")}
    return WorkNote(**{**cell, **numbers})


def last_error(cell: Mapping[str, Any] | None) -> LastError | None:
    """Returns why an attempt did not succeed, in a cell of what `newest_attempts` and the due scan give."""
    return LastError(cell["kind"], cell["message"] or "") if cell is not None and cell["kind"] else None


def fact(row: Mapping[str, Any]) -> Fact:
    """The fact in a row of `completions` or `attempts`."""
    failure = (
        Failure(row["error_class"], row["error_message"] or "", row["error_stack"] or "")
        if row["error_class"]
        else None
    )
    work = work_note(row.get("work"))
    own = {name: row[name] for name in COLUMNS if row.get(name) is not None}
    if own:
        work = (work or WorkNote())._replace(**own)
    return Fact(
        TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]),
        row["attempt"], row["outcome"], row["started_at"] or 0, row["finished_at"] or 0, row["planned_at"] or 0, row["used"] or 0,
        row.get("next_at"), row["result"], failure, work=work,
    )  # fmt: skip


def log_record(key: TaskKey, row: Mapping[str, Any]) -> LogRecord:
    """The line in a row of `attempt_logs`."""
    line = LogLine(row["seq"], row["at"], row["stream"], row["level"], row["text"] or "", row["fields"])
    return LogRecord(key, row["attempt"], row["epoch"] or 0, (line,))


def progress_row(topic: str, partition: int, mark: Mark) -> dict[str, Any]:
    """The row of `progress` that says of a topic ("tasks" or "outcomes") what a mark holds; without `updated_at`.

    Args:
        topic: "tasks" or "outcomes".
        partition: of that topic.
        mark: up to where it was written, and by which fence.
    """
    row: dict[str, Any] = {"topic": topic, "partition_id": partition}
    if topic != "tasks":
        fence = mark.fence
        return row | {
            "next_offset": mark.outcomes_offset,
            "epoch": fence.epoch,
            "nonce": fence.nonce,
            "resigned": mark.resigned,
        }
    return row | {
        "next_offset": mark.tasks_offset,
        "folded_until": from_us(mark.folded_until_us) if mark.folded_until_us < ALL_FOLDED_US else None,
        "closed_hour": mark.closed_hour,
        "open_hours": list(mark.open_hours),
        "appended_at": from_us(mark.appended_us) if mark.appended_us else None,
    }


def newest_attempts(attempts: pl.LazyFrame, *more: str) -> pl.LazyFrame:
    """One row per key that has any: `last_outcome`, `attempt`, `used`, `next_at`, `work`, `error`, and more, of its newest attempt."""
    import polars as pl

    newest = attempts.sort(*map(pl.sql_expr, ATTEMPT_ORDER_SQL))
    newest = newest.unique(subset=IDENTITY, keep="last", maintain_order=True)
    message = pl.col("error_message").str.head(MAX_LAST_ERROR_CHARS)
    error = pl.struct(kind=pl.col("error_class"), message=message).alias("error")
    return newest.select(
        *IDENTITY, pl.col("outcome").alias("last_outcome"), "attempt", "used", "next_at", "work", error, *more
    )


def first_completions(completions: pl.LazyFrame) -> pl.LazyFrame:
    """One row per key: the completion that was recorded first, which is the one that counts."""
    return completions.sort("fact_offset").unique(IDENTITY, keep="first", maintain_order=True)


def around(first_us: int, last_us: int | None) -> list[tuple[str, str, Any]]:
    """Conditions on `scheduled_time` for leaving out files; a little wide, as statistics keep whole milliseconds."""
    after = ("scheduled_time", ">=", from_us(first_us - 1000))
    return [after] if last_us is None else [after, ("scheduled_time", "<=", from_us(last_us + 1000))]


def hours_between(start_us: int | None, stop_us: int | None) -> list[tuple[str, str, Any]]:
    """Conditions on `hour` for scheduled times in [start_us, stop_us); None: without that bound."""
    hours: list[tuple[str, str, Any]] = []
    if start_us is not None:
        hours.append(("hour", ">=", start_us // HOUR_US))
    if stop_us is not None:
        hours.append(("hour", "<=", (stop_us - 1) // HOUR_US))
    return hours


def stands_far(edge_us: int) -> pl.Expr:
    """Whether a row's task is far; see `core.tables.progress`."""
    import polars as pl

    return pl.col("scheduled_time") >= pl.lit(from_us(edge_us))


def is_key(key: TaskKey) -> list[pl.Expr]:
    """Conditions on the three parts of a key."""
    import polars as pl

    return [
        pl.col("scheduled_time") == pl.lit(key.scheduled_time),
        pl.col("ordering_id") == key.ordering_id,
        pl.col("uniqueness_key") == key.uniqueness_key,
    ]


def after_key(key: TaskKey) -> pl.Expr:
    """Whether a row's key is greater."""
    import polars as pl

    time, lane, unique = pl.col("scheduled_time"), pl.col("ordering_id"), pl.col("uniqueness_key")
    at = pl.lit(key.scheduled_time)
    return (time > at) | (
        (time == at) & ((lane > key.ordering_id) | ((lane == key.ordering_id) & (unique > key.uniqueness_key)))
    )


def before_key(key: TaskKey) -> pl.Expr:
    """Whether a row's key is smaller."""
    import polars as pl

    same = pl.all_horizontal(
        pl.col(name) == value for name, value in zip(IDENTITY, (pl.lit(key.scheduled_time), *key[1:]), strict=True)
    )
    return ~after_key(key) & ~same


def polars_type(spark_type: str) -> Any:
    """The polars type of a Spark SQL type, as far as our tables use it."""
    import polars as pl

    if spark_type.startswith("array<"):
        return pl.List(polars_type(spark_type[len("array<") : -1]))
    if spark_type.startswith("struct<"):
        fields = (field.split(":") for field in spark_type[len("struct<") : -1].split(","))
        return pl.Struct({name.strip(): polars_type(kind.strip()) for name, kind in fields})
    return {
        "int": pl.Int32, "bigint": pl.Int64, "double": pl.Float64, "string": pl.String, "timestamp": pl.Datetime("us", "UTC"),
        "date": pl.Date, "binary": pl.Binary, "boolean": pl.Boolean,
    }[spark_type]  # fmt: skip
