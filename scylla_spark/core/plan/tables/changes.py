"""What has come to a watched table since a trigger last fired, and when the trigger may fire on it. Pure.

Each fire owns a range of versions (from_version, to_version]: all versions after the fire before, up to the newest that was seen. So
ranges of consecutive fires touch, and a version that does not count for the trigger lies inside one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from scylla_spark.core.plan.tables.commit import Commit, Count
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.errors import ArgumentError

WHOLE: Final = ""
"""The key of a table as a whole; no partition has it, since the log writes an empty value as null."""

Key = str | None


class Cursor(NamedTuple):
    """How far a table was seen.

    Attributes:
        table_id: which table; "": whichever is found.
        version: the last version that was seen; -1: none.
    """

    table_id: str
    version: int

    def after(self, commit: Commit) -> Cursor:
        """The cursor behind a commit, which may have given the table a new id."""
        return Cursor(commit.header.table_id if commit.header else self.table_id, commit.version)


class Grown(NamedTuple):
    """What has come since the last fire, of a table or of one of its partitions.

    Attributes:
        commits: that count.
        rows: that they wrote, as far as the log says.
        bytes: of their new files.
        unsaid: commits of which the log does not say how many rows they wrote.
        first_us: when the first of them was written; microseconds since the epoch, as is …
        last_us: … when the last was. Writers' clocks that are ahead of ours are not believed.
    """

    commits: int
    rows: int
    bytes: int
    unsaid: int
    first_us: int
    last_us: int


class Fired(NamedTuple):
    """The last fire of a table or partition.

    Attributes:
        version: the last version that it owns.
        at_us: when; None: it was skipped, so throttling does not go by it.
    """

    version: int
    at_us: int | None


class Range(NamedTuple):
    """What a fire would own.

    Attributes:
        key: of the partition, or `WHOLE`.
        from_version: the last version before it.
        to_version: its last version.
        grown: what came in it.
        due_us: when it may fire; microseconds since the epoch.
    """

    key: Key
    from_version: int
    to_version: int
    grown: Grown
    due_us: int


@dataclass(frozen=True, slots=True)
class Pending:
    """What one trigger has seen of its table. One partition's state is a few numbers, so many may be watched.

    Attributes:
        start_version: the last version that does not count for the trigger at all.
        version: the newest that was seen.
        grown: what has come since the last fire, by partition or as a whole; none where nothing that counts came.
        fired: the last fires, likewise.
    """

    start_version: int
    version: int
    grown: Mapping[Key, Grown] = field(default_factory=dict)
    fired: Mapping[Key, Fired] = field(default_factory=dict)

    def from_version(self, key: Key) -> int:
        """The last version that earlier fires own."""
        last = self.fired.get(key)
        return self.start_version if last is None else last.version


def begun(version: int) -> Pending:
    """A trigger that begins to count after a version."""
    return Pending(version, version)


def counted(trigger: OnTable, pending: Pending, commits: Iterable[Commit], now: int) -> Pending:
    """Adds commits to what is pending. Those that were seen before are passed over, so a repeat changes nothing.

    Args:
        trigger: says which commits count.
        pending: what has come before.
        commits: the next ones, without gaps, the oldest first.
        now: microseconds since the epoch.

    Raises:
        ArgumentError: a version is missing between them.
    """
    return recounted(trigger, pending, _without_gaps(pending.version, commits), now)


def _without_gaps(version: int, commits: Iterable[Commit]) -> Iterator[Commit]:
    for commit in commits:
        if commit.version > version + 1:
            raise ArgumentError(f"Version {version + 1} is missing before {commit.version}.")
        version = max(version, commit.version)
        yield commit


def recounted(trigger: OnTable, pending: Pending, commits: Iterable[Commit], now: int) -> Pending:
    """As `counted`, of commits that were read before: between them those may be missing that do not count.

    Args:
        trigger: says which commits count.
        pending: what has come before.
        commits: the next ones, the oldest first.
        now: microseconds since the epoch.
    """
    grown, version = dict(pending.grown), pending.version
    for commit in commits:
        if commit.version <= version:
            continue
        version = commit.version
        at_us = min(commit.timestamp_us, now)
        for key, count in _shares(trigger, commit):
            grown[key] = _sum(grown.get(key), count, _rows(trigger, commit, count), at_us)
    return replace(pending, version=version, grown=grown)


def bridged(pending: Pending, version: int) -> Pending:
    """Goes on after a version although those up to it cannot be read any more; the next range holds the gap."""
    return replace(pending, version=max(version, pending.version))


def fired(pending: Pending, key: Key, at_us: int | None) -> Pending:
    """Takes what is pending of a table or partition as owned by a fire, up to the newest version that was seen.

    Args:
        pending: before.
        key: of the partition, or `WHOLE`.
        at_us: when it fired; None: it was skipped.
    """
    before = pending.fired.get(key)
    at_us = at_us if at_us is not None or before is None else before.at_us
    left = {name: grown for name, grown in pending.grown.items() if name != key}
    return replace(pending, grown=left, fired={**pending.fired, key: Fired(pending.version, at_us)})


def ranges(trigger: OnTable, pending: Pending) -> list[Range]:
    """Returns what may fire, now or later without anything else coming: the first due first."""
    found = (range_of(trigger, pending, key) for key in pending.grown)
    return sorted((one for one in found if one is not None), key=turn_of)


def turn_of(one: Range) -> tuple[int, bool, str]:
    """By which ranges are sorted: the first due first."""
    return one.due_us, one.key is not None, one.key or ""


def range_of(trigger: OnTable, pending: Pending, key: Key) -> Range | None:
    """Returns what may fire of a table or partition, now or later without anything else coming; None: nothing.

    Args:
        trigger: what is waited for.
        pending: what has come.
        key: of the partition, or `WHOLE`.
    """
    grown, last = pending.grown.get(key), pending.fired.get(key)
    if grown is None:
        return None
    due_us = due_at(trigger, grown, last.at_us if last else None)
    return None if due_us is None else Range(key, pending.from_version(key), pending.version, grown, due_us)


def counts(trigger: OnTable, commit: Commit) -> bool:
    """Returns True if a trigger counts commits of this kind."""
    return commit.changes_data and (not trigger.operations or commit.operation in trigger.operations)


def keys_of(trigger: OnTable, commit: Commit) -> list[Key]:
    """Of which partitions something in a commit counts, or `WHOLE`."""
    return [key for key, _ in _shares(trigger, commit)]


def due_at(trigger: OnTable, grown: Grown, last_fire_us: int | None) -> int | None:
    """Returns when what has come may fire: settled and not throttled; None: it is not enough. All in microseconds since the epoch.

    What is too little is enough once the last fire is so long ago as the trigger says; before the first, since it came. A commit of
    which the log does not say how many rows it wrote counts as enough of them: to fire early is better than never.

    Args:
        trigger: what is waited for.
        grown: what has come.
        last_fire_us: when it fired last; None: never.
    """
    enough_rows = grown.rows >= trigger.min_rows or grown.unsaid > 0
    enough = enough_rows and grown.bytes >= trigger.min_bytes
    if grown.commits < max(trigger.min_commits, 1):
        enough = False
    if not enough and not trigger.overdue_us:
        return None
    settled_us = grown.last_us + trigger.settle_us
    if not enough:
        settled_us = max(settled_us, (last_fire_us or grown.first_us) + trigger.overdue_us)
    return settled_us if last_fire_us is None else max(settled_us, last_fire_us + trigger.throttle_us)


def narrowed(commit: Commit, total: Count, by: Mapping[str, Mapping[Key, Count]]) -> Commit:
    """A commit of which only some rows count: one that has none of them changes nothing.

    Args:
        commit: as it is.
        total: its rows that count.
        by: column → value → rows that count.
    """
    touched = any(rows != 0 for rows in (total.rows_added, total.rows_removed))
    kept = {
        column: {key: count for key, count in parts.items() if count.rows_added != 0 or count.rows_removed != 0}
        for column, parts in by.items()
    }
    return commit._replace(total=total, by=kept, operation=commit.operation if touched else "")


def _shares(trigger: OnTable, commit: Commit) -> Iterable[tuple[Key, Count]]:
    """Returns what of a commit counts, by key."""
    if not counts(trigger, commit):
        return ()
    if trigger.per:
        return commit.by.get(trigger.per, {}).items()
    return ((WHOLE, commit.total),)


def _rows(trigger: OnTable, commit: Commit, count: Count) -> int | None:
    """New rows; deleted rows where deletes are what the trigger asks for."""
    asked = commit.operation == "delete" and "delete" in trigger.operations
    return count.rows_removed if asked else count.rows_added


def _sum(before: Grown | None, count: Count, rows: int | None, at_us: int) -> Grown:
    so_far = before or Grown(0, 0, 0, 0, at_us, at_us)
    return Grown(
        so_far.commits + 1,
        so_far.rows + (rows or 0),
        so_far.bytes + count.bytes_added,
        so_far.unsaid + (rows is None),
        min(so_far.first_us, at_us),
        max(so_far.last_us, at_us),
    )
