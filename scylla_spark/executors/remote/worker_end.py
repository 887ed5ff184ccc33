"""The worker's end of a connection to its dispatcher, as a state machine: frames, outcomes and time in; frames and work out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.output import read_links
from scylla_spark.core.tasks.task import NOT_STARTED, SUCCEEDED, Invocation, Outcome
from scylla_spark.executors.remote.frames import (
    BEAT,
    BEGUN,
    DEAD,
    DRAIN,
    END,
    ENDS,
    HEARD,
    KILL,
    LINES,
    RECALL,
    SAYS,
    TASKS,
    Room,
    Rooms,
    read_task,
)
from scylla_spark.executors.remote.link import Link
from scylla_spark.handlers.framing import ProtocolError
from scylla_spark.handlers.messages import FOLLOW_UP, NOTE, OUTPUT, RETURNED

_NOTHING_ELSE: Final = Outcome(0, SUCCEEDED)[4:]
LEASE_ENDED: Final = "it has heard no dispatcher until its lease ended"
DRAINED: Final = "it was drained"
_MOST_RECORDS: Final = 64
"""In one frame: each has at most some 300 KiB, and a dispatcher reads frames of at most 32 MiB."""
SLICE_CHARS: Final = 64 * 1024
"""Of lines in one frame, unless one line is longer."""
_MOST_UNREAD_CHARS: Final = 128 * 1024
"""Of lines that may be on their way: outcomes that come to be meanwhile are written behind them."""


class Kill(NamedTuple):
    """Attempts whose end the dispatcher asks for."""

    ids: list[int]
    grace_ms: int


class Recall(NamedTuple):
    """Attempts that the dispatcher wants back if they have not begun."""

    ids: list[int]


class End(NamedTuple):
    """The worker is to end its handlers now, and itself."""


class WorkerEnd:
    """What a Spark worker has, and until when it may run handlers. Not thread-safe.

    Args:
        now: boot clock of the worker, microseconds, as everywhere here.
        lease_us: how long it may run handlers before it has heard of a lease.

    Attributes:
        leased_until_us: after this it kills its handlers.
        draining: it takes no more work, and ends once it has none.
        held: ids of the attempts that it has.
    """

    def __init__(self, now: int, lease_us: int) -> None:
        self.link = Link()
        self.leased_until_us = now + lease_us
        self.draining = False
        self.held: set[int] = set()
        self._begun: set[int] = set()
        self._taken: Counter[str] = Counter()
        self._beat: tuple[int, int] | None = None
        self._lines: deque[tuple[int, int]] = deque()  # number and characters of frames with lines

    def receive(self, frame: Any, now: int) -> list[Invocation | Kill | Recall | End]:
        """Takes a frame; what the pool is to do, in order.

        Raises:
            ProtocolError: no dispatcher of ours sends that.
        """
        body = self.link.receive(frame)
        if body is None:
            return []
        kind = body[0]
        if kind == BEAT:
            self.leased_until_us = max(self.leased_until_us, body[1])
            self._beat = (body[2], now)
            return []
        if kind == TASKS:
            ahead_us = body[2]
            items = [read_task(fields, ahead_us) for fields in body[3]]
            self._taken[body[1]] += len(items)
            self.held.update(item.id for item in items)
            return list(items)
        if kind == KILL:
            return [Kill(body[1], body[2])]
        if kind == RECALL:
            return [Recall([number for number in body[1] if number in self.held])]
        if kind == END:
            return [End()]
        if kind == HEARD:
            return []
        if kind == DRAIN:
            self.draining = True
            return [Recall(sorted(self.held))]
        raise ProtocolError(f"a body of no kind: {kind!r}")

    def may_run(self, now: int) -> bool:
        """Returns True if its lease lasts; if not, it kills its handlers and says so with `dead`."""
        return now < self.leased_until_us

    @property
    def asked(self) -> bool:
        """Returns True if a lease was not answered yet; an answer without delay measures the clocks best."""
        return self._beat is not None

    def beat(self, free: Mapping[str, int], memory: int, now: int) -> list[Any]:
        """A heartbeat, and an answer to the last lease if that was not answered yet.

        Args:
            free: by executor name, how many more attempts would start soon.
            memory: bytes that it uses.
            now: boot clock.
        """
        echo_us, received_us = self._beat or (0, 0)
        self._beat = None
        return self.link.unnumbered([BEAT, echo_us, received_us, now, self._rooms(free), memory])

    def begun(self, running: Mapping[int, int]) -> None:
        """Reports starts, each once.

        Args:
            running: id → boot clock of the start.
        """
        new = [
            [number, at_us] for number, at_us in running.items() if number in self.held and number not in self._begun
        ]
        if new:
            self._begun.update(number for number, _ in new)
            self.link.send([BEGUN, new])

    def ended(self, outcomes: Iterable[Outcome], free: Mapping[str, int], wall_minus_boot_us: int) -> None:
        """Reports outcomes; attempts that did not start are handed back.

        Args:
            outcomes: of the pool, with times of the wall clock.
            free: by executor name, how many more attempts would start soon.
            wall_minus_boot_us: how far that clock is ahead of the boot clock now.
        """
        records: list[list[Any]] = []
        for one in outcomes:
            self.held.discard(one.id)
            self._begun.discard(one.id)
            if one.outcome == SUCCEEDED and one[4:] == _NOTHING_ELSE:
                started_us = one.started_us - wall_minus_boot_us
                records.append([one.id, max(0, started_us), max(0, one.finished_us - one.started_us)])
                continue
            if one.outcome == NOT_STARTED:
                records.append([one.id, RETURNED, 0, 0, None, None, 0])
                continue
            said = [] if one.work is None else notes_of(one.id, one.work)
            self.says(said + [[FOLLOW_UP, one.id, *follow_up] for follow_up in one.follow_ups])
            failure = None if one.failure is None else [*one.failure]
            started_us = max(0, one.started_us - wall_minus_boot_us)
            duration_us = max(0, one.finished_us - one.started_us)
            records.append([one.id, one.outcome, started_us, duration_us, one.result, failure, one.after_ms])
        for at in range(0, len(records), _MOST_RECORDS):
            self.link.send([ENDS, records[at : at + _MOST_RECORDS], self._rooms(free)])

    def says(self, notes: Sequence[list[Any]]) -> None:
        """Passes notes of attempts on, in the form of children."""
        for at in range(0, len(notes), _MOST_RECORDS):
            self.link.send([SAYS, list(notes[at : at + _MOST_RECORDS])])

    def wrote(self, lines: list[list[str]]) -> None:
        """Passes on what handlers have written."""
        for part in _parts(lines):
            self.link.send([LINES, part])
            self._lines.append((self.link.sent, sum(len(frame) for frames in part for frame in frames)))

    @property
    def has_way_for_lines(self) -> bool:
        """Returns True if more lines may be sent now."""
        self._forget_read_lines()
        return sum(chars for _, chars in self._lines) < _MOST_UNREAD_CHARS

    @property
    def lines_were_read(self) -> bool:
        """Returns True if the dispatcher has acknowledged lines since this was asked last."""
        return self._forget_read_lines() > 0

    def _forget_read_lines(self) -> int:
        before = len(self._lines)
        while self._lines and self._lines[0][0] <= self.link.acknowledged:
            self._lines.popleft()
        return before - len(self._lines)

    def dead(self, reason: str) -> None:
        """Reports that all its handlers are dead; nothing follows."""
        self.held.clear()
        self.link.send([DEAD, reason])

    def _rooms(self, free: Mapping[str, int]) -> Rooms:
        return {name: Room(0 if self.draining else count, self._taken[name]) for name, count in free.items()}

    @property
    def drained(self) -> bool:
        """Returns True if it was drained and has nothing any more, so that it can end."""
        return self.draining and not self.held


def _parts(lines: list[list[str]]) -> Iterator[list[list[str]]]:
    part: list[list[str]] = []
    chars = 0
    for frames in lines:
        part.append([])
        for frame in frames:
            if chars + len(frame) > SLICE_CHARS and chars:
                yield part
                part, chars = [[]], 0
            part[-1].append(frame)
            chars += len(frame)
    if chars:
        yield part


def notes_of(number: int, work: WorkNote) -> list[list[Any]]:
    """Returns what an attempt says of its work, in the form of children.

    Args:
        number: id of the attempt.
        work: what it says.
    """
    links = [[OUTPUT, number, *link] for link in read_links(work.outputs)]
    return [[NOTE, number, *work.heard_fields], *links]
