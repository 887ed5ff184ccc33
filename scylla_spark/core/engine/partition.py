"""What a dispatcher holds of one partition while it owns it, and how far it is in taking it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.lane import BEFORE_ALL, Entry, Lane
from scylla_spark.core.engine.memory_use import Holding, Meter, attempt_bytes, note_bytes
from scylla_spark.core.engine.outbox import Outbox
from scylla_spark.core.engine.recently_ended import RecentlyEnded
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact, Fence, FenceLog
from scylla_spark.core.tables.progress import Basis, Mark, Tenure
from scylla_spark.core.tasks.key import Name, TaskKey, name_of
from scylla_spark.core.tasks.stored_records import Known
from scylla_spark.name_fingerprint import fingerprint

_MOST_PASSED: Final = 100_000
CLOCK_MARGIN_US = 5_000_000  # clocks of two dispatchers differ by less


class PartitionState(StrEnum):
    """Steps of a take, in order, and the way out."""

    READING = "reading"  # `outcomes` up to the end noted at the assignment
    FENCING = "fencing"  # own fence sent, not read back
    LOADING = "loading"  # fenced; scan or tail not complete
    ACTIVE = "active"  # releases tasks
    DRAINING = "draining"  # revoked; lets what runs finish
    DROPPED = "dropped"


READING, FENCING, LOADING, ACTIVE, DRAINING, DROPPED = PartitionState


class NamesHeld:
    """What is known of unique names in a partition.

    Attributes:
        settled: of all that the tables held at the take, it is decided what is a duplicate.
        pending: names of which it is asked who bears them, or that wait for an end.
        after: keys whose end is being written, or that are looked up → the name that waits for it.
        passed: fingerprints of names of which a record was not kept → its newest offset …
        passed_floor: … and that of all names that are not in there any more.
        forgotten: newest offset of what was let go of and is not known any more, since newer tables hold it: older answers lack it.
    """

    __slots__ = ("after", "forgotten", "passed", "passed_floor", "pending", "settled")

    def __init__(self) -> None:
        self.settled = False
        self.pending: set[Name] = set()
        self.after: dict[TaskKey, Name] = {}
        self.passed: dict[int, int] = {}
        self.passed_floor = -1
        self.forgotten = -1

    def wait_for(self, key: TaskKey) -> None:
        """Before anything is decided about the name of a key, more must be known of that key."""
        name = self.after[key] = name_of(key)
        self.pending.add(name)

    def note_passed(self, name: Name, offset: int) -> None:
        """A record of a name is not kept: tables that do not hold it tell nothing of that name."""
        if len(self.passed) >= _MOST_PASSED:
            self.passed_floor = max(self.passed_floor, *self.passed.values())
            self.passed.clear()
        number = fingerprint(name)
        self.passed[number] = max(offset, self.passed.get(number, -1))

    def passed_at(self, name: Name) -> int:
        """Newest offset of a record of a name that was not kept; perhaps that of another, and -1 if there is none."""
        return max(self.passed.get(fingerprint(name), -1), self.passed_floor)

    def forget(self, before: int) -> None:
        """The tables hold what was not kept of records before that offset."""
        if self.passed:
            self.forgotten = max(self.forgotten, *(offset for offset in self.passed.values() if offset < before), -1)
            self.passed = {name: offset for name, offset in self.passed.items() if offset >= before}
        if self.passed_floor < before:
            self.forgotten = max(self.forgotten, self.passed_floor)
            self.passed_floor = -1


class Attempted(NamedTuple):
    """The newest attempt of a task that is not loaded.

    Attributes:
        known: of it.
        queue: of the task, where the record said so; likewise its handler and tags.
    """

    known: Known
    queue: str | None = None
    handler: str | None = None
    tags: tuple[str, ...] = ()


class Partition:
    """State of one owned partition; rebuilt from the tables and the two logs at every take.

    Args:
        tenure: this time of holding it.
        mark: how far the tables are.
        now: microseconds since the epoch.
        meter: counts what is held.
    """

    def __init__(self, tenure: Tenure, mark: Mark, now: int, meter: Meter) -> None:
        self.tenure = tenure
        self.number = tenure.partition
        self.state = READING
        self.log = FenceLog(mark.fence)
        self.log.resigned = mark.resigned
        self.mark = mark
        self.floor = Basis()  # answers of tables that were less far are void: what ended since has been forgotten
        self.tasks_position = mark.tasks_offset
        self.outcomes_position = mark.outcomes_offset
        self.tasks_end: int | None = None
        self.outcomes_end: int | None = None
        self.taken = False  # it has been active in this tenure
        self.scanned = False
        self.receiving = False  # part of a scan of all that is open has been offered; the rest is to come
        self.horizon_us = 0
        self.complete_us = -1  # the tables were scanned up to this scheduled time
        self.unscanned: list[Lane] = []  # their heads are due, but lie past complete_us
        self.far_before = -1  # far_offset when the horizon was last raised
        self.far_offset = -1  # newest tail record dropped because it lies past the horizon
        # lanes of which the tables hold tasks, or will, but none is loaded: fingerprint → newest offset of `tasks` let go of
        self.unloaded: dict[int, int] = {}
        self.mine: Fence | None = None
        self.cautious = True  # until the log is read, which tells whether the owner before was cut off
        self.ours_from_us = now + CLOCK_MARGIN_US  # no earlier owner can have begun what is due at or after this
        # fingerprints of lanes of which a start was announced; kept here and not in lanes, which come and go
        self.announced: set[int] = set()
        self.lanes: dict[str, Lane] = {}
        self.holding = Holding(meter)
        self.ended = RecentlyEnded(now + CLOCK_MARGIN_US)
        self.cancelled: dict[TaskKey, int] = {}  # offset of the cancel; -1 if it was read from the tables
        self.ending: set[TaskKey] = set()  # keys without a loaded task whose completion is being written
        # cancelled keys that an owner, this or an earlier one, may have ended already
        self.told: dict[TaskKey, None] = {}
        self.early_cancels: list[Command] = []  # seen before the partition was active
        # of tasks that are not loaded, what tables may not tell yet
        self.attempts: dict[TaskKey, Attempted] = {}
        self.lookups: dict[TaskKey, list[Command]] = {}  # cancels that wait for an answer of the tables
        self.names = NamesHeld()
        self.outbox = Outbox()
        self.in_flight = 0
        self.overflow: list[
            tuple[int, Lane]
        ] = []  # (stamp, lane) that were ready while the partition was full or stalled
        self.stalled = False  # at the last tick the oldest unrecorded fact was too old
        self.drain_by_us = 0

    @property
    def deciding(self) -> bool:
        """Returns True if facts may be written: fenced, and not left."""
        return self.state in (LOADING, ACTIVE, DRAINING)

    def backed_up(self, limits: Limits) -> bool:
        """Returns True if so much of what was decided is not recorded yet, or not in the tables, that nothing more should start."""
        outbox = self.outbox
        return (
            len(outbox.unrecorded) >= limits.max_unrecorded
            or outbox.bytes >= limits.max_unrecorded_bytes
            or len(self.ended) >= limits.max_ended
            or self.stalled
        )

    def is_fresh(self, key: TaskKey) -> bool:
        """Returns True if a key of which no completion is remembered has surely not ended, so that the tables need not be asked."""
        return key.time_us >= self.ended.since_us and key not in self.told

    @property
    def owes_caution(self) -> bool:
        """Returns True if the owner before was cut off, and tasks of it may still have to announce their start; it looks at all lanes."""
        if not self.cautious:
            return False
        return (
            not self.taken
            or not self.announced.issuperset(self.unloaded)
            or any(map(self.suspects, self.lanes.values()))
        )

    def suspects(self, lane: Lane) -> bool:
        """Returns True if the next start of the lane is to be announced, because the owner before may have been cut off while it ran.

        Everything is suspect that was due when the partition became ours. Two things clear a lane, for good: that it announced
        a start, or was made when nothing of it was open. All else that could be known of it may be out of date.
        """
        if not self.cautious or lane.untouched:
            return False
        head = lane.head()
        due_before = head.key.time_us < self.ours_from_us if head is not None else lane.frontier is not None
        return due_before and fingerprint(lane.ordering_id) not in self.announced

    def reassure(self, lane: Lane) -> None:
        """The start of the lane's head is being announced: what may have been running has a record from now on."""
        if self.suspects(lane):
            self.announced.add(fingerprint(lane.ordering_id))

    def lane(self, ordering_id: str) -> Lane:
        """The lane, made if need be; cut before its first task if its tasks were left in the tables."""
        lane = self.lanes.get(ordering_id)
        if lane is None:
            lane = self.lanes[ordering_id] = Lane(ordering_id, self.holding)
            if self.unloaded:
                covers = self.unloaded.get(fingerprint(ordering_id))
                if covers is not None:
                    lane.cut(BEFORE_ALL)
                    lane.covers = covers
        return lane

    def is_left(self, ordering_id: str) -> bool:
        """Returns True if tasks of a lane were left in the tables that are earlier than any of it that is loaded."""
        return bool(self.unloaded) and fingerprint(ordering_id) in self.unloaded

    def left(self, key: TaskKey) -> bool:
        """Returns True if earlier tasks of the key's lane were left in the tables."""
        return self.is_left(key.ordering_id)

    def begins(self, key: TaskKey) -> bool:
        """Returns True if a task from the log of `tasks` is the first of its lane, of which nothing was open, here or in the tables."""
        return self.taken and key.ordering_id not in self.lanes and not self.left(key)

    def unload(self, lane: Lane) -> bool:
        """Lets go of a whole lane, if all of it can be read again; then tables are to be read that hold all that was let go of.

        A lane that is being read stays: its answer is too old for what was let go of, and would be taken for that to a later question.
        """
        self.trim(lane, 0)
        if lane.entries or lane.beyond or lane.reloading:
            return False
        lane.stamp += 1
        del self.lanes[lane.ordering_id]
        self.leave(lane.ordering_id, lane.covers)
        return True

    def trim(self, lane: Lane, keep: int) -> None:
        """Lets go of what stands behind the first `keep` tasks of a lane and can be read again."""
        for entry in lane.trim(keep):
            self.keep_in_mind(entry)

    def keep_in_mind(self, entry: Entry) -> None:
        """A task is let go of that has had an attempt: what is known of that stays, or answers of tables that lack it are void."""
        if entry.place >= self.mark.outcomes_offset:
            self.note_attempt(entry.key, Attempted(entry.known))
        else:
            self.floor = self.floor.or_later(Basis(0, entry.place + 1))

    def leave(self, ordering_id: str, offset: int) -> None:
        """A record of a lane of which nothing is loaded is not kept."""
        number = fingerprint(ordering_id)
        self.unloaded[number] = max(offset, self.unloaded.get(number, -1))

    def let_far_pass(self, key: TaskKey, offset: int) -> None:
        """A record past the horizon is not kept."""
        self.far_offset = max(self.far_offset, offset)
        self.names.note_passed(name_of(key), offset)

    def let_go_of(self, name: Name) -> int:
        """Offset of `tasks` that the tables must hold to tell who bears a name: of what was not kept, or let go of; -1: any."""
        lane = self.lanes.get(name.lane)
        left = self.unloaded.get(fingerprint(name.lane), -1) if self.unloaded else -1
        return max(left, lane.covers if lane is not None else -1, self.names.passed_at(name), self.names.forgotten)

    # -- what is remembered of cancels and facts, counted ---------------------------------------------------------------

    def remember_cancel(self, key: TaskKey, offset: int) -> None:
        """A cancel of the key was seen; -1: in the tables."""
        if key not in self.cancelled:
            self.holding.add(note_bytes(key))
        self.cancelled[key] = max(offset, self.cancelled.get(key, -1))

    def forget_cancels(self, keys: Iterable[TaskKey]) -> None:
        """Nothing need be known of cancels of these keys any more."""
        for key in keys:
            if self.cancelled.pop(key, None) is not None:
                self.holding.add(-note_bytes(key))
            self.told.pop(key, None)

    def hold_cancel(self, command: Command) -> None:
        """A cancel waits until the partition is active."""
        self.early_cancels.append(command)
        self.holding.add(note_bytes(command.key))

    def held_cancels(self) -> list[Command]:
        """The cancels that waited; they are no longer held."""
        early, self.early_cancels = self.early_cancels, []
        self.holding.add(-sum(note_bytes(command.key) for command in early))
        return early

    def note_fact(self, fact: Fact, offset: int) -> None:
        """A fact that stands there tells of an attempt of a task that is not loaded."""
        self.note_attempt(fact.key, Attempted(known_by(fact, offset), fact.queue, fact.handler, fact.tags or ()))

    def note_attempt(self, key: TaskKey, attempted: Attempted) -> None:
        """That is known of a task that is not loaded."""
        self.forget_attempt(key)
        self.attempts[key] = attempted
        self.holding.add(note_bytes(key) + attempt_bytes(attempted.known))

    def forget_attempt(self, key: TaskKey) -> None:
        """Nothing need be known of attempts of this key any more."""
        attempted = self.attempts.pop(key, None)
        if attempted is not None:
            self.holding.add(-note_bytes(key) - attempt_bytes(attempted.known))


def known_by(fact: Fact, offset: int) -> Known:
    """Returns what a fact that stands there tells of an attempt."""
    return Known(False, fact.attempt, fact.used, fact.next_us or 0, fact.work, fact.brief_error, offset)
