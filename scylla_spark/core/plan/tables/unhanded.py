"""What has come to a table and is no run's yet, as one trigger counts it; what is handed over is taken out without reading again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scylla_spark.core.plan.state.schedule_entry import Handed
from scylla_spark.core.plan.tables.changes import (
    WHOLE,
    Cursor,
    Fired,
    Key,
    Pending,
    bridged,
    counted,
    keys_of,
    recounted,
)
from scylla_spark.core.plan.tables.commit import Commit
from scylla_spark.core.plan.tables.past_ranges import key_of, part_of
from scylla_spark.core.plan.triggers.trigger import OnTable

MOST_KEPT: Final = 100_000
"""So many partitions of commits are kept in memory; where more wait, the log is read again when some of them are handed over."""


class _Kept(NamedTuple):
    """A commit that counts, and the cursor before it."""

    before: Cursor
    commit: Commit


class Unhanded:
    """What has come after what was handed over.

    Args:
        trigger: says what counts.
        handed: what runs have.

    Attributes:
        handed: likewise, as it was told last.
        pending: what has come.
        cursor: how far the table was read.
    """

    def __init__(self, trigger: OnTable, handed: Handed) -> None:
        self.handed = handed
        self.pending = _stands(handed)
        self.cursor = Cursor(handed.table_id, handed.version)
        self._trigger = trigger
        self._kept: list[_Kept] = []
        self._size = 0  # partitions of those; more than are kept: all but the first were let go of

    def count(self, commits: Iterable[Commit], now: int) -> None:
        """Takes in what was read.

        Args:
            commits: with only the rows that count, the oldest first, without gaps.
            now: microseconds since the epoch.
        """
        ours: list[Commit] = []
        for commit in commits:
            ours.append(self._ours(commit))
            self._keep(ours[-1])
            self.cursor = self.cursor.after(commit)
        self.pending = counted(self._trigger, self.pending, ours, now)

    def is_at(self, table_id: str) -> None:
        """It was found out which table it is where the cursor stands."""
        self.cursor = self.cursor._replace(table_id=table_id)

    def go_on_after(self, cursor: Cursor) -> None:
        """What lies before a cursor cannot be read any more; the next range holds it."""
        self.pending, self.cursor = bridged(self.pending, cursor.version), cursor

    def hand_over(self, handed: Handed, now: int) -> bool:
        """Takes out what runs have got.

        Args:
            handed: what they have.
            now: microseconds since the epoch.

        Returns:
            Whether what is left is known; if not, nothing has changed, and the log is to be read again.
        """
        is_within = self.handed.version <= handed.version <= self.cursor.version
        is_same = handed.is_of(self.handed.table_id, self.cursor.table_id)
        if self._size > MOST_KEPT or not is_within or not is_same:
            return False
        left = [one for one in self._kept if one.commit.version > handed.version]
        self.handed, self._kept, self._size = handed, [], 0
        ours = [self._ours(commit) for _, commit in left]
        for (before, _), commit in zip(left, ours, strict=True):
            self._keep(commit, before)
        pending = recounted(self._trigger, _stands(handed), ours, now)
        self.pending = bridged(pending, self.cursor.version)
        return True

    @property
    def all_handed(self) -> Cursor:
        """Behind the last version up to which runs have all that counts."""
        return self._kept[0].before if self._kept else self.cursor

    @property
    def slowest(self) -> frozenset[Key]:
        """The partitions that wait for longest: those of the first commit that no run has."""
        return frozenset(keys_of(self._trigger, self._kept[0].commit) if self._kept else ())

    def _keep(self, commit: Commit, before: Cursor | None = None) -> None:
        size = len(keys_of(self._trigger, commit))
        if size == 0:
            return
        self._size += size
        if not self._kept or self._size <= MOST_KEPT:
            self._kept.append(_Kept(before or self.cursor, commit._replace(header=None)))
        else:
            del self._kept[1:]

    def _ours(self, commit: Commit) -> Commit:
        """A commit without the partitions to which it was handed over before."""
        per = self._trigger.per
        if not per:
            return commit
        shares = commit.by.get(per, {})
        left = {key: count for key, count in shares.items() if commit.version > self.handed.of_part(part_of(key))[0]}
        return commit._replace(by={per: left})


def _stands(handed: Handed) -> Pending:
    """Returns what is pending where nothing has come since versions were handed over."""
    fired: dict[Key, Fired] = {WHOLE: Fired(handed.version, handed.at_us or None)}
    parts: Mapping[str, tuple[int, int]] = handed.parts
    fired |= {key_of(part): Fired(version, at_us or None) for part, (version, at_us) in parts.items()}
    return Pending(handed.version, handed.version, {}, fired)
