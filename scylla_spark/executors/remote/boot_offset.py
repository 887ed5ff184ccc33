"""How far the boot clock of another machine is ahead of ours, and how well that is known."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

WINDOW_US: Final = 60_000_000
"""Measurements older than this are not used."""
_DRIFT: Final = 200e-6  # two crystals that are each 100 parts per million off


class Offset(NamedTuple):
    """The other clock minus ours, in microseconds.

    Attributes:
        us: the estimate.
        error_us: the other clock is at most this far from the estimate.
    """

    us: int
    error_us: int


class _Sample(NamedTuple):
    at_us: int
    us: int
    error_us: int

    @property
    def rank(self) -> float:
        """The error without the drift that all measurements share: the least is the best at any time."""
        return self.error_us - _DRIFT * self.at_us


class BootOffset:
    """Estimates the offset from round trips: half of the least round trip of the last minute bounds the error (RFC 5905, section 8).

    A boot clock never steps. If one does all the same (a virtual machine that was moved), the measurements contradict each other, and
    those before the step are dropped.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()  # each is better than all that follow, so the first is the best

    def note(self, sent_us: int, received_us: int, answered_us: int, heard_us: int) -> None:
        """Adds a round trip.

        Args:
            sent_us: our clock when we sent.
            received_us: their clock when they received that.
            answered_us: their clock when they answered.
            heard_us: our clock when we received the answer.
        """
        round_trip_us = (heard_us - sent_us) - (answered_us - received_us)
        if round_trip_us < 0 or answered_us < received_us:
            return  # no clocks that run forward give that
        new = _Sample(heard_us, (received_us - sent_us + answered_us - heard_us) // 2, round_trip_us // 2 + 1)
        known = self.best(heard_us)
        if known is not None and abs(known.us - new.us) > known.error_us + new.error_us:
            self._samples.clear()
        while self._samples and self._samples[-1].rank >= new.rank:
            self._samples.pop()
        self._samples.append(new)

    def best(self, now_us: int) -> Offset | None:
        """The best estimate; None if there is no measurement of the last minute."""
        while self._samples and self._samples[0].at_us < now_us - WINDOW_US:
            self._samples.popleft()
        if not self._samples:
            return None
        best = self._samples[0]
        return Offset(best.us, best.error_us + round(_DRIFT * (now_us - best.at_us)))
