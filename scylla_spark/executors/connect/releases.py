"""The thread that releases the sessions of attempts that have ended, before anybody hears of their end."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from scylla_spark.core.task import NOT_STARTED, Outcome
from scylla_spark.executors.interface import Sink

_log = logging.getLogger(__name__)


class Releases:
    """Hands outcomes on once what their attempts have running in Spark was ended.

    The next attempt of a task starts when the outcome is known, and must not meet what the one before has left running.

    Args:
        release: ends what an invocation has running, by its number; waits some seconds at most, and may raise.
        sink: takes the outcomes.
    """

    def __init__(self, release: Callable[[int], None], sink: Sink) -> None:
        self._release = release
        self._sink = sink
        self._ended: queue.SimpleQueue[Sequence[Outcome] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="connect-releases", daemon=True)

    def start(self) -> None:
        """Begins to hand on."""
        self._thread.start()

    def put(self, outcomes: Sequence[Outcome]) -> None:
        """Takes outcomes; returns at once."""
        self._ended.put(outcomes)

    def stop(self) -> None:
        """Returns when all has been handed on."""
        self._ended.put(None)
        self._thread.join()

    def _main(self) -> None:
        while (outcomes := self._ended.get()) is not None:
            for one in outcomes:
                if one.outcome != NOT_STARTED:
                    self._try(one.id)
            self._sink(outcomes)

    def _try(self, number: int) -> None:
        try:
            self._release(number)
        except Exception as error:  # the server is gone, or does not answer: then there is nothing to be done from here
            _log.warning("a session of Spark Connect was not released: %s", type(error).__name__)
