"""The tables, read without a JVM: delta-rs lists the files that can matter, polars reads them.

Plain look-ups only: one key, many keys, one lane, one slice of time, one page of a listing. The due scan of the dispatcher is Spark's.
A table is opened once and brought up to date by each call; instants come back as microseconds since the epoch.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from scylla_spark.clock import from_us, to_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Rules
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.records.log_record import LogRecord
from scylla_spark.core.tables.progress import Mark, common_edge, is_far, reaches_far, stored_mark
from scylla_spark.core.tasks.key import HOUR_US, TaskKey, partition_of
from scylla_spark.core.tasks.state import attempt_order
from scylla_spark.core.tasks.stored_records import Known, ScanRow
from scylla_spark.errors import ConfigError, ConflictError, NotFoundError, SchedulerError, UnreachableError
from scylla_spark.io.delta.deployment_record import check_partitions, stored_rules
from scylla_spark.io.delta.log_place import STORE_LIMIT, commit_name, has_log, is_local, log_of
from scylla_spark.io.delta.open_table import UNKNOWN, OpenTable, State, require_table_packages
from scylla_spark.io.delta.rows import (  # fmt: skip
    IDENTITY,
    Pruning,
    after_key,
    around,
    epoch_us,
    fact,
    first_completions,
    folded,
    in_us,
    is_key,
    last_error,
    log_record,
    newest_attempts,
    polars_type,
    scan_row,
    stands_far,
    work_note,
)
from scylla_spark.schemas import (
    ATTEMPT_LOGS,
    ATTEMPTS,
    COMPLETIONS,
    DEFERRED,
    DEPLOYMENT,
    LOG_PROGRESS,
    PROGRESS,
    QUEUES,
    TABLES,
    TASKS,
    Table,
)
from scylla_spark.visible import visible

if TYPE_CHECKING:
    from datetime import timedelta

    import polars as pl
    from deltalake import DeltaTable

_MISREAD: Final = re.compile(r"[\[\]%|^\\\x00-\x1f\x7f\ud800-\udfff]")
_MISREAD_IN_URI: Final = re.compile(rf"{_MISREAD.pattern}|[?#]")
_URI: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")
_ANSI: Final = re.compile("\x1b\\[[0-9;]*m")  # delta-rs colours its errors
AFTER_FORK: Final = (
    "Start child processes with the method 'spawn', such as multiprocessing.get_context('spawn'), "
    "or connect in each child and use no client before the fork."
)


class TableReader:
    """Reads the tables of one deployment; thread safe.

    Args:
        path: folder or URI under which the tables are stored.
        limit: time limit of a request to a store, repeats included.

    Attributes:
        path: as given.
        limit: as given.

    Raises:
        ConfigError: the path has characters that delta-rs takes for parts of a URL, or cannot open.
        SetupError: a package of the extra `tables` is not installed.
    """

    def __init__(self, path: str, limit: timedelta = STORE_LIMIT) -> None:
        require_table_packages()
        self.path = path.rstrip("/")
        self.limit = limit
        if found := set(filter(_MISREAD_IN_URI.match if _URI.match(path) else _MISREAD.match, self.path)):
            raise ConfigError(
                f"The path {visible(self.path)} has {' '.join(map(visible, sorted(found)))} in it, which delta-rs cannot open.",
                hint="Keep the tables in a folder whose name has none of [ ] % | ^ \\, no control characters, and in a URI no ? and #.",
            )
        self._locks: dict[str, threading.Lock] = {}
        self._open: dict[str, OpenTable] = {}
        self._rules: Rules | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The reader of a deployment's tables.

        Raises:
            ConfigError: see above.
        """
        return cls(settings.tables_path, settings.tables.store_timeout)

    @property
    def is_open(self) -> bool:
        """Returns True if a table was read."""
        return bool(self._open)

    # -- the deployment -------------------------------------------------------------------------------------------------

    def rules(self) -> Rules:
        """The rules by which records are judged, as stored with the tables.

        Raises:
            NotFoundError: there are no tables yet.
        """
        if self._rules is None:
            stored = self.stored()
            if not stored:
                raise self._missing()
            self._rules = stored_rules(stored)
        return self._rules

    def agreed_rules(self, partitions: int) -> Rules:
        """The rules, for a process that goes by its own settings.

        Args:
            partitions: how many they say there are.

        Raises:
            NotFoundError: there are no tables yet.
            ConfigError: the deployment was made with another number.
        """
        rules = self.rules()
        check_partitions(rules.partitions, partitions)
        return rules

    def stored(self) -> dict[str, Any]:
        """The settings that the deployment was made with; empty while the tables are being made.

        Raises:
            NotFoundError: there are no tables yet.
        """
        return {row["name"]: json.loads(row["value"]) for row in self._small(DEPLOYMENT, ("name", "value"))}

    def exists(self, table: Table) -> bool:
        """Returns True if a table was made."""
        with self.reached():
            return has_log(f"{self.path}/{table.name}", self.limit)

    def columns(self, table: Table) -> set[str]:
        """Names of the columns that a table has, which may be of an older or newer version."""
        with self._held(table):
            return _columns(self._newest(table))

    def features(self, table: Table) -> set[str]:
        """Returns what of Delta a writer of the table must know, as its log names it; tables of the oldest form name nothing."""
        with self._held(table):
            return set(self._newest(table).protocol().writer_features or ())

    def marks(self) -> dict[tuple[str, int], Mark]:
        """Returns how far the tables are: ("tasks" | "outcomes", partition) → mark; only the offset of its own topic is set in it."""
        columns = tuple(name for name in PROGRESS.names if name != "updated_at")
        found = {}
        for row in self._small(PROGRESS, columns):
            instants = {name: to_us(row[name]) for name in ("folded_until", "appended_at") if row[name] is not None}
            found[row["topic"], row["partition_id"]] = stored_mark(row | instants)
        return found

    def folded_until_us(self) -> int:
        """Tasks due before this stand in `tasks` alone, later ones also in `deferred` (microseconds since the epoch)."""
        return common_edge(mark.folded_until_us for mark in self.marks().values())

    def queue_definitions(self) -> dict[str, tuple[int, str | None]]:
        """Name of a queue → revision and definition (a JSON text; None: deleted) of its newest change in the tables.

        Tables that were made before there were definitions hold none.
        """
        if not self.exists(QUEUES):
            return {}
        rows = self._small(QUEUES, ("name", "revision", "definition"))
        rows.sort(key=lambda row: row["revision"])
        return {row["name"]: (row["revision"], row["definition"]) for row in rows}

    def log_positions(self) -> dict[int, int]:
        """Partition of `logs` → offset below which all lines stand in `attempt_logs`; none where there are no such tables yet."""
        if not self.exists(LOG_PROGRESS):
            return {}
        rows = self._small(LOG_PROGRESS, ("partition_id", "next_offset"))
        return {row["partition_id"]: row["next_offset"] for row in rows}

    # -- look-ups -------------------------------------------------------------------------------------------------------

    def task(self, key: TaskKey) -> ScanRow | None:
        """The stored task of a key (whether open or ended), without its attempts; a cancel without data has kind "cancel"."""
        far = is_far(key.time_us, self.folded_until_us())
        tasks = self._at(TASKS, [key]).filter(*is_key(key))
        if far:
            tasks = folded(tasks, self.deferred(around(key.time_us, key.time_us)).filter(*is_key(key)))
        rows = self._rows(tasks)
        return scan_row(rows[-1]) if rows else None

    def completion(self, key: TaskKey) -> Fact | None:
        """Returns how the task of a key ended, or None."""
        rows = self._rows(first_completions(self._at(COMPLETIONS, [key]).filter(*is_key(key))))
        return fact(rows[0]) if rows else None

    def attempts(self, key: TaskKey, newest: int | None = None, before: int | None = None) -> list[Fact]:
        """Recorded starts and unfinal attempts of a key, oldest first; repeats are possible.

        Args:
            key: of the task.
            newest: only of so many attempts, the last ones, so that the errors of all others are not read; None: of all.
            before: only of attempts with smaller numbers.
        """
        import polars as pl

        chosen = self._at(ATTEMPTS, [key]).filter(*is_key(key))
        if before is not None:
            chosen = chosen.filter(pl.col("attempt") < before)
        if newest is not None:
            numbers = chosen.select("attempt").unique().collect()["attempt"].top_k(newest)
            if numbers.is_empty():
                return []
            chosen = chosen.filter(pl.col("attempt") >= numbers.min())
        rows = self._rows(chosen)
        rows.sort(key=lambda row: attempt_order(row["attempt"], row["outcome"], row["fact_offset"] or 0))
        return [fact(row) for row in rows]

    def logged_attempts(self, key: TaskKey) -> list[int]:
        """Numbers of the attempts of a task whose lines stand in the tables, in order."""
        if not self.exists(ATTEMPT_LOGS):
            return []
        numbers = self._at(ATTEMPT_LOGS, [key]).filter(*is_key(key)).select("attempt").unique().collect()
        return sorted(numbers["attempt"].to_list())

    def log_lines(self, key: TaskKey, attempt: int) -> list[LogRecord]:
        """The lines of an attempt that stand in the tables, one record for each, in no order; repeats are possible."""
        import polars as pl

        lines = self._at(ATTEMPT_LOGS, [key]).filter(*is_key(key), pl.col("attempt") == attempt)
        return [log_record(key, row) for row in self._rows(lines)]

    def completed(self, keys: Collection[TaskKey]) -> set[TaskKey]:
        """Those of the keys that the tables hold a completion of."""
        if not keys:
            return set()
        return {
            TaskKey(*row)
            for row in self._only(keys, self._at(COMPLETIONS, keys)).select(*IDENTITY).collect().iter_rows()
        }

    def known(self, keys: Collection[TaskKey]) -> dict[TaskKey, Known]:
        """Returns what the tables hold of each key: whether it has ended, and its newest attempt."""
        ended = self.completed(keys)
        newest = newest_attempts(self._only(keys, self._at(ATTEMPTS, keys)), "fact_offset") if keys else None
        rows = newest.with_columns(epoch_us("next_at")).collect().to_dicts() if newest is not None else []
        attempts = {TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]): row for row in rows}
        answers = {}
        for key in keys:
            row = attempts.get(key)
            answers[key] = (
                Known(
                    key in ended,
                    row["attempt"],
                    row["used"] or 0,
                    row["next_at"] or 0,
                    work_note(row["work"]),
                    last_error(row["error"]),
                    row["fact_offset"] if row["fact_offset"] is not None else -1,
                )
                if row
                else Known(key in ended)
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

    def lane(
        self, partition: int, ordering_id: str, after: TaskKey | None, limit: int, until_us: int | None = None
    ) -> list[ScanRow]:
        """The next open tasks of a lane.

        Args:
            partition: the lane's partition.
            ordering_id: the lane.
            after: only keys greater than this.
            limit: most rows; as many rows mean that there may be more.
            until_us: only scheduled times up to this, itself included, microseconds since the epoch. Asked for what is near,
                it spares reading what is far.

        Returns:
            In key order. Those that were completed when `completions` was read, after `tasks`, are left out.
        """
        import polars as pl

        within = [pl.col("ordering_id") == ordering_id]
        pruning: Pruning = [[("partition_id", "=", partition)]]
        if after is not None:
            pruning[0].append(("hour", ">=", after.hour))
            within.append(after_key(after))
        if until_us is not None:
            pruning[0].append(("hour", "<=", until_us // HOUR_US))
            within.append(pl.col("scheduled_time") <= pl.lit(from_us(until_us)))

        edge_us = self.folded_until_us()
        tasks = self.frame(TASKS, pruning).filter(*within)
        if not reaches_far(until_us, edge_us):
            return self._uncompleted(tasks, pruning, within, limit)
        far = stands_far(edge_us)
        rows = self._uncompleted(tasks.filter(~far), pruning, within, limit)
        if len(rows) < limit:
            operations = self.deferred(around(edge_us, None), pruning).filter(*within, far)
            rows += self._uncompleted(folded(tasks.filter(far), operations), pruning, within, limit - len(rows))
        return rows

    def _uncompleted(self, tasks: pl.LazyFrame, pruning: Pruning, within: list[pl.Expr], limit: int) -> list[ScanRow]:
        """Those without completion, in key order, with `last_outcome`, `attempt`, `used`, `next_at` of the newest attempt."""
        # `tasks` was opened before completions: what ends in between counts as ended
        ended = self.frame(COMPLETIONS, pruning).filter(*within).select(*IDENTITY)
        rows = tasks.join(ended, on=IDENTITY, how="anti").sort(*IDENTITY).head(limit)
        attempts = newest_attempts(self.frame(ATTEMPTS, pruning).filter(*within))
        return [
            scan_row(row) for row in self._rows(rows.join(attempts, on=IDENTITY, how="left", maintain_order="left"))
        ]

    def deferred(self, conditions: list[tuple[str, str, Any]], pruning: Pruning | None = None) -> pl.LazyFrame:
        """Columns of `tasks` without partition columns; file statistics leave out what cannot fulfil the conditions.

        Conditions on partitions hold for the rows, too: the files of `deferred` are not divided by partition.
        """
        import polars as pl

        alternatives = [[*conditions, *more] for more in pruning or [[]]]
        rows = self.frame(DEFERRED, alternatives)
        wanted = [{value for name, _, value in more if name == "partition_id"} for more in pruning or [[]]]
        if all(wanted):
            rows = rows.filter(pl.col("partition_id").is_in(sorted(set.union(*wanted))))
        return rows.drop(TASKS.partitioned_by)

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
            column.name: polars_type(column.type) for column in table.columns if column.name not in table.partitioned_by
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
            storage_options=None if is_local(self.path) else self._request_limits(),
        )

    def _request_limits(self) -> dict[str, Any]:
        """The time limit of requests to the store, as polars takes it: after an error it asks once more with a new client."""
        ms = round(self.limit.total_seconds() * 1000 / 2)
        return {"timeout": f"{ms}ms", "connect_timeout": f"{ms}ms", "retry_timeout_ms": ms}

    def files(self, table: Table) -> list[dict[str, Any]]:
        """One row per file of a table, from its log: its partition columns, `rows`, `bytes`, and `first_at` if the table has times.

        `first_at` is the earliest scheduled time, as an aware datetime; None where it is not known.
        """
        with self._held(table):
            actions = self._newest(table).get_add_actions(flatten=True)
        columns = {"num_records": "rows", "size_bytes": "bytes", "min.scheduled_time": "first_at"}
        columns |= {f"partition.{name}": name for name in table.partitioned_by}
        values = {short: actions[name].to_pylist() for name, short in columns.items() if name in actions.schema.names}
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]

    def file_names(self, table: Table, known: State = UNKNOWN) -> tuple[State, list[tuple[int, str, int]] | None]:
        """The state of a table, and of each of its files the hour (-1: it has none), the path and the number of rows.

        Args:
            table: which.
            known: a state whose files are known already: for that one, None comes in their place.
        """
        with self._held(table):
            newest = self._newest(table)
            state = self._open[table.name].state
            if state == known:
                return state, None
            actions = newest.get_add_actions(flatten=True)
        names, paths = actions.schema.names, actions["path"].to_pylist()
        hours = actions["partition.hour"].to_pylist() if "partition.hour" in names else [-1] * len(paths)
        return state, list(zip(hours, paths, actions["num_records"].to_pylist(), strict=True))

    def history(self, table: Table, limit: int) -> list[dict[str, Any]]:
        """The newest commits of a table, the newest first, as its log has them, each with its `version`."""
        with self._held(table):
            self._newest(table)
            newest = self._open[table.name].state.version
        log, found = log_of(f"{self.path}/{table.name}", self.limit), list[dict[str, Any]]()
        with self.reached(), suppress(FileNotFoundError):  # a clean-up has deleted the older ones
            for version in range(newest, max(newest - limit, -1), -1):
                with closing(log.opened(commit_name(version))) as file:
                    infos = (json.loads(line).get("commitInfo") for line in file)
                    info: dict[str, Any] = next(filter(None, infos), {})
                found.append(info | {"version": version})
        return found

    def size(self, table: Table) -> dict[str, Any]:
        """Rows, files, bytes and version of a table, from its log."""
        with self._held(table):
            newest = self._newest(table)
            files = newest.get_add_actions(flatten=True)
            version = self._open[table.name].state.version
        rows, sizes = files["num_records"].to_pylist(), files["size_bytes"].to_pylist()
        counts = {"rows": sum(number or 0 for number in rows), "files": len(sizes), "bytes": sum(sizes)}
        return {"table": table.name} | counts | {"version": version}

    def sizes(self) -> list[dict[str, Any]]:
        """Rows, files, bytes and version of all tables."""
        return [self.size(table) for table in TABLES]

    def _at(self, table: Table, keys: Iterable[TaskKey]) -> pl.LazyFrame:
        partitions = self.rules().partitions
        hours: dict[int, set[int]] = {}
        for key in keys:
            hours.setdefault(partition_of(key.ordering_id, partitions), set()).add(key.hour)
        return self.frame(
            table, [[("partition_id", "=", number), ("hour", "in", sorted(within))] for number, within in hours.items()]
        )

    def _files(self, table: Table, pruning: Pruning | None) -> list[str]:
        with self._held(table):
            files: list[str] = self._newest(table).file_uris(file_pruning_predicate=pruning or None)
        return [unquote(file) if file.startswith("/") else file for file in files]

    def _small(self, table: Table, columns: tuple[str, ...]) -> list[dict[str, Any]]:
        """The rows of a table of a few rows; a column that the table does not have is null."""
        with self.reached():
            return self.frame(table).select(columns).collect().to_dicts()

    @contextmanager
    def _held(self, table: Table) -> Iterator[None]:
        """Guards what is open of one table: a table whose files do not answer keeps nobody from the others."""
        with self._locks.setdefault(table.name, threading.Lock()), self.reached():
            yield

    def _newest(self, table: Table) -> DeltaTable:
        from deltalake.exceptions import TableNotFoundError

        one = self._open.get(table.name)
        if one is None:
            one = self._open[table.name] = OpenTable(f"{self.path}/{table.name}", self.limit)
        try:
            return one.newest()
        except TableNotFoundError:
            raise self._missing() if one.state == UNKNOWN else self._gone() from None

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Turns errors of the place of the tables, and panics of the library, into errors of ours, which loops may try again.

        Raises:
            UnreachableError: the place cannot be reached, or delta-rs panicked.
            ConflictError: this process was forked from one that has used delta-rs.
        """
        try:
            yield
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # of delta-rs and polars; it is no Exception
                raise self._panic(error) from None
            if not isinstance(error, OSError):
                raise
            reason = " ".join(_ANSI.sub("", str(error)).replace("↳", ":").split())[:400]
            hint = "Region, endpoint and credentials are read from the environment: docs/lakehouse.md."
            raise UnreachableError(
                f"The tables at {self.path} cannot be reached: {reason}.",
                hint=hint if "://" in self.path else "See that the folder is there and may be read.",
            ) from error

    def _panic(self, error: BaseException) -> SchedulerError:
        if "Forked process" in str(error):
            return ConflictError(
                f"The tables at {self.path} cannot be read in this process: it was forked from one that has read tables.",
                hint=AFTER_FORK,
            )
        return UnreachableError(
            f"A library failed at the tables {self.path}: {str(error)[:400]}.",
            hint="A file of the tables may be damaged, or the library has a defect.",
        )

    def _missing(self) -> NotFoundError:
        return NotFoundError(
            f"There are no tables at {self.path}.", hint="Run `scylla-spark init` first, or `scylla-spark up`."
        )

    def _gone(self) -> UnreachableError:
        return UnreachableError(
            f"The tables at {self.path} were there, and are not now.",
            hint="They can be read again as soon as they are back.",
        )

    def _rows(self, frame: pl.LazyFrame) -> list[dict[str, Any]]:
        with self.reached():
            return in_us(frame).collect().to_dicts()


def _columns(table: DeltaTable) -> set[str]:
    return {field.name for field in table.schema().fields}
