"""What a program prints, on its way to the logs of its attempt: numbered, bounded, and sent by a thread that nobody waits for long.

The first lines go as they come. Beyond a bound only the last are kept, as they came, and go when the program has ended; the numbers of
those in between tell how many are missing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from scylla_spark.clock import now_us
from scylla_spark.core.leases.messages import LeasedLine
from scylla_spark.worker.line_sender import HEAD_BYTES, LINE_BYTES, LINE_COSTS, TAIL_BYTES, LineSender, Send

_MOST_TOGETHER: Final = 2_000


class _Piece(NamedTuple):
    """Whole lines of one stream that came together.

    Attributes:
        first: number of the first.
        at_us: when they came.
        stream: of which they are.
        lines: how many.
        data: their bytes, with line ends between them.
    """

    first: int
    at_us: int
    stream: str
    lines: int
    data: bytes

    @property
    def cost(self) -> int:
        """Bytes that count."""
        return len(self.data) + self.lines * LINE_COSTS


class ContainerLines:
    """The lines of one container.

    Args:
        send: brings them to the server.
    """

    def __init__(self, send: Send) -> None:
        self._sender = LineSender(send, self._take)
        self._lock = threading.Lock()
        self._seq = 0
        self._head = 0
        self._first: deque[_Piece] = deque()
        self._last: deque[_Piece] = deque()
        self._last_costs = 0
        self._open: dict[str, bytearray] = {}

    def start(self) -> None:
        """Begins to send."""
        self._sender.start()

    def feed(self, stream: str, data: bytes) -> None:
        """Takes what came next on a stream, wherever lines end; from any thread."""
        whole, end, rest = data.rpartition(b"\n")
        with self._lock:
            begun = self._open.setdefault(stream, bytearray())
            if end:
                self._add(stream, bytes(begun) + whole)
                begun.clear()
            begun += rest[: LINE_BYTES + 1 - len(begun)]

    def end(self, *, tell: bool) -> None:
        """There will be no more; waits until what there is was sent, but not for long.

        Args:
            tell: whether what was not sent yet still matters.
        """
        with self._lock:
            for stream, begun in self._open.items():
                if begun:
                    self._add(stream, bytes(begun))
            self._open.clear()
            if tell:
                self._first += self._last
            else:
                self._first.clear()
            self._last.clear()
        self._sender.end()

    def _add(self, stream: str, data: bytes) -> None:
        first, lines, early = self._seq + 1, data.count(b"\n") + 1, self._head < HEAD_BYTES
        self._seq += lines
        if lines > _MOST_TOGETHER:  # of a flood of short lines
            data = _some(data, early=early)
            first, lines = (first if early else self._seq + 1 - _MOST_TOGETHER), _MOST_TOGETHER
        piece = _Piece(first, now_us(), stream, lines, data)
        if early:
            self._head += piece.cost
            self._first.append(piece)
            return
        self._last.append(piece)
        self._last_costs += piece.cost
        while self._last_costs > TAIL_BYTES:
            self._last_costs -= self._last.popleft().cost

    def _take(self) -> Iterable[LeasedLine]:
        """Returns what is to be sent now."""
        with self._lock:
            pieces, self._first = self._first, deque()
        return _lines(pieces)


def _some(data: bytes, *, early: bool) -> bytes:
    """The first lines, or the last ones, of more than are kept together."""
    if early:
        return b"\n".join(data.split(b"\n", _MOST_TOGETHER)[:_MOST_TOGETHER])
    return b"\n".join(data.rsplit(b"\n", _MOST_TOGETHER)[1:])


def _lines(pieces: Iterable[_Piece]) -> Iterator[LeasedLine]:
    for piece in pieces:
        for seq, text in enumerate(piece.data.split(b"\n"), piece.first):
            said = text[: LINE_BYTES + 1].decode(errors="replace").rstrip("\r")
            yield LeasedLine(seq, piece.at_us, piece.stream, None, said)
