"""What handlers print and log on a Spark worker, on its way to the dispatcher."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Sequence
from typing import Final

from scylla_spark.executors.interface import LogTerms
from scylla_spark.handlers.log_ring import LogMemory

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of lines that wait to be sent; one attempt may have as much as the settings say."""
_SLICE: Final = 256
_LINE: Final = b'["line",'


class WorkerLines:
    """The LogKeeper of a Spark worker: it reads frames (see `handlers.log_writer`) and understands none of them.

    Beyond the bound frames of lines are left out. The others are few and stay: they say how many lines there were, and so the dispatcher
    tells and counts what is missing.

    Args:
        terms: how much of an attempt is kept.
    """

    def __init__(self, terms: LogTerms) -> None:
        self._terms = terms
        self._most = max(MOST_BYTES, terms.most)
        self._lock = threading.Lock()
        self._memories: dict[Hashable, LogMemory] = {}
        self._frames: dict[Hashable, list[bytes]] = {}
        self._bytes = 0

    def open(self, child: Hashable) -> int:
        """A descriptor of the memory for the lines of a child, which the caller closes."""
        fd = LogMemory.create_fd(head=self._terms.head, rest=self._terms.tail, line=self._terms.line)
        try:
            memory = LogMemory(fd)
        except OSError:
            os.close(fd)
            raise
        with self._lock:
            self._memories[child] = memory
        return fd

    def close(self, child: Hashable) -> None:
        """The child is dead: what it has left is read, and its memory let go of."""
        with self._lock:
            memory = self._memories.pop(child, None)
            if memory is not None:
                self._read(child, memory)
                self._add(child, memory.take_rest())
                memory.close()

    def gather(self) -> None:
        """Reads what children have written so far, so that there is room in their memories."""
        with self._lock:
            for child, memory in self._memories.items():
                self._read(child, memory)

    def take(self, most: int) -> list[list[str]]:
        """The next frames, by child, as texts; empty if there is none.

        Args:
            most: bytes; the last frame comes on top.
        """
        self.gather()
        found: list[list[str]] = []
        with self._lock:
            for child in list(self._frames):
                frames, count = self._frames.pop(child), 0
                while count < len(frames) and most > 0:
                    most -= len(frames[count])
                    self._bytes -= len(frames[count])
                    count += 1
                if count:
                    found.append([frame.decode(errors="replace") for frame in frames[:count]])
                if count < len(frames):  # behind the other children, for the next time
                    self._frames[child] = frames[count:]
        return found

    def _read(self, child: Hashable, memory: LogMemory) -> None:
        left = memory.room  # something that goes on writing must not keep us here
        while left > 0 and (found := memory.take(_SLICE)):
            left -= sum(map(len, found))
            self._add(child, found)

    def _add(self, child: Hashable, found: Sequence[bytes]) -> None:
        for frame in found:
            most = self._most if frame.startswith(_LINE) else 2 * self._most
            if self._bytes + len(frame) <= most:
                self._frames.setdefault(child, []).append(frame)
                self._bytes += len(frame)
