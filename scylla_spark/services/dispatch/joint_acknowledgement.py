"""The acknowledgements of records that belong together: whoever sent them hears once, of all or of the first that was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Acknowledgements:
    """Counts what Kafka says of several records.

    Its client says it in its own thread, or, of a record whose fate is known already, in the thread that asks: so there is a lock.

    Args:
        count: how many records there are, from 1.
        told: is called once: with None when all are acknowledged, or with the error of the first that is not; from any thread.
    """

    def __init__(self, count: int, told: Callable[[BaseException | None], None]) -> None:
        self._left = count
        self._told = told
        self._lock = threading.Lock()

    def acknowledged(self, _metadata: object = None) -> None:
        """One stands in its topic."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._told(None)

    def lost(self, error: BaseException) -> None:
        """One was not acknowledged; it may stand there all the same."""
        with self._lock:
            first, self._left = self._left > 0, -1
        if first:
            self._told(error)
