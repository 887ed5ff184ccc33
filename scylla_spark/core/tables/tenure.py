"""What an answer belongs to: the time that a partition is held, and how far the tables were when it was read.

An answer may come late: after the partition was left and taken again, or after memory has let go of what the tables hold by
now. Both are told from the answer itself, so that no delay, however long, can bring back what is over.
"""

from __future__ import annotations

from typing import NamedTuple


class Tenure(NamedTuple):
    """One time that this process holds a partition. Every question, answer and feed names the one that it belongs to.

    Attributes:
        partition: its number.
        serial: grows with every take of any partition by this process.
    """

    partition: int
    serial: int


class Basis(NamedTuple):
    """How far the tables were, at least, when an answer was read from them: next offsets of both topics of a partition."""

    tasks_offset: int = 0
    outcomes_offset: int = 0

    def covers(self, other: Basis) -> bool:
        """Whether tables that were so far hold all that tables hold which are as far as `other`."""
        return self.tasks_offset >= other.tasks_offset and self.outcomes_offset >= other.outcomes_offset

    def or_later(self, other: Basis) -> Basis:
        """The later of both, topic by topic."""
        return Basis(max(self.tasks_offset, other.tasks_offset), max(self.outcomes_offset, other.outcomes_offset))
