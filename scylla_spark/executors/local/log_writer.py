"""A child's side of the logs of attempts: what a handler prints or logs becomes lines in a memory that the dispatcher reads.

Frames are JSON lists: `["begin", number, time_us, ordering_id, uniqueness_key, attempt, epoch]` before the first line of a call,
`["line", number, seq, at_us, stream, level, text, fields]`, and `["end", number, seq]` after it, with the number of its last line.
Only the process that was forked for handlers writes; what a handler forks itself is not heard.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from typing import Final

from scylla_spark.clock import now_us
from scylla_spark.core.log_record import LEVELS, bounded
from scylla_spark.executors.local.messages import TaskRow
from scylla_spark.executors.log_memory import LogMemory

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_MOST_FIELDS_BYTES: Final = 4 * 1024
_MOST_FIELDS: Final = 32
_MOST_VALUE_CHARS: Final = 1_000
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogWriter:
    """Lines of the calls of one child; thread safe, and never waits for anybody but another thread that writes a line.

    What is written while no call runs, by a thread that a handler left behind, stands with the call before.

    Args:
        memory: where lines go.
    """

    def __init__(self, memory: LogMemory) -> None:
        self._memory = memory
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._busy = False
        self._row: TaskRow | None = None
        self._number = self._seq = self._bytes = 0
        self._open: dict[str, _OpenLine] = {"stdout": _OpenLine(memory.line), "stderr": _OpenLine(memory.line)}

    def begin(self, row: TaskRow) -> None:
        """A call begins; lines are its own from now on.

        Args:
            row: its task, or the first of its batch.
        """
        with self._lock:
            self._row = row
            self._number += 1
            self._seq = self._bytes = 0

    def end(self) -> None:
        """The call has ended: what was written without the end of a line is a line, and the last lines may go."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            for stream, line in self._open.items():
                if line.begun:
                    self._line(stream, None, line.take())
            if self._seq:
                self._memory.put(_encode(["end", self._number, self._seq]).encode(), at_once=False)
                self._memory.release()

    def text(self, stream: str, text: str) -> None:
        """Text that was printed: its whole lines are kept, the rest waits for the end of its line.

        Args:
            stream: stdout or stderr.
            text: as it was given to `write`.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            line, start = self._open[stream], 0
            while (stop := text.find("\n", start)) >= 0:
                line.add(text, start, stop)
                self._line(stream, None, line.take())
                start = stop + 1
            line.add(text, start, len(text))

    def record(self, record: logging.LogRecord, text: str) -> None:
        """A record of `logging`.

        Args:
            record: as its handler was given it.
            text: its message, and its stack if it has one.
        """
        if os.getpid() != self._pid:
            return
        level = record.levelname.lower()
        with self._lock:
            self._line("logging", level if level in LEVELS else _level(record.levelno), text, _fields(record))

    def _line(self, stream: str, level: str | None, text: str, fields: str | None = None) -> None:
        """Hands over one line; one that a signal handler writes in the midst of another is not kept."""
        if self._busy or self._row is None:
            return
        self._busy = True
        try:
            memory, row = self._memory, self._row
            if not self._seq:
                begin = [
                    "begin",
                    self._number,
                    row.time_us,
                    row.ordering_id,
                    row.uniqueness_key,
                    row.attempt,
                    row.epoch,
                ]
                memory.put(_encode(begin).encode(errors="replace"), at_once=True)
            self._seq += 1
            text = bounded(text.rstrip("\r"), memory.line)
            data = _encode(["line", self._number, self._seq, now_us(), stream, level, text, fields]).encode()
            self._bytes += len(data)
            memory.put(data, at_once=self._bytes <= memory.head)
        finally:
            self._busy = False


class _OpenLine:
    """A line whose end was not written yet, as far as it can be kept.

    Args:
        most: characters beyond which it is not kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most + 1  # one more, so that it is seen to be cut
        self._pieces: list[str] = []
        self._chars = 0
        self.begun = False

    def add(self, text: str, start: int, stop: int) -> None:
        """Adds a piece of a text."""
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


class RecordKeeper(logging.Handler):
    """Takes what code says through `logging`, as records with a level and fields instead of text on a stream.

    Args:
        writer: of the child.
    """

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record; one that cannot be formatted is told as `logging` does, on stderr."""
        try:
            self._writer.record(record, self.format(record))
        except Exception:
            self.handleError(record)


def keep_records(writer: LogWriter, streams: tuple[object, ...]) -> None:
    """Makes the root logger keep its records with the lines of attempts.

    Handlers that would print the same on one of our streams are taken off, and where nobody chose a level, records from info on are kept.

    Args:
        writer: of the child.
        streams: what stands in for stdout and stderr.
    """
    root = logging.getLogger()
    printing = [one for one in root.handlers if type(one) is logging.StreamHandler and one.stream in streams]
    if not root.handlers and root.level == logging.WARNING:
        root.setLevel(logging.INFO)
    for one in printing:
        root.removeHandler(one)
    root.addHandler(RecordKeeper(writer))


def _level(number: int) -> str:
    return LEVELS[min(max(number // 10 - 1, 0), len(LEVELS) - 1)]


def _fields(record: logging.LogRecord) -> str:
    found: dict[str, object] = {"logger": record.name[:_MOST_VALUE_CHARS]}
    for name, value in vars(record).items():
        if name not in _PLAIN and len(found) < _MOST_FIELDS:
            found[str(name)[:100]] = value if _is_plain(value) else _shown(value)
    text = json.dumps(found, ensure_ascii=False).encode(errors="replace").decode()
    return text if len(text.encode()) <= _MOST_FIELDS_BYTES else json.dumps({"logger": found["logger"]})


def _is_plain(value: object) -> bool:
    """Whether JSON has the value as it is, and in few letters."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1 << 63)


def _shown(value: object) -> str:
    try:
        return str(value)[:_MOST_VALUE_CHARS]
    except Exception as error:
        return f"<no text: {type(error).__name__}>"
