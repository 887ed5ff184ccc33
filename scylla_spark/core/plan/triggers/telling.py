"""Tells all schedules that listen of what has happened, one after the other, also where that is more than one group holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from scylla_spark import failpoint
from scylla_spark.core.plan.defects import Defects
from scylla_spark.core.plan.state.group_writer import COMMANDS, GroupWriter
from scylla_spark.core.plan.state.plan_log import Partly
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.triggers.observations import Occurrence, Watching

SECOND: Final = "~"
"""Begins the names in places of an input that tells of several things, at the second, and once more at each after that; it is greater
than all that names begin with."""


class Telling:
    """Tells schedules.

    Args:
        state: with the schedules.
        groups: ends groups between two of them.
        watching: takes what they are told.
        defects: sets schedules aside.
        listeners: key of what happens → names of schedules.
    """

    def __init__(
        self,
        state: PlanState,
        groups: GroupWriter,
        watching: Watching,
        defects: Defects,
        listeners: Mapping[str, Collection[str]],
    ) -> None:
        self._state = state
        self._groups = groups
        self._watching = watching
        self._defects = defects
        self.listeners = listeners
        self._later: list[Occurrence] = []

    def tell(self, at: Partly, occurrence: Occurrence, now: int, prefix: str = "", *, beside: bool = False) -> None:
        """Tells all schedules that listen; where it was not through when its planner ended, those that come after.

        Args:
            at: which input says so.
            occurrence: what happened.
            now: microseconds since the epoch.
            prefix: of names in `at`, where one input tells of several things.
            beside: those who listen to `also` as well know already.
        """
        done = self._groups.done_before(at)
        told = frozenset(self.listeners.get(occurrence.also, ())) if beside else frozenset()
        for name in sorted(frozenset(self.listeners.get(occurrence.key, ())) - told):
            entry = self._state.entries.get(name)
            if prefix + name <= done or entry is None:
                continue
            self._defects.guarded(name, partial(self._happened, entry, occurrence, now), now)
            self._groups.part(at._replace(name=prefix + name), now)

    def later(self, occurrence: Occurrence) -> None:
        """Something has happened in the midst of a step: it is told of when that is through, since it may be many who listen."""
        self._later.append(occurrence)

    def tell_later(self, at: Partly | None, now: int) -> None:
        """Tells what has happened in the midst of a step.

        Args:
            at: how far the input is in which that was; None: it was a timer.
            now: microseconds since the epoch.
        """
        if not self._later:
            return
        later, self._later, self._groups.within = self._later, [], at
        for occurrence in later:
            self.tell(Partly(COMMANDS - 1, 0, 0, ""), occurrence, now)
        self._groups.within = None

    def _happened(self, entry: Entry, occurrence: Occurrence, now: int) -> None:
        failpoint.reach("plan.happened", entry.name)
        self._watching.too_old(entry, now)
        self._watching.happened(entry, occurrence, now)
