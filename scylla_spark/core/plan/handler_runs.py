"""Which runs of each handler have not ended, and when one succeeded last, of whichever schedule they are or were."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import Final

from scylla_spark.core.plan.state.plan_log import RUN_ENDED, Change
from scylla_spark.core.plan.state.plan_state import LAUNCHED
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.tasks.key import TaskKey

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
        self._handlers: dict[TaskKey, str] = {}  # of these runs, which their schedules need not have any more
        journal.watchers.append(self._watch)
        for key, handler in self._state.handlers.items():
            self._begins(key, handler)

    def load(self, entry: Entry) -> None:
        """Takes over a schedule of the log."""
        for run in entry.runs.values():
            self._begins(run.key, self._state.handlers.get(run.key, entry.handler))

    def active(self, handler: str, now: int) -> int:
        """Returns how many runs of a handler are active; of a backfill's lane, in which the others wait, one is.

        Args:
            handler: its name.
            now: microseconds since the epoch; it does not fall from call to call.
        """
        found = self._active.get(handler)
        return found.count(now) if found is not None else 0

    def last_success_us(self, handler: str) -> int | None:
        """Returns when the last successful run of a handler ended; None: none is known."""
        return self._state.successes.get(handler)

    def _watch(self, change: Change) -> None:
        if change[0] == "fire" and change[2]["verdict"] == LAUNCHED:
            self._begins(TaskKey(*change[2]["key"]), self._state.entries[change[1]].handler)
        elif change[0] == "end":
            self._ends(TaskKey(*change[6]))
        elif change[0] == RUN_ENDED:
            self._ends(TaskKey(*change[1]))

    def _begins(self, key: TaskKey, handler: str) -> None:
        if key in self._handlers:
            self._ends(key)
        self._handlers[key] = handler
        self._active.setdefault(handler, _Active()).add(key)

    def _ends(self, key: TaskKey) -> None:
        """A run has ended; nothing happens where it is none of ours."""
        handler = self._handlers.pop(key, "")
        if handler:
            self._active[handler].remove(key)
            if not self._active[handler].keys:
                del self._active[handler]


class _Active:
    """Runs of one handler, counted without a look at each: there may be thousands, and they are counted for each job that waits.

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
