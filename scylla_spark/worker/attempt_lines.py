"""What a handler of a worker prints and logs, on its way to the logs of its attempt.

The first lines go as they come. Beyond a bound only the last are kept, and go when the handler has ended; numbers tell how many are
missing between them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable

from scylla_spark.clock import now_us
from scylla_spark.core.leases.messages import LeasedLine
from scylla_spark.handlers.call import clean
from scylla_spark.worker.line_sender import HEAD_BYTES, LINE_BYTES, LINE_COSTS, TAIL_BYTES, LineSender, Send


class AttemptLines:
    """The lines of one attempt; whoever writes none costs nothing.

    Args:
        send: brings them to the server.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._sender: LineSender | None = None
        self._seq = 0
        self._head = self._tail = 0
        self._first: deque[LeasedLine] = deque()
        self._last: deque[LeasedLine] = deque()

    def add(self, stream: str, level: str | None, text: str, fields: str | None = None) -> None:
        """Takes the next line, from any thread.

        Args:
            stream: stdout, stderr or logging.
            level: of a record of logging.
            text: without its end.
            fields: text of a JSON object.
        """
        text = clean(text.rstrip("\r")[: LINE_BYTES + 1])  # one more, so that the server sees that it is cut
        with self._lock:
            self._seq += 1
            self._keep(LeasedLine(self._seq, now_us(), stream, level, text, fields))
            if self._sender is None:
                self._sender = LineSender(self._send, self._take)
                with contextlib.suppress(RuntimeError):  # no thread can be started: then there are no lines
                    self._sender.start()

    def end(self) -> None:
        """There will be no more; waits until what there is was sent, but for seconds at most."""
        with self._lock:
            self._first += self._last
            self._last.clear()
            sender = self._sender
        if sender is not None:
            sender.end()

    def _keep(self, line: LeasedLine) -> None:
        cost = _cost(line)
        if self._head < HEAD_BYTES:
            self._head += cost
            self._first.append(line)
            return
        self._last.append(line)
        self._tail += cost
        while self._tail > TAIL_BYTES:
            self._tail -= _cost(self._last.popleft())

    def _take(self) -> Iterable[LeasedLine]:
        with self._lock:
            lines, self._first = self._first, deque()
        return lines


def _cost(line: LeasedLine) -> int:
    return len(line.text) + len(line.fields or "") + LINE_COSTS
