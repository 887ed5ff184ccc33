"""The threads that release the sessions of attempts that have ended, before anybody hears of their end."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from scylla_spark.core.tasks.task import NOT_STARTED, Outcome
from scylla_spark.executors.interface import Sink

_log = logging.getLogger(__name__)
_MOST_AT_ONCE: Final = 16
_HAND_ON_S: Final = 5.0


class _Ends:
    """Outcomes that were told together.

    Attributes:
        outcomes: as they came.
        unreleased: numbers of those whose sessions are to be released still.
    """

    __slots__ = ("outcomes", "unreleased")

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = outcomes
        self.unreleased = {one.id for one in outcomes if one.outcome != NOT_STARTED}


class Releases:
    """Hands outcomes on, in the order in which they came, once what their attempts have running in Spark was ended.

    The next attempt of a task starts when the outcome is known, and must not meet what the one before has left running. Sessions
    are released side by side, so what waits for a slow server waits for one release, not for all before it.

    Args:
        release: ends what an invocation has running, by its number; waits some seconds at most, and may raise.
        sink: takes the outcomes.
        sessions: how many attempts run at most at once.
    """

    def __init__(self, release: Callable[[int], None], sink: Sink, *, sessions: int) -> None:
        self._release = release
        self._sink = sink
        self._ends: deque[_Ends] = deque()
        self._waiting: queue.SimpleQueue[tuple[_Ends, int] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._stopping = self._hurried = False
        self._handing_on = threading.Thread(target=self._hand_on, name="connect-outcomes", daemon=True)
        self._releasing = [
            threading.Thread(target=self._main, name=f"connect-release-{number}", daemon=True)
            for number in range(min(sessions, _MOST_AT_ONCE))
        ]

    def start(self) -> None:
        """Begins to release and to hand on."""
        for thread in (self._handing_on, *self._releasing):
            thread.start()

    def put(self, outcomes: Sequence[Outcome]) -> None:
        """Takes outcomes; returns at once."""
        ends = _Ends(outcomes)
        numbers = list(ends.unreleased)
        with self._changed:
            self._ends.append(ends)
            self._changed.notify_all()
        for number in numbers:
            self._waiting.put((ends, number))

    @property
    def unreleased(self) -> int:
        """Returns how many attempts have ended whose sessions may have something running."""
        with self._changed:
            return sum(len(ends.unreleased) for ends in self._ends)

    def stop(self, within_s: float) -> None:
        """Returns when all has been handed on.

        Args:
            within_s: how long releases are waited for; what has not been released then is handed on all the same.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._ends, within_s):
                _log.warning("sessions of Spark Connect were not released in time, at a stop")
            self._hurried = True
            self._changed.notify_all()
        for _ in self._releasing:
            self._waiting.put(None)
        self._handing_on.join(_HAND_ON_S)

    def _main(self) -> None:
        """One thread that releases."""
        while (item := self._waiting.get()) is not None:
            ends, number = item
            self._try(number)
            with self._changed:
                ends.unreleased.discard(number)
                self._changed.notify_all()

    def _try(self, number: int) -> None:
        try:
            self._release(number)
        except Exception as error:  # the server is gone, or does not answer: then there is nothing to be done from here
            _log.warning("a session of Spark Connect was not released: %s", type(error).__name__)

    def _hand_on(self) -> None:
        while (ends := self._next()) is not None:
            self._sink(ends.outcomes)

    def _next(self) -> _Ends | None:
        """Returns what is handed on next; None: there will be nothing."""
        with self._changed:
            self._changed.wait_for(self._is_ready)
            self._changed.notify_all()  # who stops waits until there is nothing left
            return self._ends.popleft() if self._ends else None

    def _is_ready(self) -> bool:
        if not self._ends:
            return self._stopping
        return self._hurried or not self._ends[0].unreleased
