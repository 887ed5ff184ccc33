"""Lines of attempts: made of text that comes in pieces and of records of `logging`, and given to the call that wrote them."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from scylla_spark.core.leases.messages import LEVELS

_MOST_FIELDS_BYTES: Final = 4 * 1024
_MOST_FIELDS: Final = 32
_MOST_VALUE_CHARS: Final = 1_000
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class OpenLine:
    """A line whose end was not written yet, as far as it can be kept.

    Args:
        most: characters beyond which it is not kept.
    """

    __slots__ = ("_chars", "_most", "_pieces", "begun")

    def __init__(self, most: int) -> None:
        self._most = most + 1  # one more, so that it is seen to be cut
        self._pieces: list[str] = []
        self._chars = 0
        self.begun = False

    def add(self, text: str, start: int, stop: int) -> None:
        """Adds a piece of a text.

        Args:
            text: of which it is a piece.
            start: where it begins.
            stop: behind its last character.
        """
        self.begun = self.begun or stop > start
        room = self._most - self._chars
        if room > 0 and stop > start:
            self._pieces.append(text[start : min(stop, start + room)])
            self._chars += len(self._pieces[-1])

    def take(self) -> str:
        """The line so far; the next one begins."""
        text = "".join(self._pieces)
        self._pieces, self._chars, self.begun = [], 0, False
        return text


class CallLines:
    """What one call has written without the end of a line, and where its lines go.

    Args:
        lock: held while a line is added.
    """

    __slots__ = ("lock", "open")

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.open: dict[str, OpenLine] = {}

    def add(self, stream: str, level: str | None, text: str, fields: str | None) -> None:
        """Takes one line.

        Args:
            stream: stdout, stderr or logging.
            level: of a record of `logging`; None: it was printed.
            text: without the end of the line.
            fields: of a record: text of a JSON object.
        """
        raise NotImplementedError

    def end(self) -> None:
        """The call has ended, and all its lines were added."""


Add = Callable[[str, str | None, str, str | None], object]
"""Takes one line: stream, level, text, fields."""


class _AddedLines(CallLines):
    __slots__ = ("_add",)

    def __init__(self, add: Add) -> None:
        super().__init__(threading.RLock())
        self._add = add

    def add(self, stream: str, level: str | None, text: str, fields: str | None) -> None:
        self._add(stream, level, text, fields)


class LineWriter:
    """Cuts what is written in a process into lines; thread safe.

    A line belongs to the call that began in its context (see `contextvars`), so that calls that run at once are told apart. What a
    process writes that a handler forks is not kept.

    Args:
        longest: characters of a line that are kept.
        alone: whether threads that handlers start, which have no such context, write for the call that began last, also after its
            end; else what they write is not kept.
    """

    def __init__(self, longest: int, *, alone: bool = True) -> None:
        self._longest = longest
        self._alone = alone
        self._pid = os.getpid()
        self._last: CallLines | None = None
        self._here: ContextVar[CallLines | None] = ContextVar("call", default=None)

    @contextmanager
    def by(self, add: Add) -> Iterator[None]:
        """Yields what is written in this context meanwhile is of one call.

        Args:
            add: takes its lines.
        """
        call = _AddedLines(add)
        token = self._here.set(call)
        if self._alone:
            self._last = call
        try:
            yield
        finally:
            self._here.reset(token)
            self._finish(call)

    def _call(self) -> CallLines | None:
        """Whose it is what is written now."""
        return (self._here.get() or self._last) if os.getpid() == self._pid else None

    def _finish(self, call: CallLines) -> None:
        """What has no end of its line is a line."""
        with call.lock:
            for stream, line in call.open.items():
                if line.begun:
                    call.add(stream, None, line.take(), None)
            call.end()

    def text(self, stream: str, text: str) -> None:
        """Text that was printed: its whole lines are kept, the rest waits for the end of its line.

        Args:
            stream: stdout or stderr.
            text: as it was given to `write`.
        """
        call = self._call()
        if call is None:
            return
        with call.lock:
            line = call.open.get(stream)
            if line is None:
                line = call.open[stream] = OpenLine(self._longest)
            start = 0
            while (stop := text.find("\n", start)) >= 0:
                line.add(text, start, stop)
                call.add(stream, None, line.take(), None)
                start = stop + 1
            line.add(text, start, len(text))

    def record(self, record: logging.LogRecord, text: str) -> None:
        """A record of `logging`.

        Args:
            record: as its handler was given it.
            text: its message, and its stack if it has one.
        """
        call = self._call()
        if call is not None:
            with call.lock:
                call.add("logging", level_of(record), text, fields_of(record))


def level_of(record: logging.LogRecord) -> str:
    """The level of a record, or the nearest that is known."""
    level = record.levelname.lower()
    return level if level in LEVELS else LEVELS[min(max(record.levelno // 10 - 1, 0), len(LEVELS) - 1)]


def fields_of(record: logging.LogRecord) -> str:
    """Text of a JSON object: the logger's name, and what `extra=` holds; bounded."""
    found: dict[str, object] = {"logger": record.name[:_MOST_VALUE_CHARS]}
    for name, value in vars(record).items():
        if name not in _PLAIN and len(found) < _MOST_FIELDS:
            found[str(name)[:100]] = value if _is_plain(value) else _shown(value)
    text = json.dumps(found, ensure_ascii=False).encode(errors="replace").decode()
    return text if len(text.encode()) <= _MOST_FIELDS_BYTES else json.dumps({"logger": found["logger"]})


def _is_plain(value: object) -> bool:
    """Returns True if JSON has the value as it is, and in few letters."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1 << 63)


def _shown(value: object) -> str:
    try:
        return str(value)[:_MOST_VALUE_CHARS]
    except Exception as error:
        return f"<no text: {type(error).__name__}>"
