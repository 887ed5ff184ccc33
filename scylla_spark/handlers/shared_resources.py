"""What handlers of a process share: made by the first that asks for it, torn down when their process ends."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from scylla_spark.errors import ArgumentError
from scylla_spark.handlers.restore_process import staying

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ended: Final = object()
_declared: list[Resource[Any]] = []
_open: list[Resource[Any]] = []


class Resource(Generic[T]):
    """What a `setup` function makes; called in a handler, it gives this process's own.

    Args:
        make: yields it once; what follows the `yield` tears it down.
    """

    def __init__(self, make: Callable[[], Iterator[T]]) -> None:
        self.__doc__ = make.__doc__
        self._make = make
        self._lock = threading.RLock()
        self._pid = 0  # of the process that the value belongs to: what was forked has none of its own yet
        self._steps: Iterator[T]
        self._value: T

    def __call__(self) -> T:
        """The value, which the first call in a process makes; what that raises, the handler raises, and the next call tries again."""
        with self._lock:
            if self._pid != os.getpid():
                self._steps = self._make()
                with staying():
                    self._value = next(self._steps)
                if not _open:
                    atexit.register(end_all)
                self._pid = os.getpid()
                _open.append(self)
            return self._value

    def end(self) -> None:
        """Tears it down, if it is this process's; whatever that raises is logged."""
        with self._lock:
            if self._pid != os.getpid():
                return
            self._pid = 0
            try:
                if next(self._steps, _ended) is not _ended:
                    _log.warning("%s yields twice; what follows the second yield was not done", self._make.__qualname__)
            except BaseException:
                _log.exception("%s cannot be torn down", self._make.__qualname__)


def setup(function: Callable[[], Iterator[T]]) -> Resource[T]:
    """Makes of a generator function what handlers of a process share, such as a connection, a client or a model.

    The function yields it once. It runs when the first handler of a child asks, and what follows the `yield` when the child ends.

    Args:
        function: without parameters, with one `yield`.

    Returns:
        What handlers call to have it.

    Raises:
        ArgumentError: the function is none of that kind.
    """
    if not inspect.isgeneratorfunction(function) or inspect.signature(function).parameters:
        raise ArgumentError(
            f"{getattr(function, '__qualname__', function)!r} cannot be set up.",
            hint="Write `def name():` with one `yield` of what handlers share, and without parameters.",
        )
    made = Resource(function)
    _declared.append(made)
    return made


def declared() -> bool:
    """Returns True if this process knows any `setup` function."""
    return bool(_declared)


def end_all() -> None:
    """Tears down what this process has, the newest first."""
    while _open:
        _open.pop().end()


def end_at_sigterm() -> None:
    """Has SIGTERM, by which children are ended, tear down what there is before it ends this process; in its main thread."""
    if declared():
        signal.signal(signal.SIGTERM, _torn_down)


def _torn_down(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    try:
        end_all()
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
