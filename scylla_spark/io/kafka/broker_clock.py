"""What append times tell of our clock."""

from __future__ import annotations

from typing import NamedTuple


class ClockOffset(NamedTuple):
    """How far our clock is ahead of the broker's, in microseconds; negative: behind. One append time gives two bounds.

    Attributes:
        least_us: it is at least this.
        most_us: it is at most this.
    """

    least_us: int
    most_us: int

    def certain_us(self) -> int:
        """Returns how far it is off for certain, with its sign; 0: it may be right."""
        return max(self.least_us, 0) or min(self.most_us, 0)


def clock_offset(append_ms: int, sent_us: int, received_us: int) -> ClockOffset:
    """The record was appended after it was sent, and before it was received.

    Args:
        append_ms: the broker's append time of a record of ours.
        sent_us: our clock when it was sent.
        received_us: our clock when it was known to stand in the log. The later that is, the less is known: a clock that is three seconds
            ahead looks like one that is right and hears of its record three seconds late.
    """
    append_us = append_ms * 1000
    return ClockOffset(sent_us - append_us - 1000, received_us - append_us)
