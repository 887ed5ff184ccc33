"""The last lines of what a program writes, in bounded memory however much that is."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Final

LONGEST_LINE: Final = 64 * 1024
MOST_LINES: Final = 100
MOST_BYTES: Final = 256 * 1024
_PIECE: Final = 64 * 1024


class LastLines:
    """The last hundred lines, or fewer that have 256 KiB together. Of a longer line than 64 KiB a byte more than that is kept."""

    def __init__(self) -> None:
        self._ended: deque[bytes] = deque()
        self._size = 0
        self._open = bytearray()

    def feed(self, piece: bytes) -> None:
        """Takes what comes next.

        Args:
            piece: some bytes, wherever lines end.
        """
        *ended, rest = piece.split(b"\n")
        if len(ended) > MOST_LINES:  # nothing before these will be kept
            ended = ended[-MOST_LINES:]
            self._ended.clear()
            self._open.clear()
            self._size = 0
        for part in ended:
            self._add(part)
            self._end()
        self._add(rest)

    def read_all(self, descriptor: int, also: Callable[[bytes], object]) -> None:
        """Takes what comes until there will be no more.

        Args:
            descriptor: of a pipe.
            also: is given each piece, too.
        """
        while piece := os.read(descriptor, _PIECE):
            self.feed(piece)
            also(piece)

    def lines(self) -> list[bytes]:
        """Returns what is kept, oldest first, without line ends; an unfinished line is one."""
        return [*self._ended, bytes(self._open)] if self._open else list(self._ended)

    def text(self, most_chars: int) -> str:
        """The end of it, as text.

        Args:
            most_chars: that are kept.
        """
        return b"\n".join(self.lines()).decode(errors="replace")[-most_chars:].strip()

    def _add(self, part: bytes) -> None:
        self._open += part[: LONGEST_LINE + 1 - len(self._open)]

    def _end(self) -> None:
        self._ended.append(bytes(self._open))
        self._size += len(self._open)
        self._open.clear()
        while len(self._ended) > MOST_LINES or self._size > MOST_BYTES:
            self._size -= len(self._ended.popleft())
