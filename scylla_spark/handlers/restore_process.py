"""What handlers find in their process, and what none of them leaves behind for the next: a fingerprint before and after each call."""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # answers in a third of the time that `signal` takes
import _socket
import _thread
import contextlib
import functools
import gc
import locale
import logging
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from scylla_spark.handlers.watched_modules import count_replaced

_live: Final[dict[bytes, bytes]] = os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001 - ten times as quick to compare
_SPARKS: Final = (b"SPARK_", b"PYSPARK_")  # by which PySpark's modules, once imported, know what they are
_SIGNALS: Final = sorted(
    one for one in signal.valid_signals() if one < 32 and one not in (signal.SIGKILL, signal.SIGSTOP)
)
_LIMITS: Final = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_UNUSED_LEVEL: Final = 37  # loggers remember what they answered for a level until any level is set
_MOST_LEFT_OPEN: Final = 64
_THREADS_END_S: Final = 0.02
_count_threads: Final = _thread._count  # noqa: SLF001 - also of threads that `threading` does not know
_SELDOM: Final = 32  # of so many calls one reads `_BY_CALLS`, and each in which one of these functions was called
_SETTERS: Final[Mapping[ModuleType, Sequence[str]]] = {
    locale: ("setlocale",),
    os: (
        "nice",
        "setegid",
        "seteuid",
        "setgid",
        "setpriority",
        "setregid",
        "setresgid",
        "setresuid",
        "setreuid",
        "setuid",
    ),
    resource: ("prlimit", "setrlimit"),
    signal: ("alarm", "pthread_sigmask", "setitimer", "signal"),
}
_touched = [False]
_ours: list[Surroundings] = []
_files: dict[int, tuple[int, int]] = {}  # descriptor → device and inode, when the fingerprint was taken
_levels: dict[logging.Logger, tuple[Any, ...]] = {}  # of each logger what `_set_logging` restores


class _Part(NamedTuple):
    """A part of a fingerprint.

    Attributes:
        read: its value now.
        restore: from the value that is expected and the one that was found to the one that is expected from now on.
    """

    read: Callable[[], Any]
    restore: Callable[[Any, Any], Any]


class _Fingerprint:
    """Parts, and the value that each should have."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self._reads = [part.read for part in parts]
        self._expected = self.read()

    def read(self) -> list[Any]:
        return [read() for read in self._reads]

    def restore(self) -> bool:
        """Restores what is not as expected; returns whether all is now."""
        found = self.read()
        if found == self._expected:
            return True
        for place, (part, now) in enumerate(zip(self._parts, found, strict=True)):
            if now != self._expected[place]:
                with contextlib.suppress(Exception):  # the comparison below shows what is not restored
                    self._expected[place] = part.restore(self._expected[place], now)
        return self.read() == self._expected

    def keep(self, before: list[Any], after: list[Any]) -> None:
        """Expects from now on what has changed between two readings."""
        self._expected = [_merged(*three) for three in zip(self._expected, before, after, strict=True)]


class Surroundings:
    """What tasks find in this process: variables, folder, signals, limits, zone, threads, files and more; see `_ALWAYS` and `_BY_CALLS`.

    It does not see what a task changes inside objects, such as attributes of classes and values that modules keep.
    """

    def __init__(self) -> None:
        _remember()
        self._always, self._by_calls = _Fingerprint(_ALWAYS), _Fingerprint(_BY_CALLS)
        self._unseen = 0  # calls since the second part was read last
        _ours.append(self)

    def restore(self) -> bool:
        """Makes all as it was, but for what Spark and `setup` functions have changed; costs 5 µs where nothing has changed.

        Returns:
            Whether all is as it was. If not, this process must run no other task.
        """
        try:
            clean = self._always.restore()
            self._unseen += 1
            if _touched[0] or self._unseen >= _SELDOM:
                clean = self._by_calls.restore() and clean
                self._unseen, _touched[0] = 0, False
            return clean
        except Exception:  # such as a module that lacks what is read here
            return False

    def readings(self) -> tuple[list[Any], list[Any]]:
        """Both fingerprints as they are now."""
        return self._always.read(), self._by_calls.read()

    def keep(self, before: tuple[list[Any], list[Any]], after: tuple[list[Any], list[Any]]) -> None:
        """Expects from now on what has changed between two readings."""
        self._always.keep(before[0], after[0])
        self._by_calls.keep(before[1], after[1])


def _remember() -> None:
    """Notes of loggers and files what the fingerprint does not hold."""
    _files.clear()
    _files.update(_open_files())
    _levels.clear()
    _levels.update({logger: _terms(logger) for logger in _all_loggers()})
    logging.root.isEnabledFor(_UNUSED_LEVEL)


def note_setters() -> None:
    """Notes from now on when code calls one of `_SETTERS`: what these set costs too much to read after each call."""
    for module, names in _SETTERS.items():
        for name in names:
            if hasattr(module, name):  # not every system has them all
                setattr(module, name, _noting(getattr(module, name)))


def _noting(setter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def noted(*given: Any, **named: Any) -> Any:
        _touched[0] = True
        return setter(*given, **named)

    return noted


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Yields what is changed meanwhile stays for all that run in this process later."""
    before = [one.readings() for one in _ours]
    try:
        yield
    finally:
        _remember()
        for one, reading in zip(_ours, before, strict=True):
            one.keep(reading, one.readings())


