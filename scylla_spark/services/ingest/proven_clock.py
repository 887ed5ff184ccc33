"""The time by which history is deleted and folded: of a clock that the broker's append times have shown to be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scylla_spark.clock import both_us
from scylla_spark.duration import duration_us

_NEAR_US: Final = duration_us("10m")


class ProvenClock:
    """A machine that boots with its clock weeks ahead must not delete what is kept for two weeks.

    A record that was appended within the last ten minutes shows that the clock is right; from then on the boot clock counts, which nobody
    sets. Before that, time stands where the newest record was appended.

    Args:
        read: wall time and boot time of one moment, in microseconds.
    """

    def __init__(self, read: Callable[[], tuple[int, int]] = both_us) -> None:
        self._read = read
        self._newest_us = 0
        self._offset_us: int | None = None  # of a wall clock that was right, to the boot clock

    @property
    def proven(self) -> bool:
        """Returns True if it has been shown to be right."""
        return self._offset_us is not None

    def shown(self, appended_us: int) -> None:
        """The broker has appended a record.

        Args:
            appended_us: its append time, microseconds since the epoch.
        """
        wall, boot = self._read()
        self._newest_us = max(self._newest_us, appended_us)
        if abs(wall - appended_us) <= _NEAR_US:
            self._offset_us = wall - boot

    def now(self) -> int:
        """Microseconds since the epoch, never later than what is proven."""
        wall, boot = self._read()
        if self._offset_us is None:
            return min(wall, self._newest_us)
        return min(wall, max(boot + self._offset_us, self._newest_us))
