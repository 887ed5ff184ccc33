"""A lane: the loaded tasks of one ordering id, of which at most one is under way."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from heapq import heappop, heappush
from typing import Final

from scylla_spark.core.engine.memory_use import Holding, attempt_bytes, cost_of
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.state import could_start_us
from scylla_spark.core.tasks.stored_records import NOTHING, Known
from scylla_spark.core.tasks.task import LastError

BEFORE_ALL: Final = TaskKey(-1, "", "")  # less than any key
STUB: Final = -1  # offset of a task of which only its lease is known
NEVER_EXPIRES_US: Final = 1 << 62


class LaneState(StrEnum):
    """What the lane is doing; shown to people by `lane show` and `task explain`."""

    WAITING = "waiting"  # for the time of its head
    READY = "ready"  # due; waits for room
    LOOKUP = "lookup"  # asking the tables whether the head has already completed
    STARTING = "starting"  # the start fact must stand first
    RUNNING = "running"
    RECORDING = "recording"  # an outcome was decided and is being written


# Names of their own, since up to Python 3.11 an attribute of an enumeration costs as much as ten of them.
WAITING, READY, LOOKUP, STARTING, RUNNING, RECORDING = LaneState
IDLE = frozenset({WAITING, READY})


class Stage(IntEnum):
    """How far one task is; the lane waits for tasks that are not OPEN, except for those that `replay` lets go ahead of their fact."""

    OPEN = 0  # may start when its time and turn have come
    RELEASED = 1  # an executor has it
    DECIDED = 2  # its attempt ended without ending the task; the fact is being written
    CLOSING = 3  # its completion is being written


OPEN, RELEASED, DECIDED, CLOSING = Stage


class Entry:
    """One open task as the dispatcher knows it.

    Attributes:
        key: identity.
        data: newest enqueue.
        attempt: number of the last recorded attempt.
        settled: how that attempt ended is recorded, not only that it started.
        announced: number of an attempt whose start fact stands although it has not begun.
        used: recorded attempts that count against the retry policy.
        next_us: earliest start of the next attempt.
        verified: known not to be completed.
        cancelled: a cancel was seen; no further attempt starts.
        stage: how far it is.
        held: the lane waits for its outcome, or for the fact of it.
        work: who has it, or had it last, and what was left behind.
        requests: of cancels whose senders wait for the end of the task.
        error: why the last attempt whose end is known did not succeed.
        first: offset of its first enqueue, as far as it is known; STUB: it is not.
        unique: whether that asked for its name to be unique.
        sole: it is known to hold its name.
        place: offset in `outcomes` of the fact that tells of the attempt; -1: there is none.
        cost: how many bytes it is taken to hold.
    """

    __slots__ = (
        "announced",
        "attempt",
        "cancelled",
        "cost",
        "data",
        "error",
        "first",
        "held",
        "key",
        "next_us",
        "place",
        "requests",
        "settled",
        "sole",
        "stage",
        "unique",
        "used",
        "verified",
        "work",
    )

    def __init__(self, data: Command, *, verified: bool, known: Known = NOTHING) -> None:
        self.key = data.key
        self.data = data
        self.verified = verified
        self.attempt = known.attempt
        self.settled = known.settled
        self.used = known.used
        self.next_us = max(known.next_us, data.key.time_us)
        self.announced = 0
        self.cancelled = False
        self.cost = cost_of(data)
        if known is not NOTHING:
            self.cost += attempt_bytes(known)
        self.stage = OPEN
        self.held = False
        self.requests: tuple[str, ...] = ()
        self.work: WorkNote | None = known.work
        self.error: LastError | None = known.error
        self.place = known.place
        self.first, self.unique, self.sole = data.offset, data.unique, False

    def note_first(self, offset: int, *, unique: bool) -> None:
        """Takes an enqueue of the task that may be older than what is known."""
        if offset < self.first or self.first == STUB:
            self.first, self.unique = offset, unique

    @property
    def undecided(self) -> bool:
        """Returns True if it is not known yet if another task has its name; until then it does not start. What has begun had it."""
        return self.unique and not self.sole and not self.attempt

    def note_attempt(self, told: Known) -> bool:
        """Takes what is recorded of an attempt, unless a later one, or the end of the same one, is known; whether it did.

        Args:
            told: of the attempt; an error that is told of the start of one is that of an earlier one.
        """
        how_far, before = (told.attempt, told.settled), (self.attempt, self.settled)
        if not told.attempt or how_far < before or (how_far == before and told.place <= self.place):
            return False
        self.cost -= attempt_bytes(self.known)
        self.place = told.place
        if how_far > before:
            self.attempt, self.settled, self.used, self.work = told.attempt, told.settled, told.used, told.work
            if told.settled:
                self.error = told.error
            self.next_us = max(told.next_us, self.key.time_us)
        elif told.work is not None:
            self.work = told.work  # a start that was told again, with a later checkpoint
        self.cost += attempt_bytes(self.known)
        return how_far > before

    @property
    def known(self) -> Known:
        """Returns what is known of its attempts."""
        next_us = self.next_us if self.settled else 0
        return Known(False, self.attempt, self.used, next_us, self.work, self.error, self.place)

    @property
    def planned_us(self) -> int:
        """Returns when the next attempt could start at the earliest; its lateness counts from then."""
        return could_start_us(self.next_us, self.data.enqueued_us)

    @property
    def expires_us(self) -> int:
        """Returns when it is not to start any more, microseconds since the epoch; NEVER_EXPIRES_US: never, or it has begun.

        A recorded attempt is a beginning, and so is a lease; a start that was only announced out of caution is none.
        """
        expires_us = self.data.expires_us
        if expires_us is None or self.attempt > (1 if self.announced == 1 else 0):
            return NEVER_EXPIRES_US
        return expires_us

    def expired(self, now: int) -> bool:
        """Returns True if it is not to start any more, because it had to begin before."""
        return self.data.expires_ms is not None and self.expires_us <= now

    @property
    def leased(self) -> bool:
        """Returns True if the last that is recorded of it is a lease that nothing has ended yet."""
        return self.work is not None and self.work.lease is not None and self.attempt > 0 and not self.settled

    @property
    def spare(self) -> bool:
        """Returns True if nothing is to be done about it but to start it when its turn comes, so that it can be read again then.

        What is known of an attempt that has ended stands in the log of `outcomes`, and in tables that have read so far.
        """
        at_hand = self.held or self.cancelled or self.announced or self.undecided or (self.attempt and not self.settled)
        return self.stage is OPEN and not at_hand


def left_behind(entry: Entry) -> WorkNote | None:
    """Returns what the next attempt of a task is to know, as a note for the fact of its start."""
    return entry.work.going_on() if entry.work is not None else None


class Lane:
    """Loaded open tasks of one ordering id, in key order.

    Args:
        ordering_id: shared by all its tasks.
        holding: counts what the partition holds.

    Attributes:
        frontier: where the tables hold more of this lane than is loaded: the last loaded key; nothing beyond counts as loaded.
        beyond: arrivals past the frontier, kept until a reload reaches them.
        depth: how many tasks were asked for when it was reloaded last; 0 if never.
        asked_us: when that was.
        active: the head, once it is ready or being prepared.
        held: how many released tasks the lane waits for: for their end, and in durable order for the facts of it.
        out: how many of them an executor has.
        stamp: grows whenever older timer and ready marks of this lane become void.
        missed: rows past the frontier were offered while a reload was under way, so its answer may be too old.
        covers: newest offset of `tasks` among what was let go of past the frontier; a reload must read tables that hold it.
        tried_left: tasks past the frontier may have had an attempt.
        untouched: it was made when nothing of it was open, so no earlier owner can have begun any of its tasks.
    """

    __slots__ = (
        "_aside",
        "_heap",
        "_holding",
        "active",
        "asked_us",
        "beyond",
        "covers",
        "depth",
        "entries",
        "frontier",
        "held",
        "missed",
        "ordering_id",
        "out",
        "reloading",
        "stamp",
        "state",
        "tried_left",
        "untouched",
    )

    def __init__(self, ordering_id: str, holding: Holding) -> None:
        self._holding = holding
        self.ordering_id = ordering_id
        self.entries: dict[TaskKey, Entry] = {}
        self.beyond: dict[TaskKey, Entry] = {}
        self.frontier: TaskKey | None = None
        self.state = WAITING
        self.active: Entry | None = None
        self.stamp = 0
        self.held = 0
        self.out = 0
        self.reloading = False
        self.missed = False
        self.covers = -1
        self.tried_left = False
        self.untouched = False
        self.depth = 0
        self.asked_us = 0
        self._heap: list[TaskKey] = []
        self._aside: list[TaskKey] = []  # keys of `beyond`, and some that have left it

    def load(self, entry: Entry) -> None:
        """Takes a task that was not known here before, and counts it."""
        self._holding.tasks += 1
        self._holding.add(entry.cost)
        self.add(entry)

    def add(self, entry: Entry) -> None:
        """Takes an open task that is counted already; past the frontier it is only kept aside."""
        if self.frontier is not None and entry.key > self.frontier:
            self._set_aside(entry)
            return
        self.entries[entry.key] = entry
        heappush(self._heap, entry.key)

    def overwrite(self, entry: Entry, command: Command) -> None:
        """A newer enqueue of a task; it applies from the next attempt on."""
        more = cost_of(command) - cost_of(entry.data)
        self._holding.add(more)
        entry.data = command
        entry.cost += more
        entry.note_first(command.offset, unique=command.unique)

    def note_attempt(self, entry: Entry, told: Known) -> bool:
        """Takes what is recorded of an attempt of one of its tasks; see `Entry.note_attempt`."""
        before = entry.cost
        is_news = entry.note_attempt(told)
        self._holding.add(entry.cost - before)
        return is_news

    def find(self, key: TaskKey) -> Entry | None:
        """The task, loaded or kept aside."""
        return self.entries.get(key) or self.beyond.get(key)

    def remove(self, key: TaskKey) -> None:
        """Forgets a task."""
        entry = self.entries.pop(key, None)
        aside = self.beyond.pop(key, None) if self.beyond else None
        known = entry or aside
        if known is not None:
            self._holding.tasks -= 1
            self._holding.add(-known.cost)
        if entry is not None:
            self.let_go(entry)
            if entry is self.active:
                self.active = None

    def head(self) -> Entry | None:
        """The task with the smallest key of those that the lane does not hold already."""
        heap, entries = self._heap, self.entries
        while heap:
            entry = entries.get(heap[0])
            if entry is not None and not entry.held:
                return entry
            heappop(heap)
        return None

    def hold(self, entry: Entry) -> None:
        """A task is released: the lane waits for it."""
        if self._heap and self._heap[0] == entry.key:
            heappop(self._heap)
        entry.held, entry.stage = True, RELEASED
        self.held += 1
        self.out += 1

    def take_in(self, entry: Entry) -> None:
        """A task that was kept aside is loaded, wherever the frontier is: it is under way."""
        if self.beyond.pop(entry.key, None) is not None:
            self.entries[entry.key] = entry

    def let_go(self, entry: Entry) -> None:
        """The lane waits no longer for this task."""
        if entry.held:
            entry.held = False
            self.held -= 1

    def put_back(self, entry: Entry) -> None:
        """A released task is open again."""
        self.let_go(entry)
        entry.stage = OPEN
        heappush(self._heap, entry.key)

    def retreat(self) -> None:
        """A head past the frontier moves aside: it was under way when the lane was cut, and earlier ones may be in the tables."""
        while self.frontier is not None and (head := self.head()) is not None and head.key > self.frontier:
            heappop(self._heap)
            self._set_aside(self.entries.pop(head.key))

    def pass_over(self) -> None:
        """Goes on behind the head, whose completion is on its way."""
        heappop(self._heap)

    def cut(self, frontier: TaskKey | None) -> None:
        """Sets the frontier; tasks past it move aside, tasks kept aside up to it move in."""
        self.frontier = frontier
        if frontier is None:
            self.tried_left = False
        else:
            for key, entry in list(self.entries.items()):
                if key > frontier and entry is not self.active and not entry.held:
                    self._set_aside(self.entries.pop(key))
        while self._aside and (frontier is None or self._aside[0] <= frontier):
            aside = self.beyond.pop(heappop(self._aside), None)
            if aside is not None:
                self.add(aside)

    def trim(self, keep: int) -> list[Entry]:
        """Lets go of what stands behind the first `keep` tasks and can be read again: the tables have it, or will have it.

        Tasks with which something is to be done stay, and so does what stands before them.

        Returns:
            What was let go of, and has had an attempt.
        """
        tried: list[Entry] = []
        kept = sorted(self.entries)
        before = len(kept)
        while len(kept) > keep and self._forget(self.entries[kept[-1]], self.entries, tried):
            kept.pop()
        if len(kept) < before:
            last = kept[-1] if kept else BEFORE_ALL
            self.frontier = last if self.frontier is None else min(last, self.frontier)
        for entry in list(self.beyond.values()):
            self._forget(entry, self.beyond, tried)
        self._heap = sorted(key for key, entry in self.entries.items() if not entry.held)
        self._aside = sorted(self.beyond)
        return tried

    def _forget(self, entry: Entry, among: dict[TaskKey, Entry], tried: list[Entry]) -> bool:
        if not entry.spare or entry is self.active:
            return False
        del among[entry.key]
        self._holding.tasks -= 1
        self._holding.add(-entry.cost)
        self.let_pass(entry.data.offset)
        if entry.attempt:
            tried.append(entry)
            self.tried_left = True
        return True

    def may_have_tried(self, key: TaskKey) -> bool:
        """Returns True if a task that is not loaded may have had an attempt, of which its end should tell."""
        return self.tried_left and self.frontier is not None and key > self.frontier

    def let_pass(self, offset: int) -> None:
        """A record past the frontier is not kept: the next reload must read tables that hold it."""
        self.covers = max(self.covers, offset)
        self.missed = self.missed or self.reloading

    def _set_aside(self, entry: Entry) -> None:
        self.beyond[entry.key] = entry
        heappush(self._aside, entry.key)

    def waits(self, until_us: int) -> bool:
        """Returns True if a further task of the lane may start before that time."""
        head = self.head()
        return self.frontier is not None or (head is not None and head.next_us <= until_us)

    @property
    def empty(self) -> bool:
        """Nothing loaded, kept aside or left in the tables."""
        return not self.entries and not self.beyond and self.frontier is None
