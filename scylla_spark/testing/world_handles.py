"""Handles on a task and on a schedule of a world, as clients have them on those of a deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from scylla_spark.core.key import TaskKey, instant_us
from scylla_spark.core.task import SUCCEEDED
from scylla_spark.core.task_status import TaskStatus, task_failed
from scylla_spark.errors import NotFoundError, WaitTimeoutError

if TYPE_CHECKING:
    from scylla_spark.client.planner_interface import PlannerLink
    from scylla_spark.client.schedules.handle import ScheduleStatus
    from scylla_spark.client.tasks.outputs import TaskOutput


class Surroundings(Protocol):
    """What handles need of a world."""

    @property
    def plan(self) -> PlannerLink:
        """Asks the planner."""

    @property
    def now(self) -> datetime:
        """What time it is."""

    def task(self, key: TaskKey | str) -> TaskStatus:
        """How a task stands."""

    def cancel(self, key: TaskKey | str) -> str:
        """Ends a task."""

    def outputs(self, key: TaskKey | str) -> list[TaskOutput]:
        """The files of a task."""


class TaskOfWorld:
    """One task, by its key.

    Args:
        world: it belongs to.
        key: of the task.
    """

    def __init__(self, world: Surroundings, key: TaskKey) -> None:
        self.key = key
        self._world = world

    def __repr__(self) -> str:
        return f"TaskOfWorld({self.key})"

    def status(self) -> TaskStatus:
        """How it stands now."""
        return self._world.task(self.key)

    def result(self) -> Any:
        """What its handler returned.

        Raises:
            TaskFailed: it ended otherwise.
            WaitTimeoutError: it has not ended; let time pass first.
        """
        found = self.status()
        if found.open:
            raise WaitTimeoutError(
                f"{self.key} has not ended: it is {found.state}.", hint="Let time pass: advance, or run_until_idle."
            )
        if found.state != SUCCEEDED:
            raise task_failed(self.key, found.state, found.attempts, found.error)
        return found.result

    def outputs(self) -> list[TaskOutput]:
        """The files that its attempts have left behind, in order."""
        return self._world.outputs(self.key)

    def cancel(self) -> str:
        """Ends it without running it (again): "cancelled", or "too_late"."""
        return self._world.cancel(self.key)


class ScheduleOfWorld:
    """One schedule, by its name.

    Args:
        world: it belongs to.
        name: of the schedule.
    """

    def __init__(self, world: Surroundings, name: str) -> None:
        self.name = name
        self._world = world

    def __repr__(self) -> str:
        return f"ScheduleOfWorld({self.name!r})"

    def pause(self, note: str = "", until: datetime | None = None) -> None:
        """It fires nothing any more; see `ScheduleHandle.pause`."""
        fields = {"until": instant_us(until)} if until is not None else {}
        self._world.plan.ask("pause", names=[self.name], note=note or None, **fields)

    def resume(self) -> None:
        """It fires again, from now on."""
        self._world.plan.ask("resume", names=[self.name])

    def delete(self) -> None:
        """It is gone."""
        self._world.plan.ask("delete", names=[self.name])

    def run_now(self, payload: Mapping[str, Any] | None = None) -> TaskOfWorld:
        """Launches a run at once, whatever else runs; it starts when time passes."""
        given = json.loads(json.dumps(payload)) if payload is not None else None
        done = self._world.plan.ask("run", name=self.name, payload=given).done
        return TaskOfWorld(self._world, TaskKey.parse(done[self.name]))

    def status(self) -> ScheduleStatus:
        """How it stands now.

        Raises:
            NotFoundError: there is no schedule of that name.
        """
        from scylla_spark.client.schedules.handle import status_of

        state = self._world.plan.state()
        return status_of(self._entry(), state, instant_us(self._world.now))

    def next_runs(self, count: int = 5) -> list[datetime]:
        """Its next planned times, the first first; empty for one that is paused or fires on what happens."""
        from scylla_spark.client.schedules.handle import planned

        entry = self._entry()
        return [] if entry.paused else planned(entry, self._world.plan.state(), instant_us(self._world.now), count)

    def _entry(self) -> Any:
        found = self._world.plan.state().entries.get(self.name)
        if found is None:
            raise NotFoundError(f"There is no schedule {self.name!r} in this world.", hint="Put it first.")
        return found
