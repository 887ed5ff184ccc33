"""Coroutines that say, in memory shared with the pool, when they have the event loop and for which call.

So the pool knows which task blocks a loop, and which one had it when the process died, even where C code holds the interpreter.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.handlers.shared_memory import SharedMemory

call_number: Final[ContextVar[int]] = ContextVar("call_number", default=0)
"""The call whose code runs; what a handler starts inherits it."""


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine that announces each of its steps.

    Args:
        inner: what it does.
        number: the call that it belongs to.
        slot: where it says so.
    """

    __slots__ = ("_inner", "_number", "_slot")

    def __init__(self, inner: Coroutine[Any, Any, Any], number: int, slot: SharedMemory) -> None:
        self._inner = inner
        self._number = number
        self._slot = slot

    def send(self, value: Any) -> Any:
        """One step."""
        self._slot.step(self._number, boot_us())
        try:
            return self._inner.send(value)
        finally:
            self._slot.rest()

    def throw(self, *error: Any) -> Any:
        """A step that begins with an exception, a cancellation perhaps."""
        self._slot.step(self._number, boot_us())
        try:
            return self._inner.throw(*error)
        finally:
            self._slot.rest()

    def close(self) -> None:
        """Ends it."""
        self._inner.close()

    def __await__(self) -> Any:
        """For whoever awaits it."""
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        """`cr_frame` and the like, for stacks that asyncio prints."""
        return getattr(self._inner, name)
