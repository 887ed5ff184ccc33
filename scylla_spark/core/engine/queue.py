"""Queues: how many tasks of one may run at once, how fast they may start, and in which order a lane of it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scylla_spark.core.engine.lane import Lane
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.tasks.state import Condition

SLACK_US = 50_000  # starts that a busy dispatcher missed within this time may be made up for


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What a queue allows, over all dispatchers together.

    Attributes:
        concurrency: most tasks that run at once; None: no limit.
        rate: most starts per second; None: no limit. In any T seconds at most rate · (T + 0.05) + 1 tasks start.
        paused: nothing starts.
        replay: the next task of a lane starts when the one before has ended, without waiting until that is recorded.
        group_concurrency: most tasks that run at once of lanes of one group in one dispatcher; None: no limit.
        group_separator: lanes whose ordering ids agree up to the first of these are a group.
        pull: workers lease its tasks; nothing of it runs here.
        lease_ms: how long a lease lasts without a sign of life; 0: a task ends with being handed over.
        max_run_ms: how long the lease of a task without a timeout of its own can be kept at most.
        weights: group → turns it gets for one of the others; None: groups have no turns.
        ageing: a second of waiting counts as much as one of priority, among what is leased.
        fails_at_once: an attempt that fails by its work ends its task.
        redelivers: a task whose result is false comes again after `lease_ms`.
    """

    concurrency: int | None = None
    rate: float | None = None
    paused: bool = False
    replay: bool = False
    group_concurrency: int | None = None
    group_separator: str = ":"
    pull: bool = False
    lease_ms: int = 10_000
    max_run_ms: int = 3_600_000
    weights: Mapping[str, int] | None = None
    ageing: bool = False
    fails_at_once: bool = False
    redelivers: bool = False


FREE = QueueLimits()


class Share(NamedTuple):
    """The partitions that this dispatcher holds, of how many: by them limits are shared out."""

    owned: frozenset[int] = frozenset()
    partitions: int = 1


