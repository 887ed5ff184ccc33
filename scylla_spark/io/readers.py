"""The tables, read without a JVM: delta-rs lists the files that can matter, polars reads them.

Plain look-ups only: one key, many keys, one lane, one slice of time, one page of a listing. The due scan of the dispatcher is Spark's.
A table is opened once and brought up to date by each call; instants come back as microseconds since the epoch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from scylla_spark.clock import from_us
from scylla_spark.core.cancel import Known
from scylla_spark.core.fact import Fact
from scylla_spark.core.feed import ScanRow
from scylla_spark.core.key import HOUR_US, TaskKey, partition_of
from scylla_spark.core.partition import Mark, stored_mark
from scylla_spark.core.task import STARTED, Failure
from scylla_spark.core.wire import CANCEL, ENQUEUE, Command, RetryTerms, Rules
from scylla_spark.errors import ConfigError, NotFoundError
from scylla_spark.io.tables import stored_rules
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, DEPLOYMENT, PROGRESS, TASKS, Table

if TYPE_CHECKING:
    import polars as pl
    from deltalake import DeltaTable

Pruning = list[list[tuple[str, str, Any]]]
_IDENTITY: Final = ("scheduled_time", "ordering_id", "uniqueness_key")
_ATTEMPT_ORDER: Final = ("attempt", "fact_offset", "settled")


class Readers:
    """Reads the tables of one deployment; thread safe.

    Args:
        path: folder or URI under which the tables lie.

    Raises:
        ConfigError: the path has brackets or percent signs, which delta-rs takes for parts of a URL.
    """

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        if found := set("[]%") & set(self.path):
            raise ConfigError(
                f"The path {self.path} has {' '.join(sorted(found))} in it, which delta-rs cannot open.",
                hint="Keep the tables in a folder without brackets and percent signs.",
            )
        self._lock = threading.Lock()
        self._open: dict[str, DeltaTable] = {}
        self._rules: Rules | None = None

    # -- the deployment -------------------------------------------------------------------------------------------------

    def rules(self) -> Rules:
        """The rules by which records are judged, as stored with the tables.

        Raises:
            NotFoundError: there are no tables yet.
        """
        if self._rules is None:
            stored = {row["name"]: json.loads(row["value"]) for row in self._small(DEPLOYMENT, ("name", "value"))}
            if not stored:
                raise self._missing()
            self._rules = stored_rules(stored)
        return self._rules

    def marks(self) -> dict[tuple[str, int], Mark]:
        """How far the tables are: ("tasks" | "outcomes", partition) → mark; only the offset of its own topic is set in it."""
        rows = self._small(PROGRESS, ("topic", "partition_id", "next_offset", "epoch", "nonce", "resigned"))
        return {(row["topic"], row["partition_id"]): stored_mark(row) for row in rows}

    # -- look-ups -------------------------------------------------------------------------------------------------------

    def task(self, key: TaskKey) -> ScanRow | None:
        """The stored task of a key (whether open or ended), without its attempts; a cancel without data has kind "cancel"."""
        rows = self._rows(self._at(TASKS, [key]).filter(*_is(key)))
        rows.sort(key=lambda row: row["data_offset"] if row["data_offset"] is not None else -1)
        return scan_row(rows[-1]) if rows else None

    def completion(self, key: TaskKey) -> Fact | None:
        """How the task of a key ended, or None."""
        rows = self._rows(self._at(COMPLETIONS, [key]).filter(*_is(key)))
        return fact(min(rows, key=lambda row: row["fact_offset"] or 0)) if rows else None

    def attempts(self, key: TaskKey) -> list[Fact]:
        """All recorded starts and unfinal attempts of a key, in log order; repeats are possible."""
        rows = self._rows(self._at(ATTEMPTS, [key]).filter(*_is(key)))
        return [
            fact(row)
            for row in sorted(
                rows, key=lambda row: (row["fact_offset"] or 0, row["attempt"], row["outcome"] != STARTED)
            )
        ]

    def completed(self, keys: Collection[TaskKey]) -> set[TaskKey]:
        """Those of the keys that the tables hold a completion of."""
        if not keys:
            return set()
        return {
            TaskKey(*row)
            for row in self._only(keys, self._at(COMPLETIONS, keys)).select(*_IDENTITY).collect().iter_rows()
        }

    def known(self, keys: Collection[TaskKey]) -> dict[TaskKey, Known]:
        """What the tables hold of each key: whether it has ended, and its newest attempt."""
        ended = self.completed(keys)
        newest = newest_attempts(self._only(keys, self._at(ATTEMPTS, keys))) if keys else None
        rows = newest.with_columns(epoch_us("next_at")).collect().to_dicts() if newest is not None else []
        attempts = {TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]): row for row in rows}
        answers = {}
        for key in keys:
            row = attempts.get(key)
            answers[key] = Known(
                key in ended, *((row["attempt"], row["used"] or 0, row["next_at"] or 0) if row else (0, 0, 0))
            )
        return answers

    def _only(self, keys: Collection[TaskKey], frame: pl.LazyFrame) -> pl.LazyFrame:
        """Rows of these keys; `scheduled_time` as microseconds."""
        import polars as pl

        columns = {"scheduled_time": pl.Int64, "ordering_id": pl.String, "uniqueness_key": pl.String}
        wanted = pl.LazyFrame(list(keys), schema=columns, orient="row")
        first, last = min(key.time_us for key in keys), max(key.time_us for key in keys)
        inside = pl.col("scheduled_time").is_between(pl.lit(from_us(first)), pl.lit(from_us(last)))
        return frame.filter(inside).with_columns(epoch_us("scheduled_time")).join(wanted, on=list(columns), how="semi")

    def lane(self, partition: int, ordering_id: str, after: TaskKey | None, limit: int) -> list[ScanRow]:
        """The next open tasks of a lane.

        Args:
            partition: the lane's partition.
            ordering_id: the lane.
            after: only keys greater than this.
            limit: most rows; as many rows mean that there may be more.

        Returns:
            In key order. Those that were completed when `completions` was read, after `tasks`, are left out.
        """
        import polars as pl

        within = [pl.col("ordering_id") == ordering_id]
        pruning: Pruning = [[("partition_id", "=", partition)]]
        if after is not None:
            pruning[0].append(("hour", ">=", after.hour))
            within.append(after_key(after))
        return [scan_row(row) for row in self._rows(self.open_tasks(pruning, within, limit))]

    def open_tasks(self, pruning: Pruning, within: Iterable[pl.Expr], limit: int | None) -> pl.LazyFrame:
        """Open tasks with their newest attempt, in key order: the columns of `tasks`, `last_outcome`, `attempt`, `used`, `next_at`.

        Args:
            pruning: alternatives of conditions on `partition_id` and `hour`, by which files are left out.
            within: conditions on key columns.
            limit: most rows.
        """
        conditions = list(within)
        tasks = self.frame(TASKS, pruning).filter(
            *conditions
        )  # before completions: what ends in between counts as ended
        ended = self.frame(COMPLETIONS, pruning).filter(*conditions).select(*_IDENTITY)
        rows = tasks.join(ended, on=_IDENTITY, how="anti").sort(*_IDENTITY)
        rows = rows if limit is None else rows.head(limit)
        attempts = newest_attempts(self.frame(ATTEMPTS, pruning).filter(*conditions))
        return rows.join(attempts, on=_IDENTITY, how="left", maintain_order="left")

    # -- files ----------------------------------------------------------------------------------------------------------

    def frame(self, table: Table, pruning: Pruning | None = None) -> pl.LazyFrame:
        """The newest version of a table, lazily, without its partition columns.

        Args:
            table: which.
            pruning: alternatives of conditions; files that cannot hold such rows are not read, rows are not filtered.
        """
        import polars as pl

        files = self._files(table, pruning)
        schema = {
            column.name: _polars_type(column.type)
            for column in table.columns
            if column.name not in table.partitioned_by
        }
        if not files:
            return pl.LazyFrame(schema=schema)
        casts = pl.ScanCastOptions(integer_cast="upcast", datetime_cast=["nanosecond-downcast", "convert-timezone"])
        return pl.scan_parquet(
            files,
            schema=schema,
            glob=False,
            hive_partitioning=False,
            missing_columns="insert",
            extra_columns="ignore",
            cast_options=casts,
        )

    def size(self, table: Table) -> dict[str, Any]:
        """Rows, files, bytes and version of a table, from its log."""
        with self._lock:
            newest = self._newest(table)
            files = newest.get_add_actions(flatten=True)
            version = newest.version() if callable(newest.version) else newest.version
        rows, sizes = files["num_records"].to_pylist(), files["size_bytes"].to_pylist()
        return {
            "table": table.name, "rows": sum(number or 0 for number in rows), "files": len(sizes), "bytes": sum(sizes), "version": version,
        }  # fmt: skip

    def _at(self, table: Table, keys: Iterable[TaskKey]) -> pl.LazyFrame:
        partitions = self.rules().partitions
        hours: dict[int, set[int]] = {}
        for key in keys:
            hours.setdefault(partition_of(key.ordering_id, partitions), set()).add(key.hour)
        return self.frame(
            table, [[("partition_id", "=", number), ("hour", "in", sorted(within))] for number, within in hours.items()]
        )

    def _files(self, table: Table, pruning: Pruning | None) -> list[str]:
        with self._lock:
            files: list[str] = self._newest(table).file_uris(file_pruning_predicate=pruning or None)
        return [unquote(file) if file.startswith("/") else file for file in files]

    def _small(self, table: Table, columns: tuple[str, ...]) -> list[dict[str, Any]]:
        """A table of a few rows, without the cost of importing polars."""
        with self._lock:
            batches = list(self._newest(table).scan(columns=list(columns)))
        return [
            {name: batch[name][index].as_py() for name in columns}
            for batch in batches
            for index in range(batch.num_rows)
        ]

    def _newest(self, table: Table) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        known = self._open.get(table.name)
        if known is not None:
            try:
                known.update_incremental()
            except DeltaError:
                known = None  # replaced or cleaned up behind our back: open anew
        if known is None:
            try:
                known = self._open[table.name] = DeltaTable(f"{self.path}/{table.name}")
            except TableNotFoundError:
                raise self._missing() from None
        return known

    def _missing(self) -> NotFoundError:
        return NotFoundError(
            f"There are no tables at {self.path}.", hint="Run `scylla-spark init` first, or `scylla-spark up`."
        )

    def _rows(self, frame: pl.LazyFrame) -> list[dict[str, Any]]:
        return in_us(frame).collect().to_dicts()


def in_us(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Instants as microseconds since the epoch."""
    import polars.selectors as cs

    return frame.with_columns(cs.datetime().dt.epoch("us"))


