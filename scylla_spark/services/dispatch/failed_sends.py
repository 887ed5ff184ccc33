"""Sends to `outcomes` that failed: the engine fences again as soon as it hears of one, so it hears later, the more there were."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

from scylla_spark.core.tables.progress import Tenure
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.mailbox import Message

log = get_logger("dispatch")

_FIRST_US: Final = 100_000
_MOST_US: Final = 5_000_000
NEVER_US: Final = 1 << 62


class FailedSends:
    """What the engine is still to hear of sends that failed; used in its thread only.

    A broker that refuses at once, for want of a right or because it has no such partition, would be sent fences without end.

    Args:
        boot_us: clock that never steps.
    """

    def __init__(self, boot_us: Callable[[], int]) -> None:
        self._boot_us = boot_us
        self._rows: dict[Tenure, int] = {}  # failures in a row, since the last send that was acknowledged
        self._later: list[tuple[int, int, Message]] = []  # (when, number, what): a heap
        self._numbers = count()

    def failed(self, tenure: Tenure, error: BaseException, tell: Message) -> None:
        """A send failed; the first of several failures in a row is logged.

        Args:
            tenure: whose send it was.
            error: why.
            tell: tells the engine; it is kept for a while.
        """
        before = self._rows.get(tenure, 0)
        if not before:
            log.warning("send failed, tried again until it succeeds", partition=tenure.partition, error=repr(error))
        self._rows[tenure] = before + 1
        pause = min(_FIRST_US << min(before, 10), _MOST_US)
        heapq.heappush(self._later, (self._boot_us() + pause, next(self._numbers), tell))

    def succeeded(self, tenure: Tenure) -> None:
        """A send was acknowledged: the next failure is the first again."""
        failures = self._rows.pop(tenure, 0)
        if failures:
            log.info("sends succeed again", partition=tenure.partition, failures=failures)

    def forget(self, tenure: Tenure) -> None:
        """The partition is not held any more."""
        self._rows.pop(tenure, None)

    def due(self) -> list[Message]:
        """Returns what the engine hears now, in order."""
        found = []
        while self._later and self._later[0][0] <= self._boot_us():
            found.append(heapq.heappop(self._later)[2])
        return found

    def wait_us(self) -> int:
        """Microseconds until something is due; NEVER_US: nothing waits."""
        return max(self._later[0][0] - self._boot_us(), 0) if self._later else NEVER_US
