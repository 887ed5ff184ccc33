"""Which watched tables are looked at next: those of a store that does not answer never take the turns of all others."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from scylla_spark.core.plan.tables.watch import Place

SLOW_US: Final = 2_000_000  # a look that takes longer is no longer waited for by others
MOST_QUICK: Final = 4
MOST_SLOW: Final = 8  # of places of which it is known
MOST_LOOKS: Final = 64  # of all: so many may hang for the first time at once
_FIRST_WAIT_US: Final = 1_000_000
LONGEST_WAIT_US: Final = 60_000_000


@dataclass(slots=True)
class _Turn:
    begun_us: int | None = None  # boot clock; None: nobody looks
    wait_us: int = 0  # after the last look, which had no answer; 0: it had
    next_us: int = 0


class LookTurns:
    """Says which places may be looked at. Times are of the boot clock, in microseconds."""

    def __init__(self) -> None:
        self._turns: dict[Place, _Turn] = {}

    def is_due(self, place: Place, now: int) -> bool:
        """Returns True if nobody looks at a place, and it need not wait after looks without an answer."""
        turn = self._turns.setdefault(place, _Turn())
        return turn.begun_us is None and turn.next_us <= now

    def is_slow(self, place: Place) -> bool:
        """Returns True if the last look at a place had no answer."""
        return self._turns[place].wait_us > 0

    def has_room(self, place: Place, now: int) -> bool:
        """Returns True if one more look may begin."""
        looks = [turn for turn in self._turns.values() if turn.begun_us is not None]
        slow = sum(turn.wait_us > 0 or now - (turn.begun_us or 0) >= SLOW_US for turn in looks)
        if len(looks) >= MOST_LOOKS:
            return False
        return slow < MOST_SLOW if self.is_slow(place) else len(looks) - slow < MOST_QUICK

    def begin(self, place: Place, now: int) -> None:
        """A look begins."""
        self._turns[place].begun_us = now

    def end(self, place: Place, now: int, *, answered: bool) -> None:
        """A look has ended.

        Args:
            place: that was looked at.
            now: boot clock.
            answered: whether the store has answered; if not, the next look waits longer and longer, up to a minute.
        """
        turn = self._turns[place]
        turn.begun_us = None
        turn.wait_us = 0 if answered else min(max(2 * turn.wait_us, _FIRST_WAIT_US), LONGEST_WAIT_US)
        turn.next_us = now + turn.wait_us if turn.wait_us else 0

    def keep(self, places: Container[Place]) -> None:
        """Forgets all other places at which nobody looks."""
        self._turns = {
            place: turn for place, turn in self._turns.items() if place in places or turn.begun_us is not None
        }
