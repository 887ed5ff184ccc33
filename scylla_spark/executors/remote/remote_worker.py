"""What a dispatcher knows of one Spark worker: its connection, its clock, its room, and the attempts that it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.remote.boot_offset import BootOffset, Offset
from scylla_spark.executors.remote.frames import BEAT, DRAIN, END, HEARD, KILL, RECALL, TASKS, Beat, Rooms
from scylla_spark.executors.remote.link import Link

_MOST_LACKS: Final = 20  # that operators are shown
_FRAME_CHARS: Final = 64 * 1024  # of payloads and checkpoints in one frame; the last one comes on top


class Hello(NamedTuple):
    """What a worker says of itself when it connects for the first time; proven by the key of its job.

    Attributes:
        executor_id: of Spark.
        host: name or address of its machine.
        handlers: name → digest of the definition, of all that it has loaded.
    """

    executor_id: str
    host: str
    handlers: Mapping[str, str]


class Held:
    """An attempt that a worker has.

    Args:
        item: the attempt.
        name: of its executor.
        sent_us: boot clock.

    Attributes:
        begun_us: boot clock of the dispatcher when its handler began, as the worker reports; 0: not reported.
        recalled_us: boot clock when its worker was asked for it last; 0: it was not.
    """

    __slots__ = ("begun_us", "item", "name", "recalled_us", "sent_us")

    def __init__(self, item: Invocation, name: str, sent_us: int) -> None:
        self.item = item
        self.name = name
        self.sent_us = sent_us
        self.begun_us = 0
        self.recalled_us = 0


class RemoteWorker:
    """One Spark worker, seen from its dispatcher.

    Args:
        hello: what it says of itself.
        now: boot clock of the dispatcher, microseconds, as everywhere here.
        lease_us: how long a lease lasts.
        handlers: name → digest of the definition, of those that the dispatcher has.

    Attributes:
        lacks: handlers of the dispatcher that it has in another version, or not at all, so that it gets no task of them.
        runs: the other ones.
        connected: there is a connection to it.
        draining: it gets no more work.
        has_job: its Spark job has not ended.
        expelled: it broke the rules of the conversation, and must not connect again.
        held: attempts that it has, by id, in the order sent.
        leased_until_us: after this its handlers are dead, unless it gets another lease.
        silent_since_us: when it was heard last.
        rooms: what it would take, as it said last.
        why_lost: what attempts say that are lost because it is silent.
        owes_answer: lines came in whose sender waits for the acknowledgement.
        note: names executor and host; it goes with every attempt that ran here.
    """

    def __init__(self, hello: Hello, now: int, lease_us: int, handlers: Mapping[str, str]) -> None:
        self.hello = hello
        self.lacks = sorted(name for name, digest in handlers.items() if _differs(digest, hello.handlers.get(name)))
        self.runs = frozenset(handlers).difference(self.lacks)
        self.link = Link()
        self.offset = BootOffset()
        self.connected = True
        self.draining = False
        self.has_job = True
        self.expelled = False
        self.held: dict[int, Held] = {}
        self.silent_since_us = now
        self.leased_until_us = now + lease_us  # it has one from its first frame on
        self.memory = 0
        self.why_lost = "Its Spark worker was not heard from until its lease had ended."
        self.rooms: Rooms = {}
        self.owes_answer = False
        self.note = WorkNote(worker=f"executor {hello.executor_id} on {hello.host}")
        self._sent: Counter[str] = Counter()

    @property
    def takes_work(self) -> bool:
        """Returns True if it may be given attempts, as far as it has room."""
        return self.connected and not self.draining

    def room(self, name: str) -> int:
        """Returns how many more attempts of an executor name it would take."""
        room = self.rooms.get(name)
        return 0 if room is None else max(0, room.free - (self._sent[name] - room.taken))

    def clock(self, now: int, most_error_us: int) -> Offset | None:
        """The offset of its boot clock; None if that is not known well enough to give it work."""
        best = self.offset.best(now)
        return best if best is not None and best.error_us <= most_error_us else None

    def give(self, items: Collection[Invocation], name: str, clock: Offset, now: int) -> None:
        """Sends attempts to it; none of them starts there after its `start_by_us`, by our clock.

        Args:
            items: the attempts, in order.
            name: of their executor.
            clock: see `clock`.
            now: boot clock.
        """
        ahead_us = clock.us - clock.error_us
        rows: list[list[Any]] = []
        chars = 0
        for item in items:
            if chars > _FRAME_CHARS:
                self.link.send([TASKS, name, ahead_us, rows])
                rows, chars = [], 0
            self.held[item.id] = Held(item, name, now)
            rows.append(item.fields)
            chars += len(item.payload) + len(item.checkpoint or "")
        self.link.send([TASKS, name, ahead_us, rows])
        self._sent[name] += len(items)

    def take(self) -> list[list[Any]]:
        """The frames that are to be written to it now."""
        frames = self.link.take()
        if self.owes_answer and not frames:
            frames.append(self.link.unnumbered([HEARD]))
        self.owes_answer = False
        return frames

    def kill(self, ids: Collection[int], grace_ms: int) -> None:
        """Asks for the end of attempts, whether they run or wait."""
        self.link.send([KILL, sorted(ids), grace_ms])

    def recall(self, ids: Collection[int], now: int) -> None:
        """Asks for attempts that have not begun; it returns those that it can.

        One that a child of it has is not among them. Its pool takes such an attempt from a child that hangs, and then another
        request succeeds.
        """
        for number in ids:
            self.held[number].recalled_us = now
        self.link.send([RECALL, sorted(ids)])

    def drain(self) -> None:
        """Gives it no more work, and asks for what has not begun."""
        if not self.draining:
            self.draining = True
            self.link.send([DRAIN])

    def end(self) -> None:
        """Asks it to end its handlers now, and itself."""
        self.link.send([END])

    def lease(self, length_us: int, clock: Offset, now: int) -> list[object]:
        """A frame that lets its handlers run for a while from now, by the earliest reading of its clock.

        Args:
            length_us: for how long.
            clock: see `clock`.
            now: boot clock.
        """
        self.leased_until_us = max(self.leased_until_us, now + length_us)
        return self.link.unnumbered([BEAT, now + length_us + clock.us - clock.error_us, now])

    def heard(self, beat: Beat, now: int) -> None:
        """Takes a heartbeat."""
        if beat.echo_us:
            self.offset.note(beat.echo_us, beat.received_us, beat.answered_us, now)
        self.rooms = beat.rooms
        self.memory = beat.memory

    def with_place(self, note: WorkNote | None) -> WorkNote:
        """The note of an attempt, with the executor and the host on which it runs."""
        return self.note if note is None else note._replace(worker=self.note.worker)

    def described(self, now: int) -> dict[str, Any]:
        """Returns what operators are shown of it.

        Args:
            now: boot clock.
        """
        clock = self.offset.best(now)
        return {
            "executor": self.hello.executor_id,
            "host": self.hello.host,
            "state": "draining" if self.draining else "running" if self.connected else "cut_off",
            "tasks": len(self.held),
            "running": sum(bool(held.begun_us) for held in self.held.values()),
            "memory_bytes": self.memory or None,
            "clock_offset_ms": None if clock is None else clock.us / 1000,
            "clock_error_ms": None if clock is None else clock.error_us / 1000,
            "lacks": self.lacks[:_MOST_LACKS],
            "silent_ms": max(0, now - self.silent_since_us) // 1000,
        }

    def is_late(self, now: int) -> bool:
        """Returns True if it has an attempt that has not begun and may not start any more."""
        return any(held.item.start_by_us <= now and not held.begun_us for held in self.held.values())

    def waits(self, name: str, now: int, for_us: int) -> list[list[int]]:
        """Lanes of which nothing that is here has begun, as ids of their attempts in order.

        Args:
            name: of the executor of the attempts.
            now: boot clock.
            for_us: how long ago they were sent, or asked for, at least.
        """
        lanes: dict[str, list[Held]] = {}
        for held in self.held.values():
            lanes.setdefault(held.item.key.ordering_id, []).append(held)
        return [
            [held.item.id for held in lane]
            for lane in lanes.values()
            if not any(
                held.begun_us or held.name != name or now - max(held.sent_us, held.recalled_us) < for_us
                for held in lane
            )
        ]


def _differs(ours: str, theirs: str | None) -> bool:
    """Returns True if a worker lacks a handler, or has another version of it; an empty digest is that of any version."""
    return theirs is None or bool(ours and theirs and ours != theirs)
