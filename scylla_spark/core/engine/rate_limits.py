"""Rate limits of others, such as of an API that handlers call: whoever runs into one, all that share it wait.

A limit has a name, its *key*. A handler that is told to wait says so (`RateLimited`), and until then nothing starts that bears the key
as a tag, or whose handler is registered with it. Keys are declared nowhere else, and known only while something has to wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.core.engine.lane import READY, Entry, Lane
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.records.command import Command
from scylla_spark.core.task import RATE_LIMITED, LastError
from scylla_spark.core.task_tags import is_tag

LONGEST_US: Final = 86_400_000_000
MOST_KEYS: Final = 10_000  # that are waited for at a time


class Hold(NamedTuple):
    """What a task waits for: a key, until a time in microseconds since the epoch."""

    key: str
    until_us: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.key!r} until {iso(self.until_us)}"


class RateLimits:
    """Until when what shares a limit waits, and the lanes that do.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._until_us: dict[str, int] = {}
        self._held: dict[str, dict[Lane, tuple[int, Partition]]] = {}  # key → lane → its stamp when it began to wait
        self._next_us = NEVER

    def learn(self, why: LastError | None, until_us: int, now: int) -> None:
        """An attempt ended, perhaps because of a rate limit.

        Args:
            why: it did not succeed, as far as is known.
            until_us: when its task may start again.
            now: microseconds since the epoch.
        """
        if why is None or why.kind != RATE_LIMITED or not is_tag(why.message):
            return
        key, until_us = why.message, min(until_us, now + LONGEST_US)
        known_us = self._until_us.get(key)
        if until_us <= (known_us or now) or (known_us is None and len(self._until_us) >= MOST_KEYS):
            return
        self._until_us[key] = until_us
        self._next_us = min(self._next_us, until_us)
        self._state.counts["rate_limits"] += 1

    def of(self, command: Command, now: int) -> Hold | None:
        """What a task has to wait for longest; None: nothing."""
        if not self._until_us:
            return None
        keys = (*command.tags, *self._state.policy_of(command).rate_keys)
        holds = [Hold(key, until) for key in keys if (until := self._until_us.get(key, 0)) > now]
        return max(holds, key=lambda hold: hold.until_us, default=None)

    def holds(self, partition: Partition, lane: Lane, head: Entry, now: int) -> bool:
        """Whether the head of a ready lane has to wait; if so, `let_go` tells of the lane when it need not wait any longer."""
        if not self._until_us or head.cancelled or head.expired(now):
            return False
        hold = self.of(head.data, now)
        if hold is None:
            return False
        self._held.setdefault(hold.key, {})[lane] = lane.stamp, partition
        return True

    def let_go(self, now: int) -> Iterable[tuple[Partition, Lane]]:
        """The lanes that have waited long enough; those that have gone on by themselves are left out."""
        if self._next_us > now:
            return
        over = [key for key, until in self._until_us.items() if until <= now]
        for key in over:
            del self._until_us[key]
        self._next_us = min(self._until_us.values(), default=NEVER)
        for key in over:
            for lane, (stamp, partition) in self._held.pop(key, {}).items():
                if stamp == lane.stamp and lane.state is READY and partition.state is ACTIVE:
                    yield partition, lane

    def forget(self, partition: Partition) -> None:
        """The partition is left, with all lanes of it that wait."""
        for held in self._held.values():
            for lane in [lane for lane, (_, whose) in held.items() if whose is partition]:
                del held[lane]

    def next_us(self) -> int:
        """When `let_go` has something to do next."""
        return self._next_us
