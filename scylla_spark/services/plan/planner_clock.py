"""The time that a planner decides by: of a clock that a fence has shown to be right, and that nobody has set since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scylla_spark.clock import both_us
from scylla_spark.errors import ClockError
from scylla_spark.io.kafka.broker_clock import clock_offset

TOLERANCE_US: Final = 1_000_000


class ClockWasSet(ClockError):
    """The clock was set, and nothing has shown yet whether it is right now."""


class ClockIsWrong(ClockError):
    """The clock differs from the broker's by more than a second, as an append time has shown."""


class PlannerClock:
    """The clock of one tenure. Whether it was set is seen in the very reading that is used.

    Args:
        read: wall time and boot time of one moment, in microseconds.
    """

    def __init__(self, read: Callable[[], tuple[int, int]] = both_us) -> None:
        self._read = read
        wall, boot = read()
        self._offset_us = wall - boot  # it changes when the clock is set
        self._last_us = wall

    def now(self) -> int:
        """Microseconds since the epoch; they never fall.

        Raises:
            ClockWasSet: it was set by more than a second since the tenure began.
        """
        wall, boot = self._read()
        step_us = wall - boot - self._offset_us
        if abs(step_us) > TOLERANCE_US:
            raise ClockWasSet(
                f"The clock of this machine was set by {step_us / 1e6:+.1f} s.",
                hint="A new fence shows whether it is right now.",
            )
        self._last_us = max(self._last_us, wall)
        return self._last_us

    def check(self, append_ms: int, sent_us: int, received_us: int, *, proves: bool = False) -> None:
        """Holds the clock against the broker's append time of a record of ours.

        Args:
            append_ms: the append time.
            sent_us: our clock when the record was sent.
            received_us: our clock when it was known to stand in the log.
            proves: it has to show that the clock is not ahead: nothing has done so before.

        Raises:
            ClockIsWrong: the clocks differ by more than a second.
            ClockWasSet: it was received too late to show that they do not.
        """
        offset = clock_offset(append_ms, sent_us, received_us)
        if abs(offset.certain_us()) > TOLERANCE_US:
            raise ClockIsWrong(
                f"This machine's clock is {offset.certain_us() / 1e6:+.1f} s off the broker's: nothing is planned.",
                hint="Set the clock; planning goes on by itself.",
            )
        if proves and offset.most_us > TOLERANCE_US:
            raise ClockWasSet(
                f"The broker's answer came {offset.most_us / 1e6:.1f} s late: it does not show whether this machine's clock is right.",
                hint="A new fence is tried.",
            )
