"""How tasks stand, as polars rows: data, end and newest attempt joined, then the state at a moment, then what a filter lets pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scylla_spark.clock import from_us
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.notifications.error_fingerprint import fingerprint_of
from scylla_spark.core.tasks.filter import OneOf, Range, TaskFilter
from scylla_spark.core.tasks.key import AFTER_NAME
from scylla_spark.core.tasks.state import READY, STATE_SQL
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.io.delta.rows import IDENTITY, could_start_us, epoch_us, first_completions, newest_attempts

if TYPE_CHECKING:
    import polars as pl

LISTED: Final = (
    *IDENTITY, "state", "queue", "handler", "priority", "attempts", "next_attempt_at", "enqueued_at", "ended_at", "cancel_requested",
    "error_class", "tags", "name", "enqueued_by",
)  # fmt: skip
_TEXTS: Final = {
    "state": "state",
    "queue": "queue",
    "handler": "handler",
    "lane": "ordering_id",
    "key": "uniqueness_key",
    "worker": "worker",
    "name": "name",
    "enqueued_by": "enqueued_by",
}
_PARTS: Final = {"error": "error_class", "description": "description"}  # texts that contain a value, in any letters
_SAID: Final = ("name", "description", "enqueued_by")
_DETAILS: Final = ("fingerprint", "worker")
_INSTANTS: Final = {"scheduled": "scheduled_time", "enqueued": "enqueued_at", "ended": "ended_at"}
_NUMBERS: Final = {"attempts": "attempts", "priority": "priority"}
_LATEST_US: Final = 1 << 62


def status_rows(
    tasks: pl.LazyFrame,
    completions: pl.LazyFrame,
    attempts: pl.LazyFrame,
    until_us: int | None = None,
    *,
    detailed: bool = False,
) -> pl.LazyFrame:
    """One row per task, with all that its state at any later moment follows from.

    Args:
        tasks: columns of `tasks`, one row per key.
        completions: of these tasks; repeats are tolerated.
        attempts: of these tasks.
        until_us: leave out what rows date after this, microseconds since the epoch; an overwritten or cancelled task shows its newest
            data and mark all the same, because rows keep no older ones.
        detailed: with `fingerprint`, of the error; each message that differs costs 4 microseconds, or up to 80 where it is long; and with
            `worker`, that leased the newest attempt, which stands among what handlers and workers left behind.
    """
    import polars as pl

    if until_us is not None:
        moment = pl.lit(from_us(until_us))
        tasks = tasks.filter(pl.col("enqueued_at").is_null() | (pl.col("enqueued_at") <= moment))
        completions = completions.filter(pl.col("finished_at") <= moment)
        attempts = attempts.filter(pl.coalesce("finished_at", "started_at") <= moment)
    worker = {"worker": pl.col("work").struct.field("worker")} if detailed else {}
    ends = first_completions(completions).select(
        *IDENTITY,
        ended="outcome",
        last="attempt",
        ended_at="finished_at",
        end_error="error_class",
        end_message="error_message",
        **{f"end_{name}": one for name, one in worker.items()},
    )
    newest = newest_attempts(attempts, "error_class", "error_message").with_columns(**worker).drop("work")
    newest = newest.rename({"error_class": "last_error", "error_message": "last_message"})
    rows = tasks.join(ends, on=IDENTITY, how="left").join(newest, on=IDENTITY, how="left")
    is_open = pl.col("ended").is_null()
    error = pl.when(is_open).then("last_error").otherwise("end_error")
    message = pl.when(is_open).then("last_message").otherwise("end_message")
    prints = {"fingerprint": pl.struct(kind=error, message=message).map_batches(_prints, pl.String)} if detailed else {}
    # an end of its own (a cancel, an expiry) bears the number of the attempt before, and no worker
    who = {name: pl.coalesce(f"end_{name}", name) for name in worker}
    return rows.select(
        *IDENTITY, "handler", "priority", "tags", "enqueued_at", "ended", "ended_at", "last_outcome",
        queue=pl.col("queue").fill_null(DEFAULT_QUEUE),
        cancel_requested=pl.col("cancel_offset").is_not_null(),
        due_at=pl.max_horizontal("scheduled_time", "next_at"),
        attempts=pl.max_horizontal(pl.col("last").fill_null(0), pl.col("attempt").fill_null(0)),
        error_class=error,
        **{name: pl.col("about").struct.field(name) for name in _SAID},
        **prints, **who,
    )  # fmt: skip


def asks_for_details(wanted: TaskFilter) -> bool:
    """Returns True if a filter needs rows with fingerprints or workers."""
    return any(one.field in _DETAILS for one in wanted.conditions)


def _prints(errors: pl.Series) -> pl.Series:
    """The fingerprint of each error, a struct of kind and message; null where there is none."""
    import polars as pl

    known: dict[tuple[str, str], str] = {}
    found: list[str | None] = []
    for error in errors:
        if error is None or error["kind"] is None:
            found.append(None)
            continue
        pair = (error["kind"], error["message"] or "")
        if pair not in known:
            known[pair] = fingerprint_of(*pair)
        found.append(known[pair])
    return pl.Series(errors.name, found, pl.String)


def with_state(rows: pl.LazyFrame, now: int) -> pl.LazyFrame:
    """Rows of `status_rows` with `state` and `next_attempt_at` at a moment (microseconds since the epoch)."""
    import polars as pl

    rows = rows.with_columns(as_of=pl.lit(from_us(now)), next_attempt_at=pl.col("due_at"))
    rows = rows.with_columns(pl.sql_expr(STATE_SQL).alias("state"))
    return rows.with_columns(next_attempt_at=pl.when(pl.col("ended").is_null()).then("next_attempt_at"))


def passing(wanted: TaskFilter, now: int) -> list[pl.Expr]:
    """Conditions on rows of `with_state`.

    Args:
        wanted: the filter.
        now: the moment of the states, microseconds since the epoch.
    """
    found = [_one_of(one) if isinstance(one, OneOf) else _range(one, now) for one in wanted.conditions]
    return found if wanted.queues == ALL_QUEUES else [*found, _within(wanted.queues)]


def scheduled_within(wanted: TaskFilter) -> tuple[int, int]:
    """Outside of which scheduled times [first, after) nothing can pass; microseconds since the epoch."""
    first, after = 0, _LATEST_US
    for one in wanted.conditions:
        if isinstance(one, Range) and one.field == "scheduled":
            first = max(first, one.low or 0)
            after = min(after, _LATEST_US if one.high is None else one.high)
    return first, after


def _within(queues: QueueBounds) -> pl.Expr:
    """Whether the queue of a task is one of these."""
    import polars as pl

    name, met = pl.col("queue"), [pl.lit(value=True)]
    if queues.names is not None:
        met.append(name.is_in(sorted(queues.names)))
    if queues.beginnings:
        met.append(pl.any_horizontal(name.str.starts_with(one) for one in queues.beginnings))
    return pl.all_horizontal(met).fill_null(value=False)


def _one_of(one: OneOf) -> pl.Expr:
    import polars as pl

    if one.field == "fingerprint":
        begins = pl.any_horizontal(pl.col("fingerprint").str.starts_with(value) for value in one.values)
        return begins.fill_null(value=False)
    if one.field == "schedule":
        key = pl.col("uniqueness_key")
        return pl.any_horizontal(_is_run_of(key, name) for name in one.values)
    if one.field == "tag":
        return pl.any_horizontal(pl.col("tags").list.contains(value) for value in one.values).fill_null(value=False)
    if one.field not in _PARTS:
        return pl.col(_TEXTS[one.field]).is_in(list(one.values)).fill_null(value=False)
    known = pl.col(_PARTS[one.field]).str.to_lowercase()
    return pl.any_horizontal(known.str.contains(value.lower(), literal=True) for value in one.values).fill_null(
        value=False
    )


def _is_run_of(key: pl.Expr, schedule: str) -> pl.Expr:
    """Whether a uniqueness key is one of a run of a schedule; see `core.tasks.key`."""
    beginning = f"{schedule}/"
    return key.str.starts_with(beginning) & key.str.strip_prefix(beginning).str.contains(f"^{AFTER_NAME}$")


def _range(one: Range, now: int) -> pl.Expr:
    import polars as pl

    if one.field == "late":
        late_us = pl.lit(now) - could_start_us(epoch_us("next_attempt_at"), epoch_us("enqueued_at"), pl.lit(now))
        return (pl.col("state") == READY) & _between(late_us, one.low, one.high)
    if one.field in _NUMBERS:
        return _between(pl.col(_NUMBERS[one.field]), one.low, one.high)
    return _between(pl.col(_INSTANTS[one.field]).dt.epoch("us"), one.low, one.high)


def _between(value: pl.Expr, low: int | None, high: int | None) -> pl.Expr:
    import polars as pl

    bounds = [*([value >= low] if low is not None else []), *([value < high] if high is not None else [])]
    return pl.all_horizontal(bounds).fill_null(value=False)
