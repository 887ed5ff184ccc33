"""What a pool knows of one child with an event loop: the calls that it has, and when each began.

As with other children, all that comes from there is checked, since it runs user code; and the pool's own clock decides.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.local.child_handle import UNBEGUN_US, Call, Finished
from scylla_spark.executors.local.received_notes import Heard
from scylla_spark.executors.local.report import Report, is_extension, is_note, read, read_extension
from scylla_spark.handlers.framing import MAX_FRAME_BYTES, FrameReader, ProtocolError, pack
from scylla_spark.handlers.messages import extended, order_fields
from scylla_spark.handlers.shared_memory import SharedMemory

_RECV_BYTES: Final = 1024 * 1024
_SPARE: Final = 1_000  # calls that are over may stand in the heap of times
_SKEW_US: Final = 1_000_000


class LoopChildHandle:
    """One child, seen from the pool. Not thread-safe.

    Args:
        number: which child this is, for the forkserver.
        handler: the one that it runs.
        now: boot clock, microseconds.
        longest_ms: how long a call may run at most if it asks for longer.

    Attributes:
        calls: unfinished calls by their number, each of one task.
        pid: 0 until the forkserver has told.
        ending: why it is being killed (a failure kind), or empty.
        victims: numbers of the calls because of which it is being killed.
        deaf: its socket is not read any more.
        fault: what it did that no child of ours does, or empty.
        heard: what its calls say while they run.
        idle_us: boot clock since when it has had nothing to do.
        asked_us: boot clock when the forkserver was asked for it, and later for its end.
        accused: the step for which its handler was named in the log.
    """

    def __init__(self, number: int, handler: str, now: int, longest_ms: int = 0) -> None:
        self._longest_ms = longest_ms
        self.number = number
        self.handler = handler
        self.calls: dict[int, Call] = {}
        self.pid = 0
        self.ending = ""
        self.victims: set[int] = set()
        self.deaf = False
        self.fault = ""
        self.accused = (0, 0)
        self.idle_us = self.asked_us = self._born_us = now
        self.sock, self._theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._slot_fd = SharedMemory.create_fd()
        self.slot = SharedMemory(self._slot_fd)
        self._reader = FrameReader(fast_json.load, longest=MAX_FRAME_BYTES)
        self._next = 1
        self._begun: dict[int, int] = {}  # number → boot clock when it was first seen to have begun
        self._noted = 0  # the last call that was seen to have begun
        self._waits_us = 0  # since when a call has not begun
        self._due: list[tuple[int, int]] = []  # heap of (boot clock, number): when a call should have ended
        self.heard = Heard()
        self._known: set[int] = set()  # calls that are over for us, and whose record is still to come
        self._unsent = bytearray()

    def hand_over(self) -> tuple[socket.socket, int]:
        """The child's ends of socket and memory, for the forkserver."""
        return self._theirs, self._slot_fd

    def handed_over(self) -> None:
        """Closes our copies of what the child has now."""
        self._theirs.close()
        os.close(self._slot_fd)

    @property
    def blocked(self) -> bool:
        """Whether bytes wait for the socket to become writable."""
        return bool(self._unsent)

    @property
    def well(self) -> bool:
        """Whether it is one to give calls to, if its loop is free."""
        return not (self.ending or self.deaf or self.fault)

    def step(self, now: int) -> tuple[int, int]:
        """The call whose code has the loop, and for how long (microseconds); (0, 0) if the loop is free."""
        number, since = self.slot.stepping, self.slot.started_us
        return (number, max(0, now - max(since, self._born_us))) if since else (0, 0)

    def send(self, items: Sequence[Invocation], now: int) -> None:
        """Has these invocations begun, without ever waiting for the child.

        Args:
            items: in the order in which they begin.
            now: boot clock.
        """
        if self._noted == self._next - 1:
            self._waits_us = now
        orders = []
        for item in items:
            self.calls[self._next] = [item]
            orders.append(order_fields(self._next, item.start_by_us, False, [item], self._longest_ms))
            self._next += 1
        self._say([orders, []])

    def cancel(self, numbers: Sequence[int]) -> None:
        """Asks for the end of these calls."""
        self._say([[], list(numbers)])

    def flush(self) -> None:
        """Writes what the socket takes."""
        try:
            sent = self.sock.send(self._unsent)
            del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # it is dead, as the forkserver will tell

    def look(self, now: int) -> None:
        """Notes which calls have begun, and a fault if the child does not begin what it was given though its loop is free."""
        claimed = self.slot.claimed
        if not self._noted <= claimed < self._next:
            self.fault = self.fault or "its memory names a call that it cannot have begun"
            return
        for number in range(self._noted + 1, claimed + 1):
            if number in self.calls:
                self._begun[number] = now
                heappush(self._due, (now + self.calls[number][0].timeout_ms * 1000, number))
        if len(self._due) > 2 * len(self.calls) + _SPARE:
            self._due = [
                due for due in self._due if due[1] in self.calls
            ]  # of quick tasks whose time would be over much later
            heapify(self._due)
        if claimed > self._noted or not self.pid or self.step(now)[0]:
            self._waits_us = now
        self._noted = claimed
        if self.waiting and now - self._waits_us > UNBEGUN_US:
            self.fault = self.fault or "it did not begin a call that it was given"

    def forgive(self, now: int) -> None:
        """Begins all waiting anew: the pool itself did not run for a while."""
        self.asked_us = self._waits_us = now

    @property
    def waiting(self) -> bool:
        """Whether a call has not begun that it was given."""
        return self._noted < self._next - 1

    def begun(self) -> Iterable[tuple[int, int]]:
        """Number and start (boot clock) of each call that runs; after `look`."""
        return self._begun.items()

    def has_begun(self, number: int) -> bool:
        """Whether a call may have begun; after `look`, and of a child with a fault all may."""
        return number <= self._noted or bool(self.fault)

    def began_us(self, number: int) -> int:
        """Boot clock of the start of a call; 0: not known."""
        return self._begun.get(number, 0)

    def overdue(self, now: int) -> tuple[list[int], int]:
        """Calls whose time was over before `now`, and when that of the next one will be (0: of none)."""
        found = []
        while self._due and (self._due[0][0] <= now or self._due[0][1] not in self.calls):
            _, number = heappop(self._due)
            if number not in self.calls:
                continue
            due = self._begun[number] + self.calls[number][0].timeout_ms * 1000
            if due <= now:
                found.append(number)
            else:  # it has asked for longer
                heappush(self._due, (due, number))
        return found, self._due[0][0] if self._due else 0

    def receive(self, now: int) -> tuple[list[Finished], bool]:
        """Reports that have arrived, and whether the child may send more."""
        try:
            data = self.sock.recv(_RECV_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        found = self._read(data, now)
        return found, bool(data) and not self.fault

    def drain(self, now: int) -> list[Finished]:
        """Everything that a dead child has sent and not sent."""
        found: list[Finished] = []
        with contextlib.suppress(OSError):
            while not self.fault and (data := self.sock.recv(_RECV_BYTES)):
                found += self._read(data, now)
        self.look(now)
        return found + self.unsent_reports(now)

    def unsent_reports(self, now: int) -> list[Finished]:
        """Reports of finished calls that the child did not get to send."""
        found: list[Finished] = []
        with contextlib.suppress(ValueError, RecursionError):
            for record in fast_json.load(b"[" + self.slot.outbox() + b"]"):
                report = read(record)
                if report.number in self.calls:
                    found.append((self._take_out(report, now), self.heard.with_report(report)))
                    self._known.add(report.number)
        return found

    def pop(self, number: int) -> Call:
        """Takes a call out, because it is over or goes elsewhere."""
        self._begun.pop(number, None)
        return self.calls.pop(number)

    def close(self) -> None:
        """Frees what belongs to the child."""
        self.sock.close()
        self.slot.close()

    def _say(self, message: object) -> None:
        self._unsent += pack(fast_json.dump(message))
        self.flush()

    def _read(self, data: bytes, now: int) -> list[Finished]:
        found: list[Finished] = []
        self.look(now)
        try:
            for frame in self._reader.feed(data):
                if type(frame) is not list or not frame:
                    raise ProtocolError("a frame that is no list of records")
                for record in frame:
                    if is_note(record):
                        self._hear(record)
                        continue
                    report = read(record)
                    if report.number in self._known:
                        self._known.remove(report.number)
                    else:
                        found.append((self._take_out(report, now), self.heard.with_report(report)))
        except ProtocolError as error:
            self.fault = self.fault or str(error)
        self.fault = self.fault or self._reader.fault
        return found

    def _hear(self, record: list[Any]) -> None:
        if not is_extension(record):
            self.heard.take(record, self.calls)
            return
        number, asked_ms = read_extension(record)
        if number in self.calls:
            self.calls[number] = extended(self.calls[number], asked_ms, self._longest_ms)

    def _take_out(self, report: Report, now: int) -> Call:
        """The call that a report speaks of; it is over.

        Raises:
            ProtocolError: by all we know the child cannot have ended that call so.
        """
        call = self.calls.get(report.number)
        if call is None or report.number > self._noted:
            raise ProtocolError("the record of a call that it does not have")
        if not report.verdicts:
            if call[0].start_by_us > now + _SKEW_US:
                raise ProtocolError("it handed a call back without a reason")
        elif len(report.verdicts) != 1:
            raise ProtocolError(f"{len(report.verdicts)} outcomes for one task")
        if report.duration_us > now - self._born_us + _SKEW_US:
            raise ProtocolError("a duration longer than its life")
        return self.pop(report.number)
