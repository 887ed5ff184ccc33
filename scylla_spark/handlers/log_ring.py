"""The memory through which a child hands its lines to the dispatcher: neither side ever waits for the other.

It has two parts. The *queue* is a ring that the child fills and the dispatcher empties; while it is full, and once an attempt has
written as much as is told at once, lines go to the *rest*, a ring in which new lines overwrite old ones. What is left in the rest
moves to the queue as soon as that is allowed and has room, and when the child has died the dispatcher reads it there. So the first
and the last lines of an attempt survive any flood and any death, in memory that never grows.

The child runs user code, which may write here what it likes, so the dispatcher believes nothing of it: a part that cannot be is
thrown away. The size is sealed, because a file that shrank would end whoever reads it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final

_WRITTEN, _READ, _BEGIN, _END, _HEAD, _REST, _LINE = range(7)
_WORDS: Final = 8
_QUEUE_AT: Final = 8 * _WORDS
_LENGTH: Final = struct.Struct("<I")
MAX_FRAME_BYTES: Final = 128 * 1024
_SLACK: Final = 256 * 1024


class LogMemory:
    """Lines on their way out of one child, as frames of bytes; mapped by both sides.

    Args:
        fd: from `LogMemory.create_fd`; stays open, and is the caller's.

    Attributes:
        head: how many bytes of an attempt are told as they come.
        line: most bytes of a text.
    """

    __slots__ = ("_map", "_queue", "_rest", "_rest_at", "_words", "head", "line")

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, 0)
        self._words = memoryview(self._map)[:_QUEUE_AT].cast("q")
        self.head, self._rest, self.line = self._words[_HEAD], self._words[_REST], self._words[_LINE]
        self._queue = len(self._map) - _QUEUE_AT - self._rest
        self._rest_at = _QUEUE_AT + self._queue

    @staticmethod
    def create_fd(*, head: int, rest: int, line: int) -> int:
        """An anonymous file for the lines of one child.

        Args:
            head: bytes of an attempt that are told as they come.
            rest: bytes of its end that are kept beyond that.
            line: most bytes of one line.
        """
        fd = os.memfd_create("scylla-spark-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _QUEUE_AT + head + rest + _SLACK + rest)
        words = [0] * _WORDS
        words[_HEAD], words[_REST], words[_LINE] = head, rest, line
        os.pwrite(fd, struct.pack(f"={_WORDS}q", *words), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd

    def close(self) -> None:
        """Unmaps the memory."""
        self._words.release()
        self._map.close()

    # ---- the child's side ----

    def put(self, frame: bytes, *, at_once: bool) -> bool:
        """Hands over a frame, or keeps it in the rest, where it may overwrite older ones.

        Args:
            frame: at most some kilobytes.
            at_once: whether it may be told before the attempt ends.

        Returns:
            Whether it was handed over.
        """
        words = self._words
        if at_once and words[_BEGIN] != words[_END]:
            self.release()
        if at_once and words[_BEGIN] == words[_END] and self._push(frame):
            return True
        self._keep(frame)
        return False

    @property
    def kept(self) -> int:
        """Returns how many bytes were ever kept in the rest."""
        return self._words[_END]

    @property
    def rest(self) -> int:
        """Returns how many of them it holds."""
        return self._rest

    def release(self) -> None:
        """Moves what lies in the rest to the queue, the oldest first, as far as there is room."""
        words = self._words
        while (begin := words[_BEGIN]) < words[_END]:
            frame = self._frame(self._rest_at, self._rest, begin, words[_END])
            if frame is None:
                words[_BEGIN] = words[_END]  # somebody wrote into it
            elif self._push(frame):
                words[_BEGIN] = begin + _LENGTH.size + len(frame)
            else:
                return

    def _push(self, frame: bytes) -> bool:
        written = self._words[_WRITTEN]
        end = written + _LENGTH.size + len(frame)
        if end - self._words[_READ] > self._queue:
            return False
        self._write(_QUEUE_AT, self._queue, written, frame)
        self._words[_WRITTEN] = end
        return True

    def _keep(self, frame: bytes) -> None:
        words, size = self._words, _LENGTH.size + len(frame)
        if size > self._rest:
            return
        while words[_END] + size - words[_BEGIN] > self._rest:
            oldest = self._frame(self._rest_at, self._rest, words[_BEGIN], words[_END])
            words[_BEGIN] = words[_END] if oldest is None else words[_BEGIN] + _LENGTH.size + len(oldest)
        self._write(self._rest_at, self._rest, words[_END], frame)
        words[_END] += size

    def _write(self, at: int, size: int, position: int, frame: bytes) -> None:
        data = _LENGTH.pack(len(frame)) + frame
        offset = position % size
        first = min(len(data), size - offset)
        self._map[at + offset : at + offset + first] = data[:first]
        self._map[at : at + len(data) - first] = data[first:]

    # ---- the dispatcher's side ----

    @property
    def waiting(self) -> bool:
        """Returns True if the queue holds anything."""
        return self._words[_WRITTEN] != self._words[_READ]

    @property
    def holds_lines(self) -> bool:
        """Returns True if there is anything in either part."""
        words = self._words
        return bool(words[_WRITTEN] != words[_READ] or words[_BEGIN] != words[_END])

    @property
    def fills_up(self) -> bool:
        """Returns True if more than an eighth of the queue waits: whoever empties it is too slow."""
        return (self._words[_WRITTEN] - self._words[_READ]) * 8 > self._queue

    @property
    def room(self) -> int:
        """Bytes that can wait in the queue at once."""
        return self._queue

    def take(self, most: int) -> list[bytes]:
        """The oldest frames of the queue, at most so many; a queue that cannot be is emptied."""
        words = self._words
        found: list[bytes] = []
        read, written = words[_READ], words[_WRITTEN]
        while read < written and len(found) < most:
            frame = self._frame(_QUEUE_AT, self._queue, read, written)
            if frame is None:
                read = written
                break
            found.append(frame)
            read += _LENGTH.size + len(frame)
        words[_READ] = min(read, written) if read >= 0 else written
        return found

    def take_rest(self) -> list[bytes]:
        """Returns what lies in the rest of a child that is dead; the queue must have been emptied before."""
        words = self._words
        found: list[bytes] = []
        begin, end = words[_BEGIN], words[_END]
        while 0 <= begin < end and (frame := self._frame(self._rest_at, self._rest, begin, end)) is not None:
            found.append(frame)
            begin += _LENGTH.size + len(frame)
        words[_BEGIN] = words[_END] = 0
        return found

    def _frame(self, at: int, size: int, begin: int, end: int) -> bytes | None:
        """The frame at a position of a ring; None if there cannot be one."""
        if not 0 <= begin < end or end - begin > size or end - begin < _LENGTH.size:
            return None
        length = _LENGTH.unpack(self._bytes(at, size, begin, _LENGTH.size))[0]
        if length > MAX_FRAME_BYTES or length + _LENGTH.size > end - begin:
            return None
        return self._bytes(at, size, begin + _LENGTH.size, length)

    def _bytes(self, at: int, size: int, position: int, length: int) -> bytes:
        offset = position % size
        first = min(length, size - offset)
        return self._map[at + offset : at + offset + first] + self._map[at : at + length - first]