class Gate:
    """What this dispatcher may start of one queue: its share of the limits, by the partitions that it holds.

    Args:
        limits: of the queue.
    """

    __slots__ = ("_bounded", "_groups", "_held_back", "_slots", "_started_us", "_step_us", "limits", "running")

    def __init__(self, limits: QueueLimits = FREE) -> None:
        self.running = 0
        self._started_us = 0  # the last start, or when it could have been; 0: there was none
        self._slots: int | None = None
        self._step_us = 0.0
        self._groups: dict[str, _Group] = {}
        self._held_back = 0  # lanes that wait for a slot of their group, void ones too
        self._allow(limits)

    def _allow(self, limits: QueueLimits) -> None:
        self.limits = limits
        self._bounded = limits.paused or limits.concurrency is not None or limits.rate is not None

    def share(self, owned: frozenset[int], partitions: int) -> None:
        """Takes the part of the limits that belongs to these partitions; of concurrency one slot at least."""
        limits = self.limits
        self._slots, self._step_us = None, 0.0
        if limits.concurrency is not None:
            mine = sum((n + 1) * limits.concurrency // partitions - n * limits.concurrency // partitions for n in owned)
            self._slots = max(1, mine)
        if limits.rate is not None:
            self._step_us = 1e6 * partitions / (limits.rate * max(1, len(owned)))

    @property
    def next_us(self) -> int:
        """Returns when the rate allows the next start: it is always reckoned by the rate, and the share of it, as they are now."""
        return int(self._started_us + self._step_us) if self._step_us and self._started_us else 0

    @property
    def limited(self) -> bool:
        """Returns True if anything bounds how many run at once."""
        return self._slots is not None or self.limits.group_concurrency is not None

    def is_open(self, now: int) -> bool:
        """Returns True if another task may start now, groups apart."""
        return not self._bounded or (
            not self.limits.paused
            and (self._slots is None or self.running < self._slots)
            and (not self._step_us or self.next_us <= now)
        )

    def opens_us(self) -> int | None:
        """Returns when the rate allows the next start, if nothing but the rate forbids it."""
        if not self._step_us or self.limits.paused or (self._slots is not None and self.running >= self._slots):
            return None
        return self.next_us

    def admits(self, partition: Partition, lane: Lane) -> bool:
        """Returns True if the lane's group has a slot; else the lane waits for one."""
        if self.limits.group_concurrency is None:
            return True
        group = self._groups.setdefault(self.group_of(lane.ordering_id), _Group())
        if group.running < self.limits.group_concurrency:
            return True
        group.waiting.append((lane.stamp, partition, lane))
        self._held_back += 1
        return False

    def has_slot(self, ordering_id: str) -> bool:
        """Returns True if the lane's group has a slot, which is not taken by asking; nobody waits for it."""
        most, group = self.limits.group_concurrency, self._groups.get(self.group_of(ordering_id))
        return most is None or group is None or group.running < most

    def admits_more(self, ordering_id: str) -> bool:
        """Returns True if the group of a lane that has just started something has a slot for more."""
        most = self.limits.group_concurrency
        return most is None or self._groups[self.group_of(ordering_id)].running < most

    def begin(self, ordering_id: str, now: int) -> None:
        """A task starts."""
        self._started_us = max(self.next_us, now - SLACK_US)
        self.take(ordering_id)

    def take(self, ordering_id: str) -> None:
        """A task is under way that has started elsewhere: it counts, but it is no start."""
        self.running += 1
        if self.limits.group_concurrency is not None:
            self._groups.setdefault(self.group_of(ordering_id), _Group()).running += 1

    def end(self, ordering_id: str) -> tuple[Partition, Lane] | None:
        """A task is over: returns a lane of its group that waited, which may start instead."""
        self.running -= 1
        if self.limits.group_concurrency is None:
            return None
        self._groups[self.group_of(ordering_id)].running -= 1
        return self.instead(ordering_id)

    def instead(self, ordering_id: str) -> tuple[Partition, Lane] | None:
        """A lane of the same group that waits, where one of it did not start after all."""
        return self._next_of(self.group_of(ordering_id))

    @property
    def holds_back(self) -> bool:
        """Returns True if lanes wait for a slot of their group; some may be void."""
        return self._held_back > 0

    def vacancies(self) -> list[tuple[Partition, Lane]]:
        """Lanes that wait although their group has a slot: each free slot is offered once more.

        A lane that was let in may go away before its turn comes, and nobody but the group knows who waits behind it.
        """
        most = self.limits.group_concurrency
        if most is None or not self.holds_back:
            return []
        free = [n for n, group in self._groups.items() for _ in range(min(most - group.running, len(group.waiting)))]
        return [place for name in free if (place := self._next_of(name)) is not None]

    def _next_of(self, name: str) -> tuple[Partition, Lane] | None:
        group = self._groups.get(name)
        while group is not None and group.waiting:
            stamp, partition, lane = group.waiting.popleft()
            self._held_back -= 1
            if stamp == lane.stamp:
                return partition, lane
        if group is not None and not group.running:
            del self._groups[name]
        return None

    def change(self, limits: QueueLimits, share: Share, running: Iterable[str]) -> list[tuple[Partition, Lane]]:
        """Allows something else from now on; what runs goes on, and counts.

        Args:
            limits: of the queue.
            share: whose part of them is ours.
            running: lane of each task of the queue that runs here.

        Returns:
            The lanes that waited for a slot of their group: they are to queue up again.
        """
        waiting = [place for group in self._groups.values() for place in group.waiting]
        self._allow(limits)
        self.share(*share)
        self._groups, self._held_back, self.running = {}, 0, 0
        for ordering_id in running:
            self.running += 1
            if limits.group_concurrency is not None:
                self._groups.setdefault(self.group_of(ordering_id), _Group()).running += 1
        return [(partition, lane) for stamp, partition, lane in waiting if stamp == lane.stamp]

    def group_of(self, ordering_id: str) -> str:
        """The group of a lane."""
        return ordering_id.partition(self.limits.group_separator)[0]

    def limit(self, now: int) -> str:
        """Returns which limit of the queue as a whole holds its tasks back now: paused, concurrency or rate; or nothing."""
        if self.limits.paused:
            return "paused"
        if self._slots is not None and self.running >= self._slots:
            return "concurrency"
        return "rate" if self._step_us and self.next_us > now else ""

    def withheld(self) -> str:
        """Why no worker is offered anything although tasks may be due: their groups have no slot, or handlers here run them; or nothing."""
        if self._held_back:
            return "group"
        return "" if self.limits.pull else "push"

    def conditions(self, ordering_id: str, now: int) -> list[Condition]:
        """Every limit of the queue, for a task of this lane; the reasons follow the name of the queue."""
        limits, name = self.limits, self.group_of(ordering_id)
        group, most = self._groups.get(name), limits.group_concurrency
        running = group.running if group is not None else 0
        rate = f"{limits.rate:g} a second" if limits.rate else "no limit"
        has_room = self._slots is None or self.running < self._slots
        return [
            Condition("its queue is not paused", not limits.paused, "", "is paused"),
            Condition(
                "its queue has room",
                has_room,
                _of(self.running, self._slots),
                f"runs as many tasks as it may at once ({self._slots} here)",
            ),
            Condition(
                "its queue may start one",
                not self._step_us or self.next_us <= now,
                rate,
                f"starts at most {limits.rate or 0:g} tasks a second",
            ),
            Condition(
                "its group has room",
                most is None or running < most,
                _of(running, most),
                f"runs as many tasks of group {name!r} as it may at once ({most})",
            ),
        ]


def _of(running: int, most: int | None) -> str:
    return "no limit" if most is None else f"{running} of {most} run here"


class _Group:
    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[tuple[int, Partition, Lane]] = deque()


UNLISTED = ""  # stands for all queues without limits of their own: their names come from data


class Gates:
    """The gates of all queues; those without limits share one.

    Args:
        limits: queue → what it allows.
    """

    def __init__(self, limits: Mapping[str, QueueLimits]) -> None:
        self._gates = {name: Gate(allowed) for name, allowed in limits.items()} | {UNLISTED: Gate(FREE)}
        self._share = Share()

    def __getitem__(self, name: str) -> Gate:
        return self._gates[name]

    def all(self) -> Iterable[Gate]:
        """Every gate."""
        return self._gates.values()

    def name_of(self, queue: str) -> str:
        """The name under which the queue has its gate."""
        return queue if queue in self._gates else UNLISTED

    def of(self, queue: str) -> Gate:
        """Returns what may start of a queue."""
        return self._gates.get(queue) or self._gates[UNLISTED]

    def share(self, owned: frozenset[int], partitions: int) -> None:
        """The set of held partitions has changed, and with it our share of what queues allow."""
        self._share = Share(owned, partitions)
        for gate in self._gates.values():
            gate.share(owned, partitions)

    def put(self, queue: str, limits: QueueLimits | None, running: Iterable[str]) -> list[tuple[Partition, Lane]]:
        """Gives a queue other limits; with None it shares the gate of all that have none. See `Gate.change`."""
        gate = self._gates.get(queue)
        if gate is None and limits is not None:
            gate = self._gates[queue] = Gate()
        if gate is None:
            return []
        if limits is None:
            del self._gates[queue]
        return gate.change(limits or FREE, self._share, running)