def epoch_us(name: str) -> pl.Expr:
    """An instant column as microseconds since the epoch."""
    import polars as pl

    return pl.col(name).dt.epoch("us")


def scan_row(row: Mapping[str, Any]) -> ScanRow:
    """What the tables say of one task; `row` holds the columns of `tasks` and, where known, of its newest attempt."""
    known = row["data_offset"] is not None
    retry = row["retry"]
    command = Command(
        kind=ENQUEUE if known else CANCEL,
        key=TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]),
        offset=row["data_offset"] if known else row["cancel_offset"],
        handler=row["handler"],
        queue=row["queue"] or "default",
        payload=row["payload"] or "{}",
        priority=row["priority"] or 0,
        timeout_ms=row["timeout_ms"],
        retry=RetryTerms(retry["max_retries"], retry["base_ms"], retry["cap_ms"])
        if retry and retry["base_ms"] is not None
        else None,
        enqueued_us=row["enqueued_at"] or 0,
        extra=row["extra"],
    )
    return ScanRow(
        command,
        row["cancel_offset"] is not None,
        row.get("attempt") or 0,
        row.get("used") or 0,
        row.get("next_at") or 0,
    )


def fact(row: Mapping[str, Any]) -> Fact:
    """The fact in a row of `completions` or `attempts`."""
    failure = (
        Failure(row["error_class"], row["error_message"] or "", row["error_stack"] or "")
        if row["error_class"]
        else None
    )
    return Fact(
        TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]),
        row["attempt"], row["outcome"], row["started_at"] or 0, row["finished_at"] or 0, row["planned_at"] or 0, row["used"] or 0,
        row.get("next_at"), row["result"], failure,
    )  # fmt: skip


