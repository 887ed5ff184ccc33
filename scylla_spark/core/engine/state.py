"""What all parts of the engine share: the partitions that are held, what is asked of the shell, and what is counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.memory_use import Meter
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.records.command import Command
from scylla_spark.core.tables.progress import Tenure


class EngineState:
    """The shared state of an engine; whatever only one part needs is made there.

    Args:
        policy_of: how a command's handler wants to be run.
        limits: bounds.
        rng: source of back-off jitter and nonces.

    Attributes:
        partitions: those that are held, or being taken or left.
        meter: how much is held in memory.
        counts: events by name, for metrics.
    """

    def __init__(self, policy_of: Callable[[Command], HandlerPolicy], limits: Limits, rng: random.Random) -> None:
        self.policy_of = policy_of
        self.limits = limits
        self.rng = rng
        self.partitions: dict[int, Partition] = {}
        self.meter = Meter()
        self.counts: Counter[str] = Counter()
        self._actions: list[action.Action] = []
        self._sequence = 0

    def held(self, tenure: Tenure) -> Partition | None:
        """The partition, if it is still held as it was then."""
        partition = self.partitions.get(tenure.partition)
        return partition if partition is not None and partition.tenure == tenure else None

    def ask(self, item: action.Action) -> None:
        """Asks the shell to do something."""
        self._actions.append(item)

    def take_actions(self) -> list[action.Action]:
        """Returns what has been asked since the last time, in order."""
        taken, self._actions = self._actions, []
        return taken

    def next_number(self) -> int:
        """A number that no other call has got: for invocations, and the order of equals in heaps."""
        self._sequence += 1
        return self._sequence
