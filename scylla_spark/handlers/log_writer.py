"""A child's side of the logs of attempts: what a handler prints or logs becomes lines in a memory that the dispatcher reads.

Frames are JSON lists: `["begin", number, time_us, ordering_id, uniqueness_key, attempt, epoch, seq]` before the first line of a call,
`["line", number, seq, at_us, stream, level, text, fields]`, and `["end", number, seq]` after it, with the number of its last
line; what comes later begins anew, behind that.
"""

from __future__ import annotations

import json
import threading
from typing import Final

from scylla_spark.clock import now_us
from scylla_spark.core.records.log_record import bounded
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.handlers.log_lines import CallLines, LineWriter
from scylla_spark.handlers.log_ring import LogMemory

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NEVER: Final = 1 << 62


class LogWriter(LineWriter):
    """Lines of the calls of one child; never waits for anybody but another thread that writes a line.

    Args:
        memory: where lines go.
    """

    def __init__(self, memory: LogMemory) -> None:
        super().__init__(memory.line)
        self._memory = memory
        self._lock = threading.RLock()
        self._busy = False
        self._calls = 0

    def begin(self, item: Invocation) -> None:
        """A call begins in this context.

        Args:
            item: its invocation, or the first of its batch.
        """
        self._calls += 1
        call = self._last = _Call(self, self._lock, self._calls, item)
        self._here.set(call)

    def end(self) -> None:
        """The call of this context has ended: what was written without the end of a line is a line, and the last lines may go."""
        call = self._call()
        if call is not None:
            self._finish(call)

    def announce_end(self, call: _Call) -> None:
        """No lines of a call are to come."""
        if call.announced:
            call.announced = False
            self._memory.put(_encode(["end", call.number, call.seq]).encode(), at_once=False)
            self._memory.release()

    def line(self, call: _Call, stream: str, level: str | None, text: str, fields: str | None) -> None:
        """Hands over one line; one that a signal handler writes in the midst of another is not kept.

        Args:
            call: that has written it.
            stream: stdout, stderr or logging.
            level: of a record of `logging`; None: it was printed.
            text: without the end of the line.
            fields: of a record: text of a JSON object.
        """
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


class _Call(CallLines):
    """One call, and what it has written so far.

    Attributes:
        number: of the call.
        seq: number of its last line.
        bytes: of all its lines.
        announced: the dispatcher was told whose lines come under the number …
        pushed_out_at: … in the rest of the memory, which drops that some time after it has kept so many bytes.
    """

    __slots__ = ("_item", "_writer", "announced", "bytes", "number", "pushed_out_at", "seq")

    def __init__(self, writer: LogWriter, lock: threading.RLock, number: int, item: Invocation) -> None:
        super().__init__(lock)
        self._writer = writer
        self._item = item
        self.number = number
        self.seq = self.bytes = 0
        self.announced, self.pushed_out_at = False, _NEVER

    def add(self, stream: str, level: str | None, text: str, fields: str | None) -> None:
        self._writer.line(self, stream, level, text, fields)

    def end(self) -> None:
        self._writer.announce_end(self)

    def announcement(self) -> list[object]:
        """Whose lines they are, and how many came before."""
        item = self._item
        return ["begin", self.number, *item.key, item.attempt, item.epoch, self.seq]
