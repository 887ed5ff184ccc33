"""Looks at the engine from outside: whoever reaches the port may look as often as he likes, and the engine does its work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from scylla_spark.clock import boot_us
from scylla_spark.services.dispatch.mailbox import Mailbox

_PATIENCE_US: Final = 5_000_000
_SHARED_US: Final = 250_000  # so old may be what is shown
_REST: Final = 4  # times as long as a look took, there is none: looks have a fifth of the engine's time at most
_LONGEST_REST_US: Final = 1_000_000

T = TypeVar("T")


class Looks:
    """One look at a time, with rests between them; thread safe.

    Args:
        mailbox: of the engine.
        now: returns the boot clock in microseconds.
        pause: waits for so many seconds.
    """

    def __init__(
        self, mailbox: Mailbox, now: Callable[[], int] = boot_us, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._mailbox = mailbox
        self._now = now
        self._pause = pause
        self._turn = threading.Lock()
        self._rested_us = 0  # boot clock from which on there may be another look
        self._shown: dict[str, tuple[int, Any]] = {}  # name → when it was seen, and what

    def look(self, question: Callable[[int], T], name: str = "") -> T:
        """Returns what a question finds.

        Args:
            question: is called in the engine's thread with the time.
            name: of what is the same for all who ask; what was found a moment ago is shown again. Empty: it is not.

        Raises:
            TimeoutError: the engine did not get to it in time.
        """
        deadline_us = self._now() + _PATIENCE_US
        if not self._turn.acquire(timeout=_PATIENCE_US / 1e6):
            raise TimeoutError
        try:
            return self._shared(name, question, deadline_us) if name else self._ask(question, deadline_us)
        finally:
            self._turn.release()

    def _shared(self, name: str, question: Callable[[int], T], deadline_us: int) -> T:
        seen_us, shown = self._shown.get(name, (-_SHARED_US, None))
        if self._now() - seen_us >= _SHARED_US:
            shown = self._ask(question, deadline_us)
            self._shown[name] = self._now(), shown
        return shown  # type: ignore[no-any-return]

    def _ask(self, question: Callable[[int], T], deadline_us: int) -> T:
        """Asks the engine after a rest; the turn is ours."""
        self._pause(max(self._rested_us - self._now(), 0) / 1e6)

        def timed(now: int) -> T:
            begun = self._now()
            try:
                return question(now)
            finally:
                took = self._now() - begun
                self._rested_us = self._now() + min(_REST * took, _LONGEST_REST_US)

        return self._mailbox.ask(timed, timeout_s=max(deadline_us - self._now(), 0) / 1e6)
