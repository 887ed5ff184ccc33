"""A Delta table of a user's that triggers watch: its commits, one after the other, without a JVM and without loading a snapshot.

A look at a quiet table asks for two files: whether the last commit that was seen is still the one it was, and whether the next one is
there. The log is listed only where one of the answers is odd.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.tables.changes import Cursor, counts
from scylla_spark.core.plan.tables.commit import Commit, Unreadable, read_commit
from scylla_spark.core.plan.tables.table_metadata import Header
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.log_place import STORE_LIMIT, Stamp, commit_name, is_local, log_of
from scylla_spark.io.delta.watched.log_files import Listing, header_at, ids_in, lines, listing
from scylla_spark.io.delta.watched.matching_rows import CannotCountError, RowFilter, uncounted
from scylla_spark.table_place import TablePlaces
from scylla_spark.visible import as_clause

if TYPE_CHECKING:
    from datetime import timedelta

Trouble = Literal[
    "missing", "vanished", "replaced", "rewound", "truncated", "unreadable", "unreachable", "unsuitable", "uncounted"
]

MOST_COMMITS: Final = 1_000
_LISTED_AT: Final = (4, 16)  # looks at a quiet table: a commit that a clean-up has deleted is missed soon, …
_LISTED_EVERY: Final = 64  # … and a table that stays quiet is listed seldom
UNREACHABLE: Final = "unreachable"


class TableTrouble(NamedTuple):
    """Why a table cannot be watched on from where it was.

    Attributes:
        kind: missing: there is no table yet; vanished: there is none any more; replaced: another lies in its place; rewound: it
            has fewer versions than were seen; truncated: commits were deleted before they were seen; unreadable: a commit is
            damaged or being written; unreachable: the place does not answer; unsuitable: the table is not as the trigger needs it;
            uncounted: it cannot be told how many rows of some commits meet the conditions, so they are enough.
        why: for people, with the values.
        resume: where to go on; None: nowhere else, asking again is all there is.
        gap: the first and the last version that cannot be read any more.
    """

    kind: Trouble
    why: str
    resume: Cursor | None = None
    gap: tuple[int, int] | None = None


class _Seen(NamedTuple):
    """The cursor of the last look, the stamp of its commit, and what is true of the table there."""

    cursor: Cursor
    stamp: Stamp | None
    header: Header


def watchable_places(settings: Settings) -> TablePlaces:
    """Returns which tables triggers may watch. Folders are compared as they are written, and where links lead."""

    def resolved(*places: str) -> tuple[str, ...]:
        return (*places, *(os.path.realpath(place) for place in places if is_local(place)))

    return TablePlaces(settings.plan.tables, resolved(settings.tables_path), resolved(*settings.plan.allowed_places))


def located(table: str, places: TablePlaces) -> str:
    """The canonical place of a table.

    Args:
        table: an absolute path, a URI, or a name such as `main.sales.orders`.
        places: which tables triggers may watch.

    Raises:
        ArgumentError: the name is not known, the path is relative, or triggers may not watch the table.
    """
    place = places.of(table)
    if place is None:
        raise ArgumentError(
            f"The place of the table {table!r} is not known.",
            hint="Give an absolute path or a URI, or name its place in the setting plan.tables.",
        )
    if is_local(place):
        places.check(os.path.realpath(place), table)
    return place


class WatchedTable:
    """Reads the commits of one table as they come. Not thread safe; what it remembers only spares reading.

    Args:
        path: absolute path, or URI of an object store, in its canonical form.
        limit: time limit of a request to a store, repeats included.
    """

    def __init__(self, path: str, limit: timedelta = STORE_LIMIT) -> None:
        self.path = path
        self._log = log_of(path, limit)
        self._seen: _Seen | None = None
        self._quiet = 0  # looks without a commit, one after the other

    @property
    def header(self) -> Header | None:
        """Returns what is true of the table at the last version that was read; None before the first look."""
        return self._seen.header if self._seen else None

    def start(self, trigger: OnTable) -> Cursor | TableTrouble:
        """Returns where a trigger begins to count; a table that is still to come will count from its first version on.

        Raises:
            ArgumentError: the table is not partitioned by the trigger's column, or has not yet the version to start after.
        """
        try:
            found = listing(self._log)
            if found is None:
                return self._absent(Cursor("", -1))
            version = {"now": found.newest, "earliest": found.earliest - 1}.get(str(trigger.start), trigger.start)
            assert isinstance(version, int)
            header = header_at(self._log, found, version)
        except OSError as error:
            return self._unreachable(error)
        if header is None:
            return self._headless()
        if version > found.newest:
            raise ArgumentError(
                f"The table {self.path} has no version {version} to start after.",
                hint=f"Its newest is {found.newest}.",
            )
        if trouble := self._unsuitable(header, [trigger.per] if trigger.per else []):
            raise ArgumentError(trouble.why, hint="Name a partition column in `per`, or leave it out.")
        return Cursor(header.table_id, version)

    def poll(self, cursor: Cursor, by: Sequence[str] = (), most: int = MOST_COMMITS) -> list[Commit] | TableTrouble:
        """The commits after a cursor, without gaps, the oldest first; an empty list: nothing has happened.

        Args:
            cursor: the last commit that was seen.
            by: partition columns to count by.
            most: at most so many commits; fewer than that: it was all there is.
        """
        try:
            return self._polled(cursor, by, most)
        except OSError as error:
            return self._unreachable(error)

    def narrow(self, commits: Sequence[Commit], trigger: OnTable) -> list[Commit] | TableTrouble:
        """The same commits with only the rows counted that meet a trigger's conditions; new files of those that count are read.

        Args:
            commits: as `poll` gave them lately; data that are deleted meanwhile cannot be counted, and their commit says so.
            trigger: may have conditions.

        Raises:
            ArgumentError: the table was not polled before.
        """
        header = self.header
        if not trigger.where:
            return list(commits)
        if header is None:
            raise ArgumentError(f"The table {self.path} was not looked at yet.", hint="Poll it first.")
        rows = RowFilter(self._log, header, trigger.where, [trigger.per] if trigger.per else [])
        try:
            return [self._narrowed(commit, rows) if counts(trigger, commit) else commit for commit in commits]
        except CannotCountError as error:
            return TableTrouble(
                "unsuitable", f"Rows of the table {self.path} cannot be counted by conditions: {as_clause(str(error))}."
            )
        except OSError as error:
            return self._unreachable(error)

    def _unreachable(self, error: OSError) -> TableTrouble:
        return TableTrouble(UNREACHABLE, f"The table {self.path} cannot be read: {as_clause(str(error))}.")

    def _narrowed(self, commit: Commit, rows: RowFilter) -> Commit:
        try:
            with lines(self._log, commit_name(commit.version)) as found:
                return rows.narrowed(commit, found)
        except FileNotFoundError:
            return uncounted(commit, "it was deleted from the log")

    def _polled(self, cursor: Cursor, by: Sequence[str], most: int) -> list[Commit] | TableTrouble:
        seen = self._seen
        if seen is None or seen.cursor != cursor or not self._stands(seen):
            self._seen = None
            found = self._looked_up(cursor)
            if isinstance(found, TableTrouble):
                return found
            seen = self._seen = found
        if trouble := self._unsuitable(seen.header, by):
            return trouble
        commits, last, wrong = self._read_on(seen, by, most)
        if commits and self._stamp(seen.cursor.version) != seen.stamp:  # replaced while it was read
            self._seen = None
            return self._polled(cursor, by, most) if self._log.names() is not None else self._absent(cursor)
        self._seen = last
        if wrong and not commits:
            return TableTrouble("unreadable", f"{wrong.why} It is a commit of the table {self.path}.")
        self._quiet = 0 if commits else self._quiet + 1
        is_listed = self._quiet in _LISTED_AT or (self._quiet > 0 and self._quiet % _LISTED_EVERY == 0)
        return (self._hole_in_log(seen) if is_listed else None) or commits

    def _hole_in_log(self, seen: _Seen) -> TableTrouble | None:
        """That commits after the last one that was seen were deleted, though later ones are there; seen by a listing alone."""
        found = listing(self._log)
        hole = self._hole(seen.cursor, found, seen.header) if found is not None else None
        self._seen = None if hole else self._seen
        return hole

    def _stands(self, seen: _Seen) -> bool:
        """Returns True if the last commit is still there and the same; where there was none, nothing is known without a listing."""
        return seen.stamp is not None and self._stamp(seen.cursor.version) == seen.stamp

    def _stamp(self, version: int) -> Stamp | None:
        return self._log.stamp(commit_name(version)) if version >= 0 else None

    def _read_on(
        self, seen: _Seen, by: Sequence[str], most: int
    ) -> tuple[list[Commit], _Seen, Unreadable | None]:  # fmt: skip
        commits: list[Commit] = []
        while len(commits) < most:
            version = seen.cursor.version + 1
            stamp = self._stamp(version)
            if stamp is None:
                break
            try:
                with lines(self._log, commit_name(version)) as found:
                    commit = read_commit(version, found, stamp.written_us, by, seen.header)
            except FileNotFoundError:
                break
            if isinstance(commit, Unreadable):
                return commits, seen, commit
            commits.append(commit)
            seen = _Seen(seen.cursor.after(commit), stamp, commit.header or seen.header)
        return commits, seen, None

    def _looked_up(self, cursor: Cursor) -> _Seen | TableTrouble:
        """Finds a cursor in the log as it is now."""
        found = listing(self._log)
        if found is None:
            return self._absent(cursor)
        header = header_at(self._log, found, cursor.version)
        if header is None:
            return self._headless()
        if trouble := self._other(cursor, found, header):
            return trouble
        if trouble := self._hole(cursor, found, header):
            return trouble
        return _Seen(Cursor(header.table_id, cursor.version), self._stamp(cursor.version), header)

    def _hole(self, cursor: Cursor, found: Listing, header: Header) -> TableTrouble | None:
        """That the commits after a cursor are gone, but not the table's end: a clean-up need not have got through, nor in order.

        The commit is asked for once more, since one that was written while names were listed may be missing among them.
        """
        following = next((version for version in found.commits if version > cursor.version), found.newest + 1)
        if following <= cursor.version + 1 or self._stamp(cursor.version + 1) is not None:
            return None
        gap = (cursor.version + 1, following - 1)
        why = f"Versions {gap[0]} to {gap[1]} of the table {self.path} were deleted from its log before they were seen."
        return TableTrouble("truncated", why, self._behind(found, gap[1], header), gap)

    def _behind(self, found: Listing, version: int, known: Header) -> Cursor:
        """The cursor behind a version, with the id that the table has there, so that whoever resumes there finds it again."""
        header = header_at(self._log, found, version) or known
        return Cursor(header.table_id, version)

    def _other(self, cursor: Cursor, found: Listing, header: Header) -> TableTrouble | None:
        """What is wrong with a log in which a cursor is not; a table that was replaced in place is the same, in one log with two ids."""
        replaced = cursor.table_id not in ("", header.table_id) and cursor.table_id not in ids_in(self._log, found)
        if replaced:
            why = f"Another table lies at {self.path}: its id is {header.table_id}, it was {cursor.table_id}."
            return TableTrouble("replaced", why, self._behind(found, found.earliest - 1, header))
        if found.newest < cursor.version:
            why = f"The table {self.path} ends with version {found.newest}; {cursor.version} was seen."
            return TableTrouble("rewound", why, Cursor(header.table_id, found.newest))
        return None

    def _absent(self, cursor: Cursor) -> TableTrouble:
        if cursor.version < 0 and not cursor.table_id:
            return TableTrouble("missing", f"There is no Delta table at {self.path}.", cursor)
        return TableTrouble("vanished", f"There is no Delta table at {self.path} any more.")

    def _headless(self) -> TableTrouble:
        return TableTrouble("unreadable", f"The log of the table {self.path} does not say which table it is.")

    def _unsuitable(self, header: Header, by: Sequence[str]) -> TableTrouble | None:
        foreign = [column for column in by if column not in header.partition_columns]
        if not foreign:
            return None
        columns = ", ".join(header.partition_columns) or "nothing"
        return TableTrouble("unsuitable", f"The table {self.path} is partitioned by {columns}, not by {foreign[0]}.")
