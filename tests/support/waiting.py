"""Waiting for what other threads and processes do: a condition is polled until a deadline, and nothing sleeps for a fixed time."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_LONGEST_PAUSE_S = 0.5
_LEAST_S = 30.0  # of a deadline that only a failure reaches: a busy machine stands still for seconds


def eventually(
    look: Callable[[], T],
    within: float,
    what: object = "",
    tell: Callable[[], object] | None = None,
    every: float = 0.05,
) -> T:
    """The first true value of `look`; a failure says `what` was awaited and what `tell` then told.

    A look that takes long, such as one into a table, is repeated less often than `every`: what is waited for needs the cores.
    """
    within = max(within, _LEAST_S)
    deadline = time.monotonic() + within
    while True:
        begun = time.monotonic()
        if value := look():
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {within} s: {what or look}; now: {tell() if tell else value!r}")
        time.sleep(max(every, min(9 * (now - begun), _LONGEST_PAUSE_S)))


def holds(condition: Callable[[], object], within: float = 10.0) -> bool:
    """Returns True if the condition comes true before the deadline; looks often."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def done_at_once(work: Callable[[], T]) -> Future[T]:
    """Does at once what others do beside them in a thread: its future is done."""
    done: Future[T] = Future()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done
