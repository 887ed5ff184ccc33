"""Threads for calls that may hang: none of them keeps the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class DaemonThreads:
    """Carries out each call at once, in a thread that is free, or else in a new one.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._free = 0
        self._lock = threading.Lock()

    def do(self, call: Callable[[], object]) -> None:
        """Carries out a call, which raises nothing."""
        with self._lock:
            is_free = self._free > 0
            self._free -= is_free
        self._calls.put(call)
        if not is_free:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Lets the threads end, each when its call does."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._free += 1
        self._calls.put(None)  # for the next one
