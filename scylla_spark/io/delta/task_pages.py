"""Pages and counts of tasks by a filter, quick also where a million are stored: hour by hour, and what did not change is remembered.

The status of tasks is a join of three tables by hour. Files never change, so the rows of an hour are joined once for the files that
it has, and kept in memory; a commit of ingest makes anew only the hours that it touched. Tasks due beyond what is folded
(`core.tables.progress`) are in no hour yet, and are one share of their own. States follow from the rows and the moment.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.core.tables.progress import ALL_FOLDED_US
from scylla_spark.core.tasks.filter import OneOf, TaskFilter
from scylla_spark.core.tasks.key import HOUR_US, TaskKey, partition_of
from scylla_spark.io.delta.open_table import UNKNOWN, State
from scylla_spark.io.delta.past_status import as_it_was
from scylla_spark.io.delta.rows import IDENTITY, Pruning, after_key, around, before_key, folded, in_us, stands_far
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_status_rows import (
    LISTED,
    asks_for_details,
    passing,
    scheduled_within,
    status_rows,
    with_state,
)
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, DEFERRED, TASKS, Table

if TYPE_CHECKING:
    import polars as pl

MOST_BYTES: Final = 512 * 1024 * 1024
_FAR: Final = 1 << 40  # the share of what is not folded yet stands behind all hours
_READ_ROWS: Final = 500_000  # of tasks that are joined at once
_FIRST_ROWS: Final = 20_000  # that are looked at first for a page; then twice as many, and so on
_TABLES: Final = (TASKS, COMPLETIONS, ATTEMPTS, DEFERRED)


class Urgency(NamedTuple):
    """The place of a task among others, the highest priority first, of equals the newest.

    Attributes:
        priority: of the task.
        enqueued_us: when it was enqueued, microseconds since the epoch; 0: nobody knows.
        key: of the task.
    """

    priority: int
    enqueued_us: int
    key: TaskKey


class _Files(NamedTuple):
    """The files of a table in a state: hour → their paths, and how many rows they have."""

    state: State = UNKNOWN
    paths: Mapping[int, frozenset[str]] = {}
    rows: Mapping[int, int] = {}


class _View(NamedTuple):
    """What the tables hold now: where near ends, and the files of each."""

    edge_us: int
    files: Mapping[str, _Files]

    def shares(self) -> list[int]:
        """Hours that have tasks, in order; then the far ones, if there are any."""
        edge = -(-self.edge_us // HOUR_US)
        hours = sorted(hour for hour in self.files[TASKS.name].paths if hour < edge)
        has_far = self.files[DEFERRED.name].paths or any(
            hour >= self.edge_us // HOUR_US for hour in self.files[TASKS.name].paths
        )
        return [*hours, _FAR] if self.edge_us < ALL_FOLDED_US and has_far else hours

    def mark(self, share: int) -> tuple[Any, ...]:
        """Returns what the rows of a share follow from."""
        near = (TASKS, COMPLETIONS, ATTEMPTS)
        if share != _FAR:
            found = tuple(self.files[table.name].paths.get(share) for table in near)
            return (*found, self.edge_us if (share + 1) * HOUR_US > self.edge_us else None)
        first = self.edge_us // HOUR_US
        beyond = [self.files[table.name].paths for table in near]
        later = [frozenset(path for hour, paths in one.items() if hour >= first for path in paths) for one in beyond]
        return (*later, self.files[DEFERRED.name].paths.get(-1), self.edge_us)

    def size(self, share: int) -> int:
        """About how many tasks a share has."""
        rows = self.files[TASKS.name].rows
        return rows.get(share, 0) if share != _FAR else self.files[DEFERRED.name].rows.get(-1, 0)


class _Kind(NamedTuple):
    """The rows of an hour that are made and kept together.

    Attributes:
        detailed: with fingerprints and workers, which few ask for.
        partition: only those of this partition; None: all.
    """

    detailed: bool
    partition: int | None

    def pruning(self, *hours: tuple[str, str, Any]) -> Pruning:
        """Conditions by which files are left out."""
        return [[*hours, *([] if self.partition is None else [("partition_id", "=", self.partition)])]]


class TaskPages:
    """Answers by filter; thread safe.

    Args:
        readers: of the deployment.
        most_bytes: about how much is remembered.
    """

    def __init__(self, readers: TableReader, most_bytes: int = MOST_BYTES) -> None:
        self._readers = readers
        self._most = most_bytes
        self._lock = threading.Lock()
        self._files: dict[str, _Files] = {}
        self._kept: OrderedDict[tuple[int, _Kind], tuple[tuple[Any, ...], pl.DataFrame]] = OrderedDict()
        self._bytes = 0

    def page(
        self, wanted: TaskFilter, limit: int, *, now: int, after: TaskKey | None = None, as_of_us: int | None = None
    ) -> list[dict[str, Any]]:
        """Tasks in key order.

        Args:
            wanted: which.
            limit: most rows.
            now: microseconds since the epoch.
            after: only keys greater than this.
            as_of_us: as it was then, as far as rows tell (see `status_rows`), microseconds since the epoch; None: now.

        Returns:
            Rows with the columns `LISTED`; instants are microseconds since the epoch.
        """
        return [
            row
            for some in self.frames(wanted, now=now, limit=limit, after=after, as_of_us=as_of_us)
            for row in in_us(some.lazy()).collect().to_dicts()
        ]

    def frames(
        self,
        wanted: TaskFilter,
        *,
        now: int,
        limit: int | None = None,
        after: TaskKey | None = None,
        as_of_us: int | None = None,
    ) -> Iterator[pl.DataFrame]:
        """The rows of `page` as frames, some at a time, so that however many there are, few are in memory; instants are instants.

        Args:
            wanted: which.
            now: microseconds since the epoch.
            limit: most rows; None: all.
            after: only keys greater than this.
            as_of_us: as in `page`.
        """
        left = limit
        for some in self._passing(wanted, now, as_of_us, _FIRST_ROWS, after=after):
            rows = some.select(*LISTED)
            found = (rows if left is None else rows.head(left)).collect()
            yield found
            left = None if left is None else left - len(found)
            if left == 0:
                return

    def urgent_page(
        self, wanted: TaskFilter, limit: int, *, now: int, after: Urgency | None = None, as_of_us: int | None = None
    ) -> list[dict[str, Any]]:
        """Tasks as `page` gives them, the highest priority first, of equals the newest; looks at all that pass, and holds one page of them.

        Args:
            wanted: which.
            limit: most rows.
            now: microseconds since the epoch.
            after: only tasks behind this one.
            as_of_us: as in `page`.
        """
        import polars as pl

        later = [_behind(after)] if after is not None else []
        best: pl.DataFrame | None = None
        for some in self._passing(wanted, now, as_of_us, _READ_ROWS):
            rows = some.filter(*later).select(*LISTED)
            parts = [rows] if best is None else [best.lazy(), rows]
            best = _by_urgency(pl.concat(parts)).head(limit).collect()
        return [] if best is None else in_us(best.lazy()).collect().to_dicts()

    def newest_page(
        self, wanted: TaskFilter, limit: int, *, now: int, before: TaskKey | None = None, as_of_us: int | None = None
    ) -> list[dict[str, Any]]:
        """Tasks as `page` gives them, in the opposite order: those with the latest scheduled times first.

        Args:
            wanted: which.
            limit: most rows.
            now: microseconds since the epoch.
            before: only keys smaller than this.
            as_of_us: as in `page`.
        """
        found: list[dict[str, Any]] = []
        for some in self._passing(wanted, now, as_of_us, _FIRST_ROWS, before=before, newest_first=True):
            rows = some.select(*LISTED).tail(limit - len(found))
            found += reversed(in_us(rows).collect().to_dicts())
            if len(found) == limit:
                break
        return found

    def count(self, wanted: TaskFilter, *, now: int, as_of_us: int | None = None) -> int:
        """Returns how many tasks pass.

        Args:
            wanted: which.
            now: microseconds since the epoch.
            as_of_us: as in `page`.
        """
        import polars as pl

        rows = self._passing(wanted, now, as_of_us, _READ_ROWS)
        return sum(int(some.select(pl.len()).collect().item()) for some in rows)

    def totals(self, wanted: TaskFilter, *, now: int, as_of_us: int | None = None) -> list[dict[str, Any]]:
        """Returns how many tasks each queue has in each state, of those that pass; rows with `queue`, `state`, `count`.

        Args:
            wanted: which.
            now: microseconds since the epoch.
            as_of_us: as in `page`.
        """
        import polars as pl

        rows = self._passing(wanted, now, as_of_us, _READ_ROWS)
        parts = [some.group_by("queue", "state").agg(count=pl.len()).collect() for some in rows]
        if not parts:
            return []
        return pl.concat(parts).group_by("queue", "state").agg(pl.col("count").sum()).sort("queue", "state").to_dicts()

    def keys(self, wanted: TaskFilter, *, now: int) -> Iterator[list[TaskKey]]:
        """The keys of all tasks that pass, in order, some at a time."""
        for some in self._passing(wanted, now, None, _READ_ROWS):
            rows = in_us(some.select(*IDENTITY)).collect()
            yield [TaskKey(*row) for row in rows.iter_rows()]

    # -- shares -----------------------------------------------------------------------------------------------------------

    def _passing(
        self,
        wanted: TaskFilter,
        now: int,
        as_of_us: int | None,
        least: int,
        *,
        after: TaskKey | None = None,
        before: TaskKey | None = None,
        newest_first: bool = False,
    ) -> Iterator[pl.LazyFrame]:
        """Rows of `with_state` that pass, in key order: of so many tasks first, then of twice as many, and so on up to a bound.

        With `newest_first` the last of them come first; within a group they stand in key order all the same.
        """
        import polars as pl

        moment = now if as_of_us is None else as_of_us
        conditions = passing(wanted, moment)
        conditions += [after_key(after)] if after is not None else []
        conditions += [before_key(before)] if before is not None else []
        view, kind = self._view(), self._kind(wanted)
        begin_us, end_us = scheduled_within(wanted)
        end_us = end_us if before is None else min(end_us, before.time_us + 1)
        first = max(begin_us, after.time_us if after is not None else 0) // HOUR_US
        shares = [share for share in view.shares() if share >= first and (share == _FAR or share * HOUR_US < end_us)]
        if shares[-1:] == [_FAR] and end_us <= view.edge_us:
            shares.pop()
        order = list(reversed(shares)) if newest_first else shares
        for group in _grouped(order, view.size, least, _READ_ROWS):
            frames = self._frames(view, sorted(group), as_of_us, kind)
            yield with_state(pl.concat([frame.lazy() for frame in frames]), moment).filter(*conditions)

    def _kind(self, wanted: TaskFilter) -> _Kind:
        lanes = [one.values for one in wanted.conditions if isinstance(one, OneOf) and one.field == "lane"]
        if wanted.partition is None and len(lanes) == 1 and len(lanes[0]) == 1:
            wanted = wanted._replace(partition=partition_of(lanes[0][0], self._readers.rules().partitions))
        return _Kind(asks_for_details(wanted), wanted.partition)

    def _view(self) -> _View:
        edge_us = self._readers.folded_until_us()
        with self._lock:
            for table in _TABLES:
                known = self._files.get(table.name, _Files())
                state, found = self._readers.file_names(table, known.state)
                if found is not None:
                    self._files[table.name] = _by_hour(state, found)
            return _View(edge_us, dict(self._files))

    def _frames(self, view: _View, shares: Sequence[int], as_of_us: int | None, kind: _Kind) -> list[pl.DataFrame]:
        """Rows of shares; those with fingerprints and workers are made and kept beside those without, as few ask for them."""
        if as_of_us is not None:
            return self._past(view, shares, as_of_us, kind)
        with self._lock:
            missing = [share for share in shares if self._kept.get((share, kind), (None,))[0] != view.mark(share)]
            found = dict(self._read(view, missing, None, kind))
            for share, frame in found.items():
                self._keep((share, kind), view.mark(share), frame)
            for share in shares:
                if share not in found:
                    found[share] = self._kept[share, kind][1]
                    self._kept.move_to_end((share, kind))
            self._trim()
        return [found[share] for share in shares]

    def _past(self, view: _View, shares: Sequence[int], as_of_us: int, kind: _Kind) -> list[pl.DataFrame]:
        """Shares as they were; of most, what is kept of now tells enough."""
        found = {
            share: as_it_was(frame, as_of_us)
            for share, frame in zip(shares, self._frames(view, shares, None, kind), strict=True)
        }
        unknown = [share for share, frame in found.items() if frame is None]
        found |= dict(self._read(view, unknown, as_of_us, kind))
        return [frame for share in shares if (frame := found[share]) is not None]

    def _keep(self, share: tuple[int, _Kind], mark: tuple[Any, ...], frame: pl.DataFrame) -> None:
        old = self._kept.pop(share, None)
        self._bytes += _size(frame) - (_size(old[1]) if old is not None else 0)
        self._kept[share] = (mark, frame)

    def _trim(self) -> None:
        while self._bytes > self._most and self._kept:
            _, (_, frame) = self._kept.popitem(last=False)
            self._bytes -= _size(frame)

    def _read(
        self, view: _View, shares: Sequence[int], until_us: int | None, kind: _Kind
    ) -> Iterator[tuple[int, pl.DataFrame]]:
        """Reads shares, many small hours together."""
        hours = [share for share in shares if share != _FAR]
        for group in _grouped(hours, view.size, _READ_ROWS, _READ_ROWS):
            yield from self._hours(view, group, until_us, kind)
        if _FAR in shares:
            yield _FAR, self._far(view, until_us, kind)

    def _hours(
        self, view: _View, hours: list[int], until_us: int | None, kind: _Kind
    ) -> Iterator[tuple[int, pl.DataFrame]]:
        import polars as pl

        read = self._of(kind.pruning(("hour", "in", hours)))
        tasks = read(TASKS)
        if view.edge_us < ALL_FOLDED_US:
            tasks = tasks.filter(~stands_far(view.edge_us))
        rows = status_rows(tasks, read(COMPLETIONS), read(ATTEMPTS), until_us, detailed=kind.detailed).sort(*IDENTITY)
        hour = (pl.col("scheduled_time").dt.epoch("us") // HOUR_US).alias("hour")
        parts = rows.with_columns(hour).collect().partition_by("hour", as_dict=True, include_key=False)
        empty = rows.limit(0).collect() if len(parts) < len(hours) else None
        for one in hours:
            found = parts.get((one,), empty)
            assert found is not None
            yield one, found

    def _far(self, view: _View, until_us: int | None, kind: _Kind) -> pl.DataFrame:
        edge_us = view.edge_us
        read = self._of(kind.pruning(("hour", ">=", edge_us // HOUR_US)))
        far = stands_far(edge_us)
        operations = self._readers.deferred(around(edge_us, None), kind.pruning()).filter(far)
        tasks = folded(read(TASKS).filter(far), operations)
        ends = [read(table).filter(far) for table in (COMPLETIONS, ATTEMPTS)]
        return status_rows(tasks, ends[0], ends[1], until_us, detailed=kind.detailed).sort(*IDENTITY).collect()

    def _of(self, pruning: Pruning) -> Callable[[Table], pl.LazyFrame]:
        return lambda table: self._readers.frame(table, pruning)


def _grouped(shares: Iterable[int], size: Callable[[int], int], least: int, most: int) -> Iterator[list[int]]:
    """Shares in order, so many rows together at least, the next time twice as many, up to a bound; what is far begins a group."""
    group: list[int] = []
    rows = 0
    for share in shares:
        if share == _FAR and group:
            yield group
            group, rows = [], 0
        group.append(share)
        rows += size(share)
        if rows >= least:
            yield group
            group, rows, least = [], 0, min(2 * least, most)
    if group:
        yield group


def _urgency() -> tuple[pl.Expr, pl.Expr]:
    import polars as pl

    return pl.col("priority").fill_null(0), pl.col("enqueued_at").dt.epoch("us").fill_null(0)


def _by_urgency(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.sort(*_urgency(), *IDENTITY, descending=[True, True, *[False] * len(IDENTITY)])


def _behind(one: Urgency) -> pl.Expr:
    """Whether a task stands behind another."""
    priority, enqueued = _urgency()
    older = (enqueued < one.enqueued_us) | ((enqueued == one.enqueued_us) & after_key(one.key))
    return (priority < one.priority) | ((priority == one.priority) & older)


def _size(frame: pl.DataFrame) -> int:
    return int(frame.estimated_size())


def _by_hour(state: State, found: list[tuple[int, str, int]]) -> _Files:
    paths: dict[int, set[str]] = defaultdict(set)
    rows: dict[int, int] = defaultdict(int)
    for hour, path, count in found:
        paths[hour].add(path)
        rows[hour] += count or 0
    return _Files(state, {hour: frozenset(some) for hour, some in paths.items()}, dict(rows))