def _merged(kept: Any, before: Any, after: Any) -> Any:
    """Returns what was kept, with what has changed meanwhile; of variables and lists only what has changed, of counts the difference."""
    if before == after:
        return kept
    if isinstance(kept, dict):
        same = {name: value for name, value in kept.items() if before.get(name) == after.get(name)}
        return same | {name: value for name, value in after.items() if before.get(name) != value}
    if isinstance(kept, list) and len(kept) == len(before) == len(after):
        return [new if new != old else one for one, old, new in zip(kept, before, after, strict=True)]
    return kept + after - before if type(kept) is int else after


# -- the parts: how each is read, and restored -----------------------------------------------------------------------


def _set_variables(expected: dict[bytes, bytes], found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    for name in expected.keys() | found.keys():
        before, now = expected.get(name), found.get(name)
        if before == now:
            continue
        if name.startswith(_SPARKS):
            expected = {key: value for key, value in (expected | {name: now}).items() if value is not None}
        elif before is None:
            del os.environ[os.fsdecode(name)]
        else:
            os.environ[os.fsdecode(name)] = os.fsdecode(before)
    time.tzset()  # it may follow a variable that was set meanwhile
    return expected


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody has deleted it
        return None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _stop_timers(expected: list[bool], _found: list[bool]) -> list[bool]:
    for timer, runs in zip(_TIMERS, expected, strict=True):
        if not runs:
            signal.setitimer(timer, 0)
    return expected


def _set_signals(expected: list[Any], found: list[Any]) -> list[Any]:
    for number, before, now in zip(_SIGNALS, expected, found, strict=True):
        if before is not now and before is not None:  # None: a handler in C, which cannot be set from here
            _signal.signal(number, before)
    return expected


def _set_limits(expected: list[tuple[int, int]], found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    for limit, before, now in zip(_LIMITS, expected, found, strict=True):
        if before != now:
            resource.setrlimit(limit, before)
    return expected


def _set_warnings(expected: list[Any], _found: list[Any]) -> list[Any]:
    warnings.simplefilter("default")  # tells `warnings` that what it has decided before does not hold any more
    warnings.filters[:] = expected  # type: ignore[index]
    return expected


def _logging() -> tuple[Any, ...]:
    root = logging.root
    return _UNUSED_LEVEL in root._cache, root.level, root.handlers.copy(), root.manager.disable  # type: ignore[attr-defined]  # noqa: SLF001


def _set_logging(expected: tuple[Any, ...], _found: tuple[Any, ...]) -> tuple[Any, ...]:
    logging.disable(expected[-1])
    for logger, (level, handlers, propagate, disabled) in _levels.items():
        logger.setLevel(level)
        logger.handlers[:], logger.propagate, logger.disabled = handlers, propagate, disabled
    logging.root.isEnabledFor(_UNUSED_LEVEL)
    return expected


def _terms(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.level, logger.handlers.copy(), logger.propagate, logger.disabled


def _all_loggers() -> list[logging.Logger]:
    named = list(logging.root.manager.loggerDict.values())
    return [logging.root, *(one for one in named if isinstance(one, logging.Logger))]


def _lowest_descriptor() -> int:
    """The number that the next file gets: a file that was left open has taken it. -1: there is none, or 0 was closed."""
    try:
        number = os.dup(0)
    except OSError:
        return -1
    os.close(number)
    return number


def _open_files() -> dict[int, tuple[int, int]]:
    found = {}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the one that lists
            about = os.fstat(int(name))
            found[int(name)] = about.st_dev, about.st_ino
    return found


def _leave_open(expected: int, found: int) -> int:
    """Accepts files that were left open, unless they are many: libraries keep connections. A file of ours must be what it was."""
    now = _open_files()
    fits = _files.items() <= now.items() and len(now) <= len(_files) + _MOST_LEFT_OPEN
    return found if fits else expected


def _with(write: Callable[[Any], object]) -> Callable[[Any, Any], Any]:
    def restore(expected: Any, _found: Any) -> Any:
        if expected is not None:
            write(expected)
        return expected

    return restore


def _await_threads(expected: int, _found: int) -> int:
    """A thread cannot be ended from outside; one that is about to end has a moment."""
    until = time.monotonic() + _THREADS_END_S
    while _count_threads() > expected and time.monotonic() < until:
        time.sleep(0.001)
    return expected


def _set_user(expected: tuple[int, int]) -> None:
    os.seteuid(expected[0])
    os.setegid(expected[1])


def _set_interpreter(expected: tuple[Any, ...]) -> None:
    depth, path, collects, timeout = expected
    sys.setrecursionlimit(depth)
    sys.path[:] = path
    gc.enable() if collects else gc.disable()
    _socket.setdefaulttimeout(timeout)


_ALWAYS: Final = (
    _Part(_live.copy, _set_variables),
    _Part(_folder, _with(os.chdir)),
    _Part(_umask, _with(os.umask)),
    _Part(lambda: (time.tzname, time.timezone, time.altzone), _with(lambda _: time.tzset())),
    _Part(lambda: warnings.filters[:], _set_warnings),
    _Part(_logging, _set_logging),
    _Part(
        lambda: (sys.getrecursionlimit(), sys.path[:], gc.isenabled(), _socket.getdefaulttimeout()),
        _with(_set_interpreter),
    ),
    _Part(_count_threads, _await_threads),
    _Part(count_replaced, _with(lambda _: None)),
)
_BY_CALLS: Final = (
    _Part(lambda: _locale.setlocale(_locale.LC_ALL), _with(lambda name: _locale.setlocale(_locale.LC_ALL, name))),
    _Part(lambda: (os.geteuid(), os.getegid()), _with(_set_user)),
    _Part(lambda: os.getpriority(os.PRIO_PROCESS, 0), _with(lambda nice: os.setpriority(os.PRIO_PROCESS, 0, nice))),
    _Part(lambda: [signal.getitimer(one)[0] > 0 for one in _TIMERS], _stop_timers),
    _Part(lambda: [*map(_signal.getsignal, _SIGNALS)], _set_signals),
    _Part(
        lambda: _signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        _with(lambda mask: _signal.pthread_sigmask(signal.SIG_SETMASK, mask)),
    ),
    _Part(lambda: [*map(resource.getrlimit, _LIMITS)], _set_limits),
    _Part(_lowest_descriptor, _leave_open),
)
