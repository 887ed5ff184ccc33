"""Rate limits of others, such as of an API that handlers call: whoever runs into one, all that share it wait.

A limit has a name, its *key*. A handler that is told to wait says so (`RateLimited`), and until then nothing starts that bears the key
as a tag, or whose handler is registered with it. Keys are declared nowhere else, and known only while something has to wait for them.
Only a task that shares a limit itself can run into it: who works for one queue is not to hold up others whose keys it has guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.core.engine import action
from scylla_spark.core.engine.lane import Entry, Lane
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.ready import Place
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.tags import is_tag
from scylla_spark.core.tasks.task import RATE_LIMITED, LastError

LONGEST_US: Final = 86_400_000_000
MOST_KEYS: Final = 10_000  # that are waited for at a time
_SLACK: Final = 1_024  # lanes that have gone on by themselves are kept up to so many, and as many again as wait


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
        self._held: dict[str, list[Place]] = {}  # by key
        self._places = 0
        self._sweep_at = _SLACK
        self._left: set[str] = set()  # keys for whose sake tasks were left to the tables
        self._next_us = NEVER

    def learn(self, command: Command, why: LastError | None, until_us: int, now: int) -> None:
        """An attempt ended, perhaps because of a rate limit.

        Args:
            command: its task.
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
        if key not in self._keys(command):
            self._state.counts["rate_limits_refused"] += 1
            return
        self._until_us[key] = until_us
        self._next_us = min(self._next_us, until_us)
        self._state.counts["rate_limits"] += 1

    def of(self, command: Command, now: int) -> Hold | None:
        """Returns what a task has to wait for longest; None: nothing."""
        if not self._until_us:
            return None
        holds = [Hold(key, until) for key in self._keys(command) if (until := self._until_us.get(key, 0)) > now]
        return max(holds, key=lambda hold: hold.until_us, default=None)

    def _keys(self, command: Command) -> tuple[str, ...]:
        return (*command.tags, *self._state.policy_of(command).rate_keys)

    def holds(self, partition: Partition, lane: Lane, head: Entry, now: int) -> bool:
        """Returns True if the head of a ready lane has to wait; if so, `let_go` tells of the lane when it need not wait any longer."""
        if not self._until_us or head.cancelled or head.expired(now):
            return False
        hold = self.of(head.data, now)
        if hold is None:
            return False
        self._held.setdefault(hold.key, []).append(Place(0, 0, 0, lane.stamp, partition, lane))
        self._places += 1
        if self._places > self._sweep_at:
            self.sweep()
        return True

    def leave(self, command: Command, now: int) -> None:
        """A task is left to the tables; if it waits for a limit, they are to be looked at when that is over."""
        hold = self.of(command, now)
        if hold is not None:
            self._left.add(hold.key)

    def let_go(self, now: int) -> Iterable[tuple[Partition, Lane]]:
        """The lanes that have waited long enough; those that have gone on by themselves are left out."""
        if self._next_us > now:
            return
        over = [key for key, until in self._until_us.items() if until <= now]
        for key in over:
            del self._until_us[key]
        self._next_us = min(self._until_us.values(), default=NEVER)
        for key in over:
            places = self._held.pop(key, [])
            self._places -= len(places)
            yield from ((place.partition, place.lane) for place in places if not place.void)
        if not self._left.isdisjoint(over):
            self._left.difference_update(over)
            self._state.ask(action.LookAgain())

    def sweep(self) -> None:
        """Forgets the lanes that have gone on by themselves, or whose partition is left."""
        valid = {key: [place for place in places if not place.void] for key, places in self._held.items()}
        self._held = {key: places for key, places in valid.items() if places}
        self._places = sum(map(len, self._held.values()))
        self._sweep_at = 2 * self._places + _SLACK

    def doubt(self, now: int) -> None:
        """The clock was set, perhaps back: nothing is waited for longer than it could be."""
        self._until_us = {key: min(until_us, now + LONGEST_US) for key, until_us in self._until_us.items()}
        self._next_us = min(self._until_us.values(), default=NEVER)

    def next_us(self) -> int:
        """Returns when `let_go` has something to do next."""
        return self._next_us
