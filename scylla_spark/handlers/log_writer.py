"""A child's side of the logs of attempts: what a handler prints or logs becomes lines in a memory that the dispatcher reads.

Frames are JSON lists: `["begin", number, time_us, ordering_id, uniqueness_key, attempt, epoch, seq]` before the first line of a call,
`["line", number, seq, at_us, stream, level, text, fields]`, and `["end", number, seq]` after it, with the number of its last
line; what comes later begins anew, behind that.
Only the process that was forked for handlers writes; what a handler forks itself is not heard.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from contextvars import ContextVar
from typing import Final

from scylla_spark.clock import now_us
from scylla_spark.core.records.log_record import bounded
from scylla_spark.handlers.log_lines import OpenLine, fields_of, level_of
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.handlers.messages import TaskRow

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NEVER: Final = 1 << 62


class LogWriter:
    """Lines of the calls of one child; thread safe, and never waits for anybody but another thread that writes a line.

    A line belongs to the call that began in its context (see `contextvars`), so that calls that run at once on one loop are told apart.
    Threads of a handler have no such context: theirs belong to the call that began last, also after its end.

    Args:
        memory: where lines go.
    """

    def __init__(self, memory: LogMemory) -> None:
        self._memory = memory
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._busy = False
        self._calls = 0
        self._last: _Call | None = None
        self._here: ContextVar[_Call | None] = ContextVar("call", default=None)

    def begin(self, row: TaskRow) -> None:
        """A call begins in this context.

        Args:
            row: its task, or the first of its batch.
        """
        self._calls += 1
        call = _Call(self._calls, row)
        self._last = call
        self._here.set(call)

    def end(self) -> None:
        """The call of this context has ended: what was written without the end of a line is a line, and the last lines may go."""
        call = self._here.get() or self._last
        if call is None or os.getpid() != self._pid:
            return
        with self._lock:
            for stream, line in call.open.items():
                if line.begun:
                    self._line(call, stream, None, line.take())
            if call.announced:
                call.announced = False
                self._memory.put(_encode(["end", call.number, call.seq]).encode(), at_once=False)
                self._memory.release()

    def text(self, stream: str, text: str) -> None:
        """Text that was printed: its whole lines are kept, the rest waits for the end of its line.

        Args:
            stream: stdout or stderr.
            text: as it was given to `write`.
        """
        call = self._here.get() or self._last
        if call is None or os.getpid() != self._pid:
            return
        with self._lock:
            line = call.open.get(stream)
            if line is None:
                line = call.open[stream] = OpenLine(self._memory.line)
            start = 0
            while (stop := text.find("\n", start)) >= 0:
                line.add(text, start, stop)
                self._line(call, stream, None, line.take())
                start = stop + 1
            line.add(text, start, len(text))

    def record(self, record: logging.LogRecord, text: str) -> None:
        """A record of `logging`.

        Args:
            record: as its handler was given it.
            text: its message, and its stack if it has one.
        """
        call = self._here.get() or self._last
        if call is None or os.getpid() != self._pid:
            return
        with self._lock:
            self._line(call, "logging", level_of(record), text, fields_of(record))

    def _line(self, call: _Call, stream: str, level: str | None, text: str, fields: str | None = None) -> None:
        """Hands over one line; one that a signal handler writes in the midst of another is not kept."""
        if self._busy:
            return
        self._busy = True
        try:
            memory = self._memory
            if not call.announced or memory.kept > call.pushed_out_at:
                self._announce(call)
            call.seq += 1
            text = bounded(text.rstrip("\r"), memory.line)
            data = _encode(["line", call.number, call.seq, now_us(), stream, level, text, fields]).encode()
            call.bytes += len(data)
            memory.put(data, at_once=call.bytes <= memory.head)
        finally:
            self._busy = False

    def _announce(self, call: _Call) -> None:
        """Tells whose lines come; again where new lines are about to push that out of the memory."""
        call.announced = True
        handed_over = self._memory.put(_encode(call.announcement()).encode(errors="replace"), at_once=True)
        call.pushed_out_at = _NEVER if handed_over else self._memory.kept + self._memory.rest // 2


class _Call:
    """One call, and what it has written so far.

    Attributes:
        number: of the call.
        seq: number of its last line.
        bytes: of all its lines.
        announced: the dispatcher was told whose lines come under the number …
        pushed_out_at: … in the rest of the memory, which lets go of that some time after it has kept so many bytes.
        open: lines whose end was not written yet, by stream.
    """

    __slots__ = ("_row", "announced", "bytes", "number", "open", "pushed_out_at", "seq")

    def __init__(self, number: int, row: TaskRow) -> None:
        self._row = row
        self.number = number
        self.seq = self.bytes = 0
        self.announced, self.pushed_out_at = False, _NEVER
        self.open: dict[str, OpenLine] = {}

    def announcement(self) -> list[object]:
        """Whose lines they are, and how many came before."""
        row = self._row
        key = (row.time_us, row.ordering_id, row.uniqueness_key)
        return ["begin", self.number, *key, row.attempt, row.epoch, self.seq]


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
