"""What a pool knows of one child: its calls, its unsent bytes, what was taken back."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Container, Sequence
from typing import Any, Final, Protocol

from scylla_spark.core import quick
from scylla_spark.core.task import Invocation
from scylla_spark.executors.frame import FrameReader, pack
from scylla_spark.executors.slot import Slot

Call = list[Invocation]
_RECV_BYTES: Final = 1024 * 1024
STUCK_US: Final = 20_000
RECLAIM_US: Final = 1_000  # from revoking to reclaiming: far longer than any store buffer keeps a write


class Member:
    """One child, seen from the pool. Not thread-safe.

    Attributes:
        number: which child this is, for the zygote.
        calls: unfinished calls by their number, in the order sent.
        pid: 0 until the zygote has told.
        ending: why it is being killed (a failure kind), or empty.
        victim: number of the call because of which it is being killed.
        deaf: its socket is closed; it dies, or has died.
        depth: how many calls it may have, as long as it has any.
        idle_us: boot clock since when it has had nothing to do.
    """

    def __init__(self, number: int, now: int) -> None:
        self.number = number
        self.calls: dict[int, Call] = {}
        self.pid = 0
        self.ending = ""
        self.victim = 0
        self.deaf = False
        self.idle_us = now
        self.depth = 0
        self.sock, self._theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._slot_fd = Slot.create_fd()
        self.slot = Slot(self._slot_fd)
        self._reader = FrameReader(quick.load)
        self._next = 1
        self._revoked_from = 0
        self._revoked_to = 0
        self._revoked_us = 0
        self._unsent = bytearray()

    def hand_over(self) -> tuple[socket.socket, int]:
        """The child's ends of socket and memory, for the zygote."""
        return self._theirs, self._slot_fd

    def handed_over(self) -> None:
        """Closes our copies of what the child has now."""
        self._theirs.close()
        os.close(self._slot_fd)

    @property
    def blocked(self) -> bool:
        """Whether bytes wait for the socket to become writable."""
        return bool(self._unsent)

    def usable(self, now: int) -> bool:
        """Whether it may be given calls: it is well, does not hang, and has passed what was taken back."""
        if self.ending or self.deaf or self._unsent or self.revoking:
            return False
        return not self.calls or not self.hangs(now)

    def hangs(self, now: int) -> bool:
        """Whether the current call runs so long that nothing should wait behind it."""
        _, started = self.current()
        return started > 0 and now - started > STUCK_US

    @property
    def behind(self) -> bool:
        """Whether calls wait behind the current one."""
        return bool(self.calls) and next(reversed(self.calls)) > self.slot.claimed

    def send(self, calls: Sequence[Call], batches: set[str], followers: Container[int] = ()) -> None:
        """Gives calls to the child, without ever waiting for it.

        Args:
            calls: in the order in which they are to run.
            batches: names of batch handlers.
            followers: ids of invocations that run only if the call before succeeded.
        """
        rows = []
        for call in calls:
            number = self._next
            self._next = number + 1
            self.calls[number] = call
            first = call[0]
            if first.handler in batches:
                rows.append([number, first.handler, first.start_by_us, [_row(item) for item in call]])
            elif first.id in followers:
                rows.append([-number, first.handler, first.start_by_us, *_row(first)])
            else:
                rows.append([number, first.handler, first.start_by_us, *_row(first)])
        self._unsent += pack(quick.dump(rows))
        self.flush()

    def flush(self) -> None:
        """Writes what the socket takes."""
        try:
            sent = self.sock.send(self._unsent)
            del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # it is dead, as the zygote will tell

    def receive(self) -> tuple[list[list[Any]], bool]:
        """Records that have arrived, and whether the child can still send."""
        try:
            data = self.sock.recv(_RECV_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        return [record for frame in self._reader.feed(data) for record in frame], bool(data)

    def drain(self) -> list[list[Any]]:
        """Everything that a dead child has sent and not sent."""
        found: list[list[Any]] = []
        with contextlib.suppress(OSError):
            while data := self.sock.recv(_RECV_BYTES):
                found += [record for frame in self._reader.feed(data) for record in frame]
        return found + self.unsent_records()

    def unsent_records(self) -> list[list[Any]]:
        """Records of finished calls that the child did not get to send."""
        with contextlib.suppress(ValueError):
            return list(json.loads(b"[" + self.slot.outbox() + b"]"))
        return []

    def current(self) -> tuple[int, int]:
        """Number and start (boot clock) of the call that runs; (0, 0) if none does."""
        number, started = self.slot.claimed, self.slot.started_us
        return (number, started) if started and number in self.calls and number == self.slot.claimed else (0, 0)

    @property
    def revoking(self) -> bool:
        """Whether revoked calls are still to be reclaimed."""
        return self._revoked_to > self.slot.claimed + 1

    def revoke(self, now: int) -> None:
        """Takes back all calls behind the current one; `reclaim` hands them out soon."""
        claimed = self.slot.claimed
        if not self.revoking and self.behind:
            self._revoked_from, self._revoked_to, self._revoked_us = claimed + 1, self._next, now
            self.slot.revoke(self._revoked_from, self._revoked_to)

    def reclaim(self, now: int) -> list[Call]:
        """The revoked calls that certainly will not run, the last one first."""
        if not self.behind or now - self._revoked_us < RECLAIM_US:
            return []
        claimed = self.slot.claimed
        numbers = [n for n in self.calls if n > claimed and self._revoked_from <= n < self._revoked_to]
        return [self.calls.pop(number) for number in reversed(numbers)]

    def close(self) -> None:
        """Frees what belongs to the member."""
        self.sock.close()
        self.slot.close()


class Nursery(Protocol):
    """Where children come from and end."""

    def spawn(self, member: Member) -> None:
        """Starts the child of `member`; if that fails, its death is reported like any other."""

    def kill_child(self, number: int, grace_ms: int) -> None:
        """Ends a child and its process group."""


def _row(item: Invocation) -> tuple[object, ...]:
    key = item.key
    return (
        key[0], key[1], key[2], item.payload, item.attempt, item.epoch, item.queue, item.priority, item.timeout_ms,
    )  # fmt: skip
