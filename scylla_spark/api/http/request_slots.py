"""Slots of requests at work. A request that only waits for an event releases its slot, so that many waiting requests block no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from scylla_spark.api import problems
from scylla_spark.api.problems import Problem


class RequestSlots:
    """The slots of one process, for use by one event loop.

    Args:
        most: requests at work at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._at_work = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Reserves a slot for a request, except while it is `waiting`.

        Raises:
            Problem: no slot is free.
        """
        if not self.has_free_slot():
            raise Problem(problems.BUSY, f"{self._most} requests are in progress.")
        slot = _Slot(self)
        reset = _slot.set(slot)
        try:
            yield
        finally:
            _slot.reset(reset)
            slot.end()

    def has_free_slot(self) -> bool:
        """Returns whether a slot is free."""
        return self._at_work < self._most

    def move(self, by: int) -> None:
        """Changes the number of requests at work."""
        self._at_work += by


class _Slot:
    """The slot of one request. It ends with the request, even if parts of it still wait."""

    def __init__(self, slots: RequestSlots) -> None:
        self._slots = slots
        self._waits = 0  # parts of the request may wait at the same time
        self._ended = False
        slots.move(1)

    def wait(self) -> None:
        self._waits += 1
        if self._waits == 1 and not self._ended:
            self._slots.move(-1)

    def resume(self) -> None:
        self._waits -= 1
        if not self._waits and not self._ended:
            self._slots.move(1)

    def end(self) -> None:
        self._ended = True
        if not self._waits:
            self._slots.move(-1)


_slot: Final[ContextVar[_Slot | None]] = ContextVar("slot", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Releases the slot of the current request while it waits."""
    slot = _slot.get()
    if slot is None:  # of those that need none
        yield
        return
    slot.wait()
    try:
        yield
    finally:
        slot.resume()
