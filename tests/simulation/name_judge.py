"""What is promised of unique names, checked by the whole logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import Name, TaskKey, name_of

if TYPE_CHECKING:
    from tests.simulation.world import World

_PATIENCE_US = 100_000_000  # within which it is decided what is a duplicate, where nothing fails


class _First(NamedTuple):
    """The first enqueue of a key: its offset, whether the name was to be unique, and when it came, in played time."""

    offset: int
    unique: bool
    played_us: int


class NameJudge:
    """Knows every name and all that bear it.

    Args:
        world: that is judged.
        ended: what has ended, by the log.
        violation: raised where a promise is broken.
    """

    def __init__(self, world: World, ended: Mapping[TaskKey, tuple[str, int]], violation: type[AssertionError]) -> None:
        self._world = world
        self._ended = ended
        self._violation = violation
        self._first: dict[TaskKey, _First] = {}
        self._bearers: dict[Name, list[TaskKey]] = defaultdict(list)
        self._ended_us: dict[TaskKey, int] = {}

    @property
    def _played_us(self) -> int:
        return self._world.now - self._world.stood_still_us

    def accepted(self, command: Command) -> None:
        """A record was acknowledged."""
        key = command.key
        if key not in self._first:
            self._first[key] = _First(command.offset, command.unique, self._played_us)
            self._bearers[name_of(key)].append(key)

    def ended(self, key: TaskKey) -> None:
        """An end counts."""
        self._ended_us[key] = self._played_us

    def judge_start(self, key: TaskKey) -> None:
        """What starts has its name: all that was enqueued under it before has ended, by the log."""
        if not self._first[key].unique:
            return
        before = self._before(key)
        if open_ones := [other for other in before if other not in self._ended]:
            raise self._violation(f"{key} started though its name is held by {open_ones}")
        if self._world.profile.faultless:
            self._judge_patience(key, before)

    def judge_end(self, fact: Fact, begun: int) -> None:
        """A duplicate was refused rightly: it has not begun, and who is said to have its name was there before and is open."""
        key = fact.key
        if not self._first[key].unique or begun:
            raise self._violation(f"{key} is a duplicate after {begun} attempts; asked for that: {self._first[key]}")
        holders = [other for other in self._before(key) if other not in self._ended]
        said = fact.failure.message if fact.failure is not None else ""
        if not any(str(holder) in said for holder in holders):
            raise self._violation(f"{key} is said to be a duplicate: {said!r}; its name was held by {holders}")

    def may_be_refused(self, key: TaskKey) -> bool:
        """Returns True if an owner may have found a task to be a duplicate, though that may not be recorded yet."""
        return self._first[key].unique and bool(self._before(key))

    def _before(self, key: TaskKey) -> list[TaskKey]:
        offset = self._first[key].offset
        return [other for other in self._bearers[name_of(key)] if self._first[other].offset < offset]

    def _judge_patience(self, key: TaskKey, before: list[TaskKey]) -> None:
        """Where nothing fails it is found out soon what is a duplicate, and not only when its turn comes."""
        latest = max((self._ended_us[other] for other in before), default=0)
        if latest - self._first[key].played_us > _PATIENCE_US:
            raise self._violation(
                f"{key} started; it came {(latest - self._first[key].played_us) / 1e6} s before its name was free"
            )
