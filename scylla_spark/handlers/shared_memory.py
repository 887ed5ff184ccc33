"""The memory that a pool shares with one child: what runs since when, what was taken back, what is not yet sent.

Neither side waits for the other here, so it works while the child is stuck in user code, even in C code that holds
the GIL, and after its death. Calls of a child are numbered 1, 2, 3 … in the order they are sent, and run in that
order.

* The child *claims* call n (`claimed = n`), then looks whether n is revoked. The pool revokes a range, then (a tick
  later) looks how far the child has claimed. So at least one of them sees the other: what is beyond the claim will
  not run and can go elsewhere.
* Finished calls lie in the outbox until they are sent; after a death the pool finds them here.

User code can write here what it likes, so the pool believes nothing of it without a look (see `ChildHandle`). The size is
sealed: a file that shrank would end whoever reads the memory, the dispatcher that is.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

_STARTED, _CLAIMED, _LOW, _HIGH, _USED, _STEP, _ENDING = range(7)
_OUTBOX_AT: Final = 64
OUTBOX_BYTES: Final = 256 * 1024
_FAULT_AT: Final = _OUTBOX_AT + OUTBOX_BYTES
_FAULT_BYTES: Final = 16 * 1024


class SharedMemory:
    """Shared memory of one child, mapped by both sides.

    Args:
        fd: file descriptor from `SharedMemory.create_fd`; stays open, and is the caller's.
    """

    __slots__ = ("_map", "_words")

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _FAULT_AT + _FAULT_BYTES)
        self._words = memoryview(self._map)[:_OUTBOX_AT].cast("q")

    @staticmethod
    def create_fd() -> int:
        """An anonymous file of the right size; its position is where a dying interpreter's stack is to be written."""
        fd = os.memfd_create("scylla-spark-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _FAULT_AT + _FAULT_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        os.lseek(fd, _FAULT_AT, os.SEEK_SET)
        return fd

    def close(self) -> None:
        """Unmaps the memory."""
        self._words.release()
        self._map.close()

    # ---- the child's side ----

    def claim(self, number: int, started_us: int) -> bool:
        """Announces that `number` starts now (boot clock), or with 0 that it was looked at and will not run.

        Returns:
            False if the pool has taken this call back: it must not run.
        """
        words = self._words
        words[_CLAIMED] = number
        if words[_LOW] <= number < words[_HIGH]:
            return False
        words[_STARTED] = started_us
        return True

    def rest(self) -> None:
        """Announces that nothing runs."""
        self._words[_STARTED] = 0

    def step(self, number: int, started_us: int) -> None:
        """In a child with an event loop: announces that the code of a call has the loop from now on (boot clock), until `rest`."""
        words = self._words
        words[_STEP] = number
        words[_STARTED] = started_us

    def is_asked_to_end(self, number: int) -> bool:
        """Returns True if the pool wants this call to end by itself."""
        return self._words[_ENDING] == number

    def put(self, record: bytes) -> bool:
        """Keeps the record of a finished call in the outbox.

        Returns:
            False if it does not fit.
        """
        used = self._words[_USED]
        end = used + len(record) + 1
        if end > OUTBOX_BYTES:
            return False
        self._map[_OUTBOX_AT + used : _OUTBOX_AT + end] = record + b","
        self._words[_USED] = end
        return True

    def take(self) -> bytes:
        """The outbox as the inside of a JSON array; it stays there until `clear`."""
        return self._map[_OUTBOX_AT : _OUTBOX_AT + max(self._words[_USED] - 1, 0)]

    def clear(self) -> None:
        """Empties the outbox, after its content was sent."""
        self._words[_USED] = 0

    # ---- the pool's side ----

    @property
    def claimed(self) -> int:
        """Number of the last call that was started (or found revoked)."""
        return self._words[_CLAIMED]

    @property
    def started_us(self) -> int:
        """Boot clock when the current call started; 0 while nothing runs."""
        return self._words[_STARTED]

    @property
    def stepping(self) -> int:
        """In a child with an event loop: number of the call whose code had the loop last."""
        return self._words[_STEP]

    def ask_to_end(self, number: int) -> None:
        """Asks the handler of a call, if it cares, to end."""
        self._words[_ENDING] = number

    def revoke(self, low: int, high: int) -> None:
        """Takes back calls `low` to `high` - 1; an earlier range must have been passed by the child."""
        self._words[_LOW] = low
        self._words[_HIGH] = high

    def outbox(self) -> bytes:
        """Like `take`, for the pool: empty if the child changed it meanwhile, or if its length cannot be."""
        before = (self._words[_CLAIMED], self._words[_USED])
        if not 0 <= before[1] <= OUTBOX_BYTES:
            return b""
        content = self.take()
        return content if before == (self._words[_CLAIMED], self._words[_USED]) else b""

    def fault(self) -> str:
        """The stack that a fatal signal left behind, or nothing."""
        return self._map[_FAULT_AT:].rstrip(b"\0").decode(errors="replace")
