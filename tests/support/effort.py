"""The cost of work in calls of Python functions, which is the same number on every machine."""

import sys
from collections.abc import Callable
from types import FrameType


def python_calls(work: Callable[[], object]) -> int:
    """Returns the number of calls of Python functions that the work makes in this thread."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
