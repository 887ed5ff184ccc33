"""The records of both logs beyond the tables, in memory by lane and key. This module has no I/O and gets records in log order.

Records are let go of once the tables have held them for a while, and the oldest earlier where they would take too many bytes. So every
answer says whether all is there that the tables, at the mark it names, do not hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scylla_spark.core.records.command import Command, Rejection, Rules, validate
from scylla_spark.core.records.fact import FENCE, Fact, FenceLog, OutcomeRecord, Unreadable, decode
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import TaskKey

MOST_BYTES: Final = 128 * 1024 * 1024
_RECORD_BYTES: Final = 500  # of a record besides its value


class Raw(NamedTuple):
    """A record of `tasks`, not judged yet: most are never asked about."""

    offset: int
    append_us: int
    key: bytes | None
    value: bytes | None


class OutcomeEvent(NamedTuple):
    """One record of `outcomes` that counts.

    Attributes:
        partition: where it stands …
        offset: … and its offset.
        epoch: of the fence under which it was written.
        facts: what it says.
        size: of the record in bytes.
    """

    partition: int
    offset: int
    epoch: int
    facts: tuple[Fact, ...]
    size: int = 0


class Beyond(NamedTuple):
    """The records of a key beyond the tables."""

    commands: list[Command]
    facts: list[Fact]


class Standing(NamedTuple):
    """The state of a partition.

    Attributes:
        mark: next offset of `tasks` that the tables do not hold.
        end: next offset of `tasks` that was not read here.
        resigned: whether nobody owns it: none has taken it since its last owner stopped cleanly.
    """

    mark: int
    end: int
    resigned: bool

    @property
    def behind(self) -> int:
        """Records of `tasks` that the tables do not hold yet."""
        return max(self.end - self.mark, 0)


class BeyondTables:
    """The memory of all partitions; its user sees to it that one thread at a time is in it.

    Args:
        marks: where reading begins: partition → mark.
        rules: by which commands are judged.
        most_bytes: about how much is kept.
    """

    def __init__(self, marks: Mapping[int, Mark], rules: Rules, most_bytes: int = MOST_BYTES) -> None:
        self._rules = rules
        each = most_bytes // (2 * max(rules.partitions, 1))
        self._tasks = {
            number: _Commands(marks.get(number, Mark()).tasks_offset, each) for number in range(rules.partitions)
        }
        self._outcomes = {number: _Facts(number, marks.get(number, Mark()), each) for number in range(rules.partitions)}

    def positions(self) -> dict[int, tuple[int, int]]:
        """Partition → next offsets of `tasks` and `outcomes`."""
        return {number: (self._tasks[number].next, self._outcomes[number].next) for number in self._tasks}

    def places(self) -> dict[int, tuple[int, int]]:
        """Partition → next offset of `outcomes`, and the epoch of the fence in force there."""
        return {number: (share.next, share.fences.fence.epoch) for number, share in self._outcomes.items()}

    def standing(self, marks: Mapping[int, Mark]) -> dict[int, Standing]:
        """Partition → how the logs stand, and the tables at these marks."""
        return {
            number: Standing(
                marks.get(number, Mark()).tasks_offset, self._tasks[number].next, self._outcomes[number].fences.resigned
            )
            for number in self._tasks
        }

    def skip(self, partition: int, first_tasks: int, first_outcomes: int) -> None:
        """Says where the logs begin: what came before is gone.

        Args:
            partition: of both topics.
            first_tasks: first offset of `tasks`.
            first_outcomes: first offset of `outcomes`.
        """
        self._tasks[partition].skip(first_tasks)
        self._outcomes[partition].skip(first_outcomes)

    def read_task(self, partition: int, raw: Raw) -> None:
        """Takes the next record of `tasks`; one without a key is judged at once, to know its lane."""
        lane = raw.key
        if lane is None:
            judged = validate(partition, raw.offset, raw.append_us, raw.key, raw.value, self._rules)
            lane = b"" if isinstance(judged, Rejection) else judged.key.ordering_id.encode()
        self._tasks[partition].add(raw, lane)

    def read_outcome(self, partition: int, offset: int, value: bytes | None) -> OutcomeEvent | None:
        """Takes the next record of `outcomes`; what it says, if it counts and says something of tasks.

        Args:
            partition: of the record.
            offset: of the record.
            value: of the record.
        """
        return self._outcomes[partition].read(offset, value)

    def beyond(self, key: TaskKey, partition: int, mark: Mark) -> Beyond | None:
        """Returns the records of a key beyond the tables. None: they are not complete here.

        Args:
            key: of the task.
            partition: of its records.
            mark: how far the tables are.
        """
        tasks, outcomes = self._tasks[partition], self._outcomes[partition]
        if mark.tasks_offset < tasks.floor or mark.outcomes_offset < outcomes.floor:
            return None
        commands = [one for one in self.commands(partition, key.ordering_id) if one.key == key]
        return Beyond(commands, self.facts(key, partition))

    def facts(self, key: TaskKey, partition: int) -> list[Fact]:
        """Counting facts of a key that are here, in log order."""
        return [fact for _, fact in self._outcomes[partition].by_key.get(key, ())]

    def commands(self, partition: int, lane: str) -> list[Command]:
        """All valid commands of a lane that are here, in log order."""
        judged = (
            validate(partition, raw.offset, raw.append_us, raw.key, raw.value, self._rules)
            for raw in self._tasks[partition].of_lane(lane)
        )
        return [one for one in judged if not isinstance(one, Rejection) and one.key.ordering_id == lane]

    def since(self, positions: Mapping[int, int]) -> list[OutcomeEvent]:
        """Returns the outcomes from these offsets on, partition by partition, as far as they are in memory (`floors`)."""
        return [
            one
            for number, share in sorted(self._outcomes.items())
            for one in share.kept
            if one.offset >= positions.get(number, 0)
        ]

    def floors(self) -> dict[int, int]:
        """Partition → first offset of `outcomes` that is here."""
        return {number: share.floor for number, share in self._outcomes.items()}

    def address(self, partition: int) -> str:
        """Returns the address of the owner of a partition, if its fence was read here; "" otherwise."""
        share = self._outcomes[partition]
        return "" if share.fences.resigned else share.address

    def let_go(self, marks: Mapping[int, Mark]) -> None:
        """Forgets what the tables hold at these marks."""
        for number, mark in marks.items():
            if number in self._tasks:
                self._tasks[number].let_go(mark.tasks_offset)
                self._outcomes[number].let_go(mark.outcomes_offset)


class _Commands:
    """One partition of `tasks`."""

    def __init__(self, start: int, most_bytes: int) -> None:
        self.floor = self.next = start
        self._most = most_bytes
        self._bytes = 0
        self._kept: deque[tuple[Raw, bytes]] = deque()
        self._by_lane: dict[bytes, deque[Raw]] = {}

    def add(self, raw: Raw, lane: bytes) -> None:
        self.next = raw.offset + 1
        self._kept.append((raw, lane))
        self._by_lane.setdefault(lane, deque()).append(raw)
        self._bytes += _size(raw)
        while self._bytes > self._most and len(self._kept) > 1:
            self._drop()

    def skip(self, first: int) -> None:
        if first > self.next:
            self.floor = self.next = first

    def of_lane(self, lane: str) -> Iterable[Raw]:
        """Records of a lane, in order."""
        return self._by_lane.get(lane.encode(), ())

    def let_go(self, offset: int) -> None:
        while self._kept and self._kept[0][0].offset < offset:
            self._drop()
        self.floor = max(self.floor, min(offset, self.next))

    def _drop(self) -> None:
        raw, lane = self._kept.popleft()
        known = self._by_lane[lane]
        known.popleft()
        if not known:
            del self._by_lane[lane]
        self._bytes -= _size(raw)
        self.floor = raw.offset + 1


class _Facts:
    """One partition of `outcomes`."""

    def __init__(self, number: int, mark: Mark, most_bytes: int) -> None:
        self.floor = self.next = mark.outcomes_offset
        self.fences = FenceLog(mark.fence)
        self.fences.resigned = mark.resigned
        self.address = ""
        self.kept: deque[OutcomeEvent] = deque()
        self.by_key: dict[TaskKey, deque[tuple[int, Fact]]] = {}
        self._number = number
        self._most = most_bytes
        self._bytes = 0

    def skip(self, first: int) -> None:
        if first > self.next:
            self.floor = self.next = first

    def read(self, offset: int, value: bytes | None) -> OutcomeEvent | None:
        self.next = offset + 1
        record = decode(value)
        if isinstance(record, Unreadable) or not self.fences.admit(record):
            return None
        if record.kind == FENCE:
            self.address = record.address
        return self._keep(offset, record, len(value or b"")) if record.facts else None

    def let_go(self, offset: int) -> None:
        while self.kept and self.kept[0].offset < offset:
            self._drop()
        self.floor = max(self.floor, min(offset, self.next))

    def _keep(self, offset: int, record: OutcomeRecord, size: int) -> OutcomeEvent:
        happened = OutcomeEvent(
            self._number, offset, record.fence.epoch, record.facts, size + _RECORD_BYTES * len(record.facts)
        )
        self.kept.append(happened)
        for fact in record.facts:
            self.by_key.setdefault(fact.key, deque()).append((offset, fact))
        self._bytes += happened.size
        while self._bytes > self._most and len(self.kept) > 1:
            self._drop()
        return happened

    def _drop(self) -> None:
        happened = self.kept.popleft()
        for fact in happened.facts:
            known = self.by_key[fact.key]
            known.popleft()
            if not known:
                del self.by_key[fact.key]
        self._bytes -= happened.size
        self.floor = happened.offset + 1


def _size(raw: Raw) -> int:
    return _RECORD_BYTES + len(raw.value or b"")
