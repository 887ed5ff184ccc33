"""What handlers print and log in a process of a worker: it goes where it always went, and to the logs of their attempts as well."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from scylla_spark.handlers.log_lines import OpenLine, fields_of, level_of
from scylla_spark.worker.line_sender import LINE_BYTES

Add = Callable[[str, str | None, str, str | None], object]
"""Takes one line: stream, level, text, fields."""


class Printed:
    """Hears what is printed and logged in this process while it is in place.

    Args:
        alone: whether one handler runs at a time, so that all that threads of its own write is of it; else these are not heard.

    As a context it stands in for stdout and stderr, and is a handler of the root logger.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._pid = os.getpid()
        self._only: _Writer | None = None
        self._here: ContextVar[_Writer | None] = ContextVar("attempt", default=None)
        self._keeper = _Records(self)

    def __enter__(self) -> Printed:
        """In place."""
        self._before: tuple[Any, Any] = sys.stdout, sys.stderr
        self._ours: tuple[Any, Any] = _Tee(self, "stdout", sys.stdout), _Tee(self, "stderr", sys.stderr)
        sys.stdout, sys.stderr = self._ours
        logging.getLogger().addHandler(self._keeper)
        return self

    def __exit__(self, *_: object) -> None:
        """As it was, unless somebody else has taken the place meanwhile."""
        logging.getLogger().removeHandler(self._keeper)
        if (sys.stdout, sys.stderr) == self._ours:
            sys.stdout, sys.stderr = self._before

    @contextmanager
    def by(self, add: Add) -> Iterator[None]:
        """What is written in this context, and in none, is of one attempt.

        Args:
            add: takes its lines.
        """
        writer = _Writer(add)
        token = self._here.set(writer)
        if self._alone:
            self._only = writer
        try:
            yield
        finally:
            self._here.reset(token)
            writer.end()

    def show(self, text: str) -> None:
        """Writes a line to stderr as it was."""
        self._before[1].write(text + "\n")

    @property
    def writer(self) -> _Writer | None:
        """Of whom it is what is written now; what a handler forks itself is not heard."""
        return (self._here.get() or self._only) if os.getpid() == self._pid else None


def choose_level() -> None:
    """Records from info on are kept, unless the handlers' modules have chosen otherwise; for a process that is ours alone."""
    root = logging.getLogger()
    if root.level == logging.WARNING and all(isinstance(one, _Records) for one in root.handlers):
        root.setLevel(logging.INFO)


class _Writer:
    """Text of one attempt, cut into lines."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._lock = threading.RLock()
        self._open: dict[str, OpenLine] = {}

    def text(self, stream: str, text: str) -> None:
        with self._lock:
            line = self._open.setdefault(stream, OpenLine(LINE_BYTES))
            start = 0
            while (stop := text.find("\n", start)) >= 0:
                line.add(text, start, stop)
                self._add(stream, None, line.take(), None)
                start = stop + 1
            line.add(text, start, len(text))

    def record(self, level: str, text: str, fields: str) -> None:
        with self._lock:
            self._add("logging", level, text, fields)

    def end(self) -> None:
        """What has no end of its line is a line."""
        with self._lock:
            for stream, line in self._open.items():
                if line.begun:
                    self._add(stream, None, line.take(), None)


class _Tee:
    """Stands in for a text stream, and hands all on to it; all but writing is the stream's own."""

    def __init__(self, printed: Printed, stream: str, whole: Any) -> None:
        self._printed, self._stream, self._whole = printed, stream, whole

    def write(self, text: str, /) -> int:
        """Writes to the logs, and to the stream itself.

        Raises:
            TypeError: it is no text.
        """
        if isinstance(text, str):
            self.heard(text)
        self._whole.write(text)
        return len(text)

    def writelines(self, texts: Iterable[str], /) -> None:
        """Writes one after the other."""
        for text in texts:
            self.write(text)

    def heard(self, text: str) -> None:
        """Something is written."""
        writer = self._printed.writer
        if writer is not None:
            writer.text(self._stream, text)

    @property
    def buffer(self) -> _BytesTee:
        """For code that writes bytes."""
        return _BytesTee(self, self._whole.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


class _BytesTee:
    """The bytes' side of a stream."""

    def __init__(self, text: _Tee, whole: Any) -> None:
        self._text, self._whole = text, whole

    def write(self, data: Any, /) -> int:
        """Writes to the logs, and to the stream itself."""
        self._whole.write(data)
        self._text.heard(bytes(data).decode(errors="replace"))
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


class _Records(logging.Handler):
    """Hands records of `logging` on, as records with a level and fields."""

    def __init__(self, printed: Printed) -> None:
        super().__init__()
        self._printed = printed
        self.setFormatter(_FORMAT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record; one that cannot be formatted is told as `logging` does, on stderr."""
        try:
            text = self.format(record)
            writer = self._printed.writer
            if writer is not None:
                writer.record(level_of(record), text, fields_of(record))
            if record.levelno >= logging.WARNING and logging.getLogger().handlers == [self]:
                self._printed.show(text)  # as without us, where nobody has chosen otherwise
        except Exception:
            self.handleError(record)


_FORMAT: Final = logging.Formatter("%(message)s")
