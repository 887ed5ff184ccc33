"""Places of requests that are at work: a request that only waits for something to happen gives its place to others meanwhile.

So many who wait, which costs little, keep nobody from being answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from scylla_spark.api import problems
from scylla_spark.api.problems import Problem


class Places:
    """Places of one process; its user is one event loop.

    Args:
        most: requests at work at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._at_work = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """As long as this lasts, one more request is at work, but for the time that it is `waiting`.

        Raises:
            Problem: too many are.
        """
        if not self.has_room():
            raise Problem(problems.BUSY, f"{self._most} requests are being answered.")
        place = _Place(self)
        reset = _place.set(place)
        try:
            yield
        finally:
            _place.reset(reset)
            place.end()

    def has_room(self) -> bool:
        """Whether one more may begin."""
        return self._at_work < self._most

    def move(self, by: int) -> None:
        """One more is at work, or one less."""
        self._at_work += by


class _Place:
    """The place of one request, which ends with the request, whatever still waits in its name."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._waits = 0  # parts of the request may wait at the same time
        self._ended = False
        places.move(1)

    def wait(self) -> None:
        self._waits += 1
        if self._waits == 1 and not self._ended:
            self._places.move(-1)

    def go_on(self) -> None:
        self._waits -= 1
        if not self._waits and not self._ended:
            self._places.move(1)

    def end(self) -> None:
        self._ended = True
        if not self._waits:
            self._places.move(-1)


_place: Final[ContextVar[_Place | None]] = ContextVar("place", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """As long as this lasts, the request at hand only waits, and leaves its place to others."""
    place = _place.get()
    if place is None:  # of those that need none
        yield
        return
    place.wait()
    try:
        yield
    finally:
        place.go_on()
