"""Those who follow the lines of a task: each has a thread some of the time, and a connection to Kafka, so there are few at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from scylla_spark.api import problems
from scylla_spark.api.http.request_slots import waiting
from scylla_spark.api.problems import Problem

_MOST: Final = 16


class Followers:
    """Room for some followers.

    Attributes:
        threads: in which they read, so that no other request waits for one of theirs.
    """

    def __init__(self) -> None:
        self.threads = anyio.CapacityLimiter(_MOST)
        self._count = 0

    @contextmanager
    def room(self) -> Iterator[None]:
        """As long as this lasts, one more follows.

        Raises:
            Problem: too many do.
        """
        if self._count >= _MOST:
            raise Problem(
                problems.BUSY, f"{_MOST} clients follow logs already.", hint="Read pages instead, or try again later."
            )
        self._count += 1
        try:
            with waiting():
                yield
        finally:
            self._count -= 1
