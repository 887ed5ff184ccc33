"""Waiting for what other threads and processes do: a condition is polled until a deadline, and nothing sleeps for a fixed time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    look: Callable[[], T],
    within: float,
    what: object = "",
    tell: Callable[[], object] | None = None,
    every: float = 0.05,
) -> T:
    """The first true value of `look`; a failure says `what` was awaited and what `tell` then told."""
    deadline = time.monotonic() + within
    while not (value := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or look}; now: {tell() if tell else value!r}")
        time.sleep(every)
    return value


def holds(condition: Callable[[], object], within: float = 10.0) -> bool:
    """Whether the condition comes true before the deadline; looks often."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
