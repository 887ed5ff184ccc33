"""Which runs of each handler and of each tag have not ended, of whichever schedule they are or were, and when a handler succeeded last."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container
from heapq import heappop, heappush
from typing import Final

from scylla_spark.core.plan.constraint import Asked, Situation, TagUse, tags_counted
from scylla_spark.core.plan.load import Load
from scylla_spark.core.plan.state.plan_log import RUN_ENDED, Change
from scylla_spark.core.plan.state.plan_state import LAUNCHED, PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry, Job
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.tasks.key import TaskKey

Groups = tuple[str, ...]
"""The groups that a run counts for: "runs:HANDLER", and "tag:TAG" for each tag that it was launched under."""
BACKFILL: Final = "backfill/"
"""Lanes of backfills begin so."""
_SLACK: Final = 64  # runs that have ended and are kept before they are swept out


class HandlerRuns:
    """An index of the state, kept up to date by each change.

    Args:
        journal: tells of changes.
    """

    def __init__(self, journal: Journal) -> None:
        self._state = journal.state
        self._active: dict[str, _Active] = {}
        self.load: Load | None = None  # of queues; the planner alone knows it
        self._groups: dict[TaskKey, Groups] = {}  # of these runs, whatever their schedules are by now
        journal.watchers.append(self._watch)
        for key, handler in self._state.handlers.items():
            self._begins(key, (of_handler(handler), *map(of_tag, self._state.tags.get(key, ()))))

    def take_over(self, entry: Entry) -> None:
        """Takes over a schedule of the log."""
        for run in entry.runs.values():
            handler = self._state.handlers.get(run.key, entry.handler)
            self._begins(run.key, (of_handler(handler), *map(of_tag, self._tags(run.key, entry))))

    def _tags(self, key: TaskKey, entry: Entry) -> tuple[str, ...]:
        return self._state.tags.get(key, entry.tags)

    def active(self, group: str, now: int) -> int:
        """Returns how many runs of a handler or a tag are active; of a backfill's lane, in which the others wait, one is.

        Args:
            group: see `Groups`.
            now: microseconds since the epoch; it does not fall from call to call.
        """
        found = self._active.get(group)
        return found.count(now) if found is not None else 0

    def groups(self, key: TaskKey) -> Groups:
        """Returns what a run counts for; nothing if it has ended."""
        return self._groups.get(key, ())

    def counted(self, groups: Container[object]) -> tuple[dict[TaskKey, str], dict[TaskKey, tuple[str, ...]]]:
        """Returns handlers and tags of all runs that count for one of some groups, as a state keeps them for runs without a schedule."""
        found = {key: own for key, own in self._groups.items() if any(group in groups for group in own)}
        handlers = {key: own[0].removeprefix("runs:") for key, own in found.items()}
        return handlers, {key: tuple(group.removeprefix("tag:") for group in own[1:]) for key, own in found.items()}

    def launched_as(self, entry: Entry) -> dict[tuple[str, tuple[str, ...]], list[TaskKey]]:
        """Returns handler and tags → the runs of a schedule that were launched under them."""
        found: dict[tuple[str, tuple[str, ...]], list[TaskKey]] = defaultdict(list)
        for run in entry.runs.values():
            handler = self._state.handlers.get(run.key, entry.handler)
            found[handler, self._tags(run.key, entry)].append(run.key)
        return found

    def situation(self, entry: Entry, job: Job, now: int) -> Situation:
        """Returns what the constraints of a schedule look at.

        Args:
            entry: the schedule.
            job: of it, whose trigger holds.
            now: microseconds since the epoch.
        """
        handler, launches = entry.handler, self._state.launches
        counted = tags_counted(entry.schedule.constraints)
        tags = {tag: TagUse(self.active(of_tag(tag), now), launches.get(tag, ())) for tag in counted}
        success_us = self._state.successes.get(handler)
        return Situation(
            job.first_us,
            self.active(of_handler(handler), now),
            success_us,
            entry.launches_us,
            tags,
            self.load,
            job.asked or Asked(),
        )

    def _watch(self, change: Change) -> None:
        if change[0] == "fire" and change[2]["verdict"] == LAUNCHED:
            entry = self._state.entries[change[1]]
            self._begins(TaskKey(*change[2]["key"]), (of_handler(entry.handler), *map(of_tag, entry.tags)))
        elif change[0] == "end":
            self._ends(TaskKey(*change[6]))
        elif change[0] == RUN_ENDED:
            self._ends(TaskKey(*change[1]))

    def _begins(self, key: TaskKey, groups: Groups) -> None:
        if key in self._groups:
            self._ends(key)
        self._groups[key] = groups
        for group in groups:
            self._active.setdefault(group, _Active()).add(key)

    def _ends(self, key: TaskKey) -> None:
        """A run has ended; nothing happens where it is none of ours."""
        for group in self._groups.pop(key, ()):
            self._active[group].remove(key)
            if not self._active[group].keys:
                del self._active[group]


def runs_in(state: PlanState) -> HandlerRuns:
    """Returns the index of a state that nobody changes meanwhile."""
    runs = HandlerRuns(Journal(state))
    for entry in state.entries.values():
        runs.take_over(entry)
    return runs


def of_handler(handler: str) -> str:
    """Returns the group of the runs of a handler."""
    return f"runs:{handler}"


def of_tag(tag: str) -> str:
    """Returns the group of the runs of a tag."""
    return f"tag:{tag}"


class _Active:
    """Runs of one group, counted without a look at each: there may be thousands, and they are counted for each job that waits.

    Attributes:
        keys: of all, whether their time has come or not.
    """

    def __init__(self) -> None:
        self.keys: set[TaskKey] = set()
        self._ahead: list[
            TaskKey
        ] = []  # heap of those whose time had not come at the last count, and of some that ended
        self._due: set[TaskKey] = set()
        self._lanes: Counter[str] = Counter()  # of backfills → runs in it that are due
        self._beside = 0  # runs that are due, and of no backfill

    def add(self, key: TaskKey) -> None:
        self.keys.add(key)
        heappush(self._ahead, key)
        if len(self._ahead) > 2 * len(self.keys) + _SLACK:  # nobody counts them: those that ended are still there
            self._ahead = sorted(self.keys - self._due)

    def remove(self, key: TaskKey) -> None:
        self.keys.discard(key)
        if key in self._due:
            self._due.discard(key)
            self._step(key, -1)

    def count(self, now: int) -> int:
        while self._ahead and self._ahead[0].time_us <= now:
            key = heappop(self._ahead)
            if key in self.keys and key not in self._due:
                self._due.add(key)
                self._step(key, 1)
        return self._beside + len(self._lanes)

    def _step(self, key: TaskKey, step: int) -> None:
        lane = key.ordering_id
        if not lane.startswith(BACKFILL):
            self._beside += step
            return
        self._lanes[lane] += step
        if not self._lanes[lane]:
            del self._lanes[lane]
