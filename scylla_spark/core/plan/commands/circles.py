"""Schedules that would fire each other in a circle, for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scylla_spark.core.plan.constraint import Check
from scylla_spark.core.plan.schedule import Schedule
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.triggers.trigger import OnBatch, OnRuns, leaves
from scylla_spark.core.tasks.tags import tags_of_runs
from scylla_spark.errors import ArgumentError


class Circles:
    """Finds them before they are stored.

    Args:
        state: with the schedules that are.
        listeners: key of what happens → names of schedules.
    """

    def __init__(self, state: PlanState, listeners: Mapping[str, set[str]]) -> None:
        self._entries = state.entries
        self._listeners = listeners

    def check(self, schedules: Iterable[Schedule]) -> None:
        """Refuses schedules whose runs would, by way of others, fire themselves.

        Raises:
            ArgumentError: some would.
        """
        new = {schedule.name: schedule for schedule in schedules}
        for name in new:
            path = self._circle(name, new)
            if path:
                raise ArgumentError(
                    f"These schedules fire each other in a circle: {' → '.join(path)}.",
                    hint="Leave out one of their `after` or `batch` triggers.",
                )

    def _circle(self, start: str, new: Mapping[str, Schedule]) -> list[str]:
        seen: set[str] = set()
        todo = [(start, [start])]
        while todo:
            name, path = todo.pop()
            for cause in self._causes(name, new):
                if cause == start:
                    return [cause, *reversed(path)]
                if cause not in seen:
                    seen.add(cause)
                    todo.append((cause, [*path, cause]))
        return []

    def _causes(self, name: str, new: Mapping[str, Schedule]) -> set[str]:
        """Schedules whose runs fire a schedule; that their absence does is no circle, since each round of it takes time."""
        works, tags = self._works(name, new)
        if not works and not tags:
            return set()
        causes = works & (new.keys() | self._entries.keys())
        causes |= {one.name for one in new.values() if not works.isdisjoint(_handlers(one))}
        for work in works:
            causes |= {one for one in self._listeners.get(f"runs:{work}", ()) if one not in new}
        if tags:
            known = {one: entry.schedule for one, entry in self._entries.items() if '"tags"' in entry.text}
            causes |= {
                one for one, schedule in {**known, **new}.items() if not tags.isdisjoint(tags_of_runs(schedule.tags))
            }
        return causes

    def _works(self, name: str, new: Mapping[str, Schedule]) -> tuple[set[str], set[str]]:
        """Handlers and schedules after whose runs a schedule runs, and tags of tasks whose ends it counts."""
        schedule, entry = new.get(name), self._entries.get(name)
        if schedule is None and entry is not None and any(key.startswith(("work:", "batch:")) for key in entry.keys):
            schedule = entry.schedule
        found = leaves(schedule.trigger) if schedule is not None else []
        works = {leaf.work for leaf in found if isinstance(leaf, OnRuns)}
        return works, {leaf.tag for leaf in found if isinstance(leaf, OnBatch)}


def _handlers(schedule: Schedule) -> set[str]:
    """Returns the handlers of which a schedule launches tasks: that of its runs, and that of its check."""
    return {schedule.work.handler, *(one.handler for one in schedule.constraints if isinstance(one, Check))}
