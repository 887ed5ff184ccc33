"""Handles on a task and on a schedule of a world, as clients have them on those of a deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from scylla_spark.client.schedules.selection import is_now
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.core.tasks.key import TaskKey, instant_us
from scylla_spark.core.tasks.status import Attempt, TaskStatus, task_failed
from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.errors import NotFoundError, WaitTimeoutError

if TYPE_CHECKING:
    from scylla_spark.client.planner_interface import PlannerLink
    from scylla_spark.client.schedules.handle import ScheduleStatus
    from scylla_spark.client.tasks.outputs import TaskOutput
    from scylla_spark.handlers.value_type import ValueType


class Surroundings(Protocol):
    """What handles need of a world."""

    @property
    def plan(self) -> PlannerLink:
        """Asks the planner."""

    @property
    def now(self) -> datetime:
        """Returns what time it is."""

    def task(self, key: TaskKey | str) -> TaskStatus:
        """Returns how a task stands."""

    def attempts_of(self, key: TaskKey | str, newest: int | None = None, before: int | None = None) -> list[Attempt]:
        """The attempts of a task.

        Args:
            key: of the task.
            newest: only so many, the last ones.
            before: only those with smaller numbers.
        """

    def cancel(self, key: TaskKey | str, *, running: bool = False, grace: object = "10s") -> str:
        """Ends a task.

        Args:
            key: of the task.
            running: also if it runs.
            grace: how long it may go on then (duration).
        """

    def retry(self, key: TaskKey | str) -> TaskOfWorld:
        """Enqueues a copy of a task that has ended."""

    def reschedule(self, key: TaskKey | str, at: datetime | None = None, *, delay: object = None) -> TaskOfWorld:
        """Moves a task to another time.

        Args:
            key: of the task.
            at: the time (aware).
            delay: or how long from now (duration).
        """

    def outputs(self, key: TaskKey | str, attempt: int | None = None) -> list[TaskOutput]:
        """The files of a task."""


class TaskOfWorld:
    """One task, by its key: a `TaskHandle` that waits for nothing, since only the test lets time pass.

    Args:
        world: it belongs to.
        key: of the task.
        returns: the type of its result; None: plain JSON.
    """

    def __init__(self, world: Surroundings, key: TaskKey, returns: ValueType | None = None) -> None:
        self.key = key
        self._returns = returns
        self._world = world

    def __repr__(self) -> str:
        return f"TaskOfWorld({self.key})"

    def status(self, *, live: bool = True) -> TaskStatus:
        """Returns how it stands now, whether `live` or not."""
        return self._world.task(self.key)

    def attempts(self, newest: int | None = None, before: int | None = None) -> list[Attempt]:
        """Its recorded attempts, in order; see `TaskHandle.attempts`."""
        return self._world.attempts_of(self.key, newest, before)

    def result(self, timeout: object = None) -> Any:
        """Returns what its handler returned, as the type that the handler declares.

        Args:
            timeout: how long a deployment would be waited for (duration); no time passes here.

        Raises:
            ArgumentError: the timeout is no duration.
            TaskFailed: it ended otherwise.
            WaitTimeoutError: it has not ended; let time pass first.
        """
        enqueue_arguments.deadline_of(timeout)  # refused here, too, if it is none
        found = self.status()
        if found.open:
            raise WaitTimeoutError(
                f"{self.key} has not ended: it is {found.state}.", hint="Let time pass: advance, or run_until_idle."
            )
        if found.state != SUCCEEDED:
            raise task_failed(self.key, found.state, found.attempts, found.error)
        return found.result if self._returns is None else self._returns.of_json(found.result)

    def outputs(self, attempt: int | None = None) -> list[TaskOutput]:
        """The files that its attempts, or one of them, have left behind, in order."""
        return self._world.outputs(self.key, attempt)

    def cancel(self, timeout: object = "10s", *, running: bool = False, grace: object = "10s") -> str:
        """Ends it without running it (again): "cancelled", or "too_late"; see `World.cancel`."""
        enqueue_arguments.deadline_of(timeout)
        return self._world.cancel(self.key, running=running, grace=grace)

    def retry(self) -> TaskOfWorld:
        """Enqueues a copy of the ended task, due now; see `World.retry`."""
        return self._alike(self._world.retry(self.key))

    def reschedule(self, at: datetime | None = None, *, delay: object = None, timeout: object = "10s") -> TaskOfWorld:
        """Moves it to another time, and returns a handle on the copy; see `World.reschedule`."""
        enqueue_arguments.deadline_of(timeout)
        return self._alike(self._world.reschedule(self.key, at, delay=delay))

    def _alike(self, copy: TaskOfWorld) -> TaskOfWorld:
        return TaskOfWorld(self._world, copy.key, self._returns)


class ScheduleOfWorld:
    """One schedule, by its name.

    Args:
        world: it belongs to.
        name: of the schedule.
        author: who changes it.
    """

    def __init__(self, world: Surroundings, name: str, author: str = "") -> None:
        self.name = name
        self._author = author or None
        self._world = world

    def __repr__(self) -> str:
        return f"ScheduleOfWorld({self.name!r})"

    def pause(self, note: str = "", until: datetime | None = None) -> None:
        """It fires nothing any more; see `ScheduleHandle.pause`."""
        fields = {"until": instant_us(until)} if until is not None else {}
        self._ask("pause", names=[self.name], note=note or None, **fields)

    def resume(self, *, begin: Literal["pause", "now"] = "pause") -> None:
        """It fires again, from now on; see `ScheduleHandle.resume`."""
        self._ask("resume", names=[self.name], fromNow=is_now(begin))

    def delete(self) -> None:
        """It is gone."""
        self._ask("delete", names=[self.name])

    def run_now(self, payload: Mapping[str, Any] | None = None) -> TaskOfWorld:
        """Launches a run at once, whatever else runs; it starts when time passes."""
        given = json.loads(json.dumps(payload)) if payload is not None else None
        done = self._ask("run", name=self.name, payload=given)
        return TaskOfWorld(self._world, TaskKey.parse(done[self.name]))

    def status(self) -> ScheduleStatus:
        """Returns how it stands now.

        Raises:
            NotFoundError: there is no schedule of that name.
        """
        from scylla_spark.client.schedules.handle import status_of

        state = self._world.plan.state()
        return status_of(self._entry(), state, instant_us(self._world.now))

    def next_runs(self, count: int = 5, after: datetime | None = None) -> list[datetime]:
        """Its next planned times, later than now or `after`; empty for one that is paused or fires on what happens."""
        from scylla_spark.client.schedules.handle import planned

        entry, after_us = self._entry(), instant_us(after if after is not None else self._world.now)
        return [] if entry.paused else planned(entry, self._world.plan.state(), after_us, count)

    def _ask(self, kind: str, **fields: Any) -> Mapping[str, Any]:
        return self._world.plan.ask(kind, author=self._author, **fields).done

    def _entry(self) -> Any:
        found = self._world.plan.state().entries.get(self.name)
        if found is None:
            raise NotFoundError(f"There is no schedule {self.name!r} in this world.", hint="Put it first.")
        return found
