"""The bound of the time computations of one request. A definition of some kilobytes can ask for minutes of computation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio.from_thread
from starlette.requests import ClientDisconnect, Request

from scylla_spark.api import problems
from scylla_spark.api.problems import Kind, Problem
from scylla_spark.core.plan.times import fire_times

MOST_EVALUATIONS: Final = 50_000
"""Looks at single rules in one request; each takes some 20 to 50 µs, so this is about two seconds."""
LONG_EVALUATIONS: Final = 2_000
"""A request that takes more is long: of those, one at a time is served, as each slows down everything in the process."""
_turn: Final = threading.Lock()


@contextmanager
def bounded_effort(request: Request) -> Iterator[None]:
    """Bounds the times of schedules that a request computes, in its task and in the threads that this starts.

    The work ends with a problem where it is too much or another long one is under way, and when the client has gone.
    """
    effort = _Effort(request)
    try:
        with fire_times.effort(effort.spend):
            yield
    finally:
        effort.end()


class _Effort:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._looks = 0
        self._has_turn = False
        self._problem: tuple[Kind, str, str] | None = None

    def spend(self) -> None:
        """Counts a look.

        Raises:
            Problem: there were too many, or another long request is under way; it is raised again by each further look.
            ClientDisconnect: the client has gone.
        """
        self._looks += 1
        if self._looks % LONG_EVALUATIONS == 0:
            self._check()
        if self._problem is not None:
            kind, detail, hint = self._problem
            raise Problem(kind, detail, hint=hint)

    def end(self) -> None:
        if self._has_turn:
            _turn.release()

    def _check(self) -> None:
        self._has_turn = self._has_turn or _turn.acquire(blocking=False)
        if self._looks >= MOST_EVALUATIONS:
            detail = f"Computing the times needs more than {MOST_EVALUATIONS} evaluations of the rules of the schedule."
            self._problem = problems.INVALID, detail, "Ask for fewer times, or give the schedule fewer branches."
        elif not self._has_turn:
            self._problem = problems.BUSY, "Another long list of times is being computed.", "Try again in a moment."
        elif anyio.from_thread.run(self._request.is_disconnected):
            raise ClientDisconnect
