"""What a pool knows of one child: its calls, which of them run, its unsent bytes, what was taken back.

A child runs its calls one after the other, or all at once on an event loop. In both it begins them in the order in which they were sent.

A child runs user code, which may write anything on its socket and into the shared memory. So everything from there is
checked, and the pool's own clock decides what a child that says nothing, or nothing true, may cost: a call is over at
the latest `UNBEGUN_US`, its timeout, and `SILENT_US` after it became the child's first. Code that takes trouble to
lie about its own child's calls is believed; it can harm nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Container, Iterable
from typing import Any, Final

from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.local.received_notes import Heard
from scylla_spark.executors.local.report import Report, is_extension, is_note, read, read_extension
from scylla_spark.handlers.framing import MAX_FRAME_BYTES, FrameReader, ProtocolError, pack
from scylla_spark.handlers.messages import extended, order_fields
from scylla_spark.handlers.shared_memory import SharedMemory

Call = list[Invocation]
Finished = tuple[Call, Report]
_RECV_BYTES: Final = 1024 * 1024
_SKEW_US: Final = 1_000_000  # our `now` may be older than what the child did since
_NEVER: Final = 1 << 62
STUCK_US: Final = 20_000  # nothing waits behind a call that runs for so long …
BUSY_US: Final = 100_000  # … and no call is given to an event loop that is held for so long
UNBEGUN_US: Final = 10_000_000  # how long a child may take to begin its first call
SILENT_US: Final = 5_000_000  # and to send the record of a call that it has ended
FORK_US: Final = 200_000  # how long calls wait for a child to be forked before they go to another
RECLAIM_US: Final = 1_000  # from revoking to reclaiming: far longer than any store buffer keeps a write


def timeout_us(call: Call) -> int:
    """Returns how long a call may run: the longest timeout of its tasks."""
    return max(item.timeout_ms for item in call) * 1000


class ChildHandle:
    """One child, seen from the pool. Not thread-safe.

    Args:
        number: which child this is, for the forkserver.
        now: boot clock, microseconds.
        longest_ms: how long a call may run at most if it asks for longer.
        executor: name of the executor that it serves.
        on_loop: whether its calls run at once, on an event loop.

    Raises:
        OSError: there are no descriptors, or no memory, for it.

    Attributes:
        number: which child this is, for the forkserver.
        calls: unfinished calls by their number, in the order sent.
        pid: 0 until the forkserver has told.
        ending: why it is being killed (a failure kind), or empty.
        victims: numbers of the calls because of which it is being killed.
        deaf: its socket is not read any more; it dies, or has died.
        fault: what it did that no child of ours does, or empty; then nothing of its socket counts any more.
        depth: how many calls it may have, as long as it has any.
        heard: what its calls say while they run.
        idle_us: boot clock since when it has had nothing to do.
        asked_us: boot clock when the forkserver was asked for it, and later for its end.
        accused: the step of its event loop for which its handler was named in the log.
    """

    def __init__(
        self, number: int, now: int, longest_ms: int = 0, *, executor: str = "", on_loop: bool = False
    ) -> None:
        self._longest_ms = longest_ms
        self.executor = executor
        self.on_loop = on_loop
        self.number = number
        self.calls: dict[int, Call] = {}
        self.pid = 0
        self.ending = ""
        self.victims: frozenset[int] = frozenset()
        self.accused = (0, 0)
        self.deaf = False
        self.fault = ""
        self.idle_us = now
        self.born_us = self.asked_us = now
        self.depth = 0
        self.sock, self._theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._slot_fd = SharedMemory.create_fd()
        try:
            self.slot = SharedMemory(self._slot_fd)
        except OSError:
            os.close(self._slot_fd)
            raise
        self._reader = FrameReader(fast_json.load, longest=MAX_FRAME_BYTES)
        self._next = 1
        self._claimed = 0  # the highest claim that was seen and can be
        self._running = (0, 0)  # number and start of a call, as they were when it was first seen to run
        self._begun: dict[int, int] = {}  # on a loop: number → boot clock when it was first seen to have begun
        self._noted = 0  # the last of them
        self._waits_us = now  # since when a loop that is free has not begun what it was given
        self._due_us = _NEVER  # no call on the loop has to end before
        self._first = 0  # the first unfinished call when `look` looked last
        self._first_us = 0  # since when it is that
        self._silent_us = 0  # since when it has ended, or been passed, without a record; 0: it has not
        self.heard = Heard()
        self._known: set[int] = set()  # calls that are over for us, and whose record is still to come
        self._followers: set[int] = set()
        self._revoked_from = 0
        self._revoked_to = 0
        self._revoked_us = 0
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
        """Returns True if bytes wait for the socket to become writable."""
        return bool(self._unsent)

    @property
    def claimed(self) -> int:
        """Number of the last call that the child has begun (or found revoked), as far as that can be."""
        value = self.slot.claimed
        if self._claimed <= value < self._next:
            self._claimed = value
        else:
            self.fault = self.fault or "its memory names a call that it cannot have begun"
        return self._claimed

    def usable(self, now: int) -> bool:
        """Returns True if it may be given calls: it is well, does not hang, and has passed what was taken back."""
        if self.ending or self.deaf or self._unsent or self.revoking or self.fault or self.unforked(now):
            return False
        return not self.hangs(now)

    def unforked(self, now: int) -> bool:
        """Returns True if the forkserver has not forked it in time, so that its calls are better given to another."""
        return not self.pid and not self.on_loop and now - self.born_us > FORK_US

    def hangs(self, now: int) -> bool:
        """Returns True if code of a call runs so long that nothing should be given to the child, or wait there."""
        _, since = self.holder(now)
        return since > 0 and now - since > (BUSY_US if self.on_loop else STUCK_US)

    def holder(self, now: int) -> tuple[int, int]:
        """The call whose code runs at this moment, and since when (boot clock); (0, 0): none."""
        if not self.on_loop:
            return self.current(now)
        since = self.slot.started_us
        return (self.slot.stepping, min(max(since, self.born_us), now)) if since else (0, 0)

    @property
    def waiting(self) -> bool:
        """Returns True if it has not begun a call that it was given."""
        return self.claimed < self._next - 1

    @property
    def behind(self) -> bool:
        """Returns True if calls wait behind the current one."""
        return bool(self.calls) and not self.on_loop and next(reversed(self.calls)) > self.claimed

    def send(self, calls: Iterable[Call], followers: Container[int] = ()) -> None:
        """Gives calls to the child, without ever waiting for it.

        Args:
            calls: in the order in which they are to begin.
            followers: ids of invocations that run only if the call before succeeded.
        """
        orders = []
        for call in calls:
            number = self._next
            self._next = number + 1
            self.calls[number] = call
            first = call[0]
            follows = first.id in followers
            if follows:
                self._followers.add(number)
            start_by = first.start_by_us if len(call) == 1 else min(item.start_by_us for item in call)
            orders.append(order_fields(number, start_by, follows, call, self._longest_ms))
        self._say([orders, []])

    def ask_to_end(self, ids: Container[int], now: int) -> list[int]:
        """Asks those of these invocations to end that can be asked, and returns their ids.

        On an event loop all can be, since their cancellation arrives behind them; else the one that runs.
        """
        numbers = list(self.calls) if self.on_loop else [number for number, _ in self.running(now)]
        asked = [number for number in numbers if any(item.id in ids for item in self.calls[number])]
        if self.on_loop and asked:
            self._say([[], asked])
        elif asked:
            self.slot.ask_to_end(asked[0])
        return [item.id for number in asked for item in self.calls[number] if item.id in ids]

    def _say(self, frame: object) -> None:
        self._unsent += pack(fast_json.dump(frame))
        self.flush()

    def flush(self) -> None:
        """Writes what the socket takes."""
        try:
            sent = self.sock.send(self._unsent)
            del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # it is dead, as the forkserver will tell

    def receive(self, now: int) -> tuple[list[Finished], bool]:
        """Reports that have arrived, and whether the child may send more; see `fault`."""
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
        return found + self.unsent_reports(now)

    def unsent_reports(self, now: int) -> list[Finished]:
        """Reports of finished calls that the child did not get to send."""
        found: list[Finished] = []
        claimed = self.claimed
        with contextlib.suppress(ValueError, RecursionError):
            for record in fast_json.load(b"[" + self.slot.outbox() + b"]"):
                report = read(record)
                if report.number in self.calls:
                    found.append((self._take_out(report, claimed, now), self.heard.with_report(report)))
                    self._known.add(report.number)
        return found

    def _read(self, data: bytes, now: int) -> list[Finished]:
        found: list[Finished] = []
        # a child rests before it sends; on a loop others run meanwhile
        runs = self.slot.claimed if self.slot.started_us and not self.on_loop else 0
        known, claimed = self._known, self.claimed
        try:
            for frame in self._reader.feed(data):
                if type(frame) is not list or not frame:
                    raise ProtocolError("a frame that is no list of records")
                for record in frame:
                    if is_note(record):
                        self._hear(record)
                        continue
                    report = read(record)
                    number = report.number
                    if number in known:
                        known.remove(number)
                    elif number == runs:
                        raise ProtocolError("the record of a call that still runs")
                    else:
                        found.append((self._take_out(report, claimed, now), self.heard.with_report(report)))
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

    def _take_out(self, report: Report, claimed: int, now: int) -> Call:
        """The call that a report speaks of; it is over.

        Raises:
            ProtocolError: by all we know the child cannot have ended that call so.
        """
        number = report.number
        call = self.calls.get(number)
        if call is None or number > claimed:
            raise ProtocolError("the record of a call that it does not have")
        if not report.verdicts:
            if not self._may_return(number, call, now):
                raise ProtocolError("it handed a call back without a reason")
        elif len(report.verdicts) != len(call):
            raise ProtocolError(f"{len(report.verdicts)} outcomes for {len(call)} tasks")
        if report.duration_us > now - self.born_us + _SKEW_US:
            raise ProtocolError("a duration longer than its life")
        return self.pop(number)

    def _may_return(self, number: int, call: Call, now: int) -> bool:
        late = min(item.start_by_us for item in call) <= now + _SKEW_US
        return late or number in self._followers or self._revoked_from <= number < self._revoked_to

    def pop(self, number: int) -> Call:
        """Takes a call out, because it is over or goes elsewhere."""
        if self._followers:
            self._followers.discard(number)
        if self._begun:
            self._begun.pop(number, None)
        return self.calls.pop(number)

    def running(self, now: int) -> Iterable[tuple[int, int]]:
        """Number and start (boot clock) of each call that runs."""
        if self.on_loop:
            self.look(now)
            return self._begun.items()
        current = self.current(now)
        return (current,) if current[0] else ()

    def overdue(self, now: int, patience_us: int) -> tuple[list[int], int]:
        """Calls that have run so much longer than they may, and when another one may have (0: none runs).

        Args:
            now: boot clock.
            patience_us: how much longer.
        """
        if self.on_loop and now < self._due_us + patience_us:
            return [], self._due_us + patience_us if self._begun else 0
        found, soonest = [], _NEVER
        for number, started in self.running(now):
            due = started + timeout_us(self.calls[number])
            if due + patience_us <= now:
                found.append(number)
            soonest = min(soonest, due)
        self._due_us = soonest
        return found, soonest + patience_us if soonest < _NEVER else 0

    def current(self, now: int) -> tuple[int, int]:
        """Number and start (boot clock) of the call that runs; (0, 0) if none does.

        The start is what the child told when it was first seen to run that call, if that can be.
        """
        number, started = self.slot.claimed, self.slot.started_us
        if not started or number not in self.calls or number != self.slot.claimed:
            return 0, 0
        if number != self._running[0]:
            self._running = (number, min(max(started, self.born_us), now))
        return self._running

    def begun(self) -> int:
        """For a child that is dead and drained: number of the last call that it may have begun.

        If its memory says what cannot be, that is the first one that is left; on an event loop, where many have begun, the last.
        """
        claimed = self.claimed
        if self.on_loop:
            return self._next if self.fault else claimed
        return claimed if claimed == self.slot.claimed else max(claimed, next(iter(self.calls), 0))

    def look(self, now: int) -> None:
        """Notes a fault if the child does not begin, or does not report, what it should have by our clock."""
        claimed = self.claimed
        if self.on_loop:
            self._look_at_loop(claimed, now)
            return
        first = next(iter(self.calls), 0)
        if first != self._first or not self.pid:
            self._first, self._first_us, self._silent_us = first, now, 0
        if not first or self.fault:
            return
        if claimed < first:
            if now - self._first_us > UNBEGUN_US:
                self.fault = "it did not begin a call that it was given"
        elif self.current(now)[0] != first:
            self._silent_us = self._silent_us or now
            if now - self._silent_us > SILENT_US:
                self.fault = "it ended a call without a record"

    def _look_at_loop(self, claimed: int, now: int) -> None:
        """Notes which calls have begun; what a loop that is free has not begun for long is a fault."""
        for number in range(self._noted + 1, claimed + 1):
            if number in self.calls:
                self._begun[number] = now
                self._due_us = min(self._due_us, now + timeout_us(self.calls[number]))
        if claimed > self._noted or not self.waiting or not self.pid or self.slot.started_us:
            self._waits_us = now
        self._noted = claimed
        if now - self._waits_us > UNBEGUN_US:
            self.fault = self.fault or "it did not begin a call that it was given"

    def forgive(self, now: int) -> None:
        """Begins all waiting anew: the pool itself did not run for a while, and so could not have seen an answer."""
        self.asked_us = self._first_us = self._waits_us = now
        self._silent_us = 0

    @property
    def revoking(self) -> bool:
        """Returns True if revoked calls are still to be reclaimed."""
        return self._revoked_to > self.claimed + 1

    def revoke(self, now: int) -> None:
        """Takes back all calls behind the current one; `reclaim` hands them out soon."""
        claimed = self.claimed
        if not self.revoking and self.behind:
            self._revoked_from, self._revoked_to, self._revoked_us = claimed + 1, self._next, now
            self.slot.revoke(self._revoked_from, self._revoked_to)

    def reclaim(self, now: int) -> list[Call]:
        """The revoked calls that certainly will not run, the last one first."""
        if not self.behind or now - self._revoked_us < RECLAIM_US:
            return []
        claimed = self.claimed
        numbers = [n for n in self.calls if n > claimed and self._revoked_from <= n < self._revoked_to]
        self._known.update(numbers)
        return [self.pop(number) for number in reversed(numbers)]

    def close(self) -> None:
        """Frees what belongs to the child."""
        self.sock.close()
        self.slot.close()