def newest_attempts(attempts: pl.LazyFrame) -> pl.LazyFrame:
    """One row per key that has any: `last_outcome`, `attempt`, `used`, `next_at` of its newest recorded attempt."""
    import polars as pl

    newest = attempts.with_columns(settled=pl.col("outcome") != STARTED).sort(*_ATTEMPT_ORDER)
    newest = newest.unique(subset=_IDENTITY, keep="last", maintain_order=True)
    return newest.select(*_IDENTITY, pl.col("outcome").alias("last_outcome"), "attempt", "used", "next_at")


def hours_between(start_us: int | None, stop_us: int | None) -> list[tuple[str, str, Any]]:
    """Conditions on `hour` for scheduled times in [start_us, stop_us); None: without that bound."""
    hours: list[tuple[str, str, Any]] = []
    if start_us is not None:
        hours.append(("hour", ">=", start_us // HOUR_US))
    if stop_us is not None:
        hours.append(("hour", "<=", (stop_us - 1) // HOUR_US))
    return hours


def _is(key: TaskKey) -> list[pl.Expr]:
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


def _polars_type(spark_type: str) -> Any:
    import polars as pl

    if spark_type.startswith("struct<"):
        fields = (field.split(":") for field in spark_type[len("struct<") : -1].split(","))
        return pl.Struct({name.strip(): _polars_type(kind.strip()) for name, kind in fields})
    return {
        "int": pl.Int32, "bigint": pl.Int64, "string": pl.String, "timestamp": pl.Datetime("us", "UTC"),
        "date": pl.Date, "binary": pl.Binary, "boolean": pl.Boolean,
    }[spark_type]  # fmt: skip
