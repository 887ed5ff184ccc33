"""A handle on one queue: what is in force of it, and what is asked of its definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scylla_spark.client.planner_interface import Planned
from scylla_spark.client.stored_definitions import DefinitionStatus, delete, stored_fields
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.definitions.queue import Queue
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from scylla_spark.client.queues.tasks import Cleared, QueueTasks
    from scylla_spark.io.delta.queue_stats import QueueStats

STORED = "stored"
SETTINGS = "settings"


@dataclass(frozen=True)
class QueueStatus(DefinitionStatus):
    """What is in force of a queue.

    Attributes:
        source: "stored": a definition was put; "settings": it has start values of the settings.
    """

    source: str = STORED


class QueueHandle:
    """One queue, by its name; making one asks nobody.

    Args:
        connection: to the deployment.
        name: of the queue.
        author: who asks; stands beside each change.
        tasks: makes what knows its tasks; None: there are no tables, as in the world of a test.
    """

    def __init__(
        self, connection: Planned, name: str, author: str = "", tasks: Callable[[str], QueueTasks] | None = None
    ) -> None:
        self.name = name
        self._connection = connection
        self._author = author
        self._make_tasks = tasks

    def __repr__(self) -> str:
        return f"QueueHandle({self.name!r})"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Is pickled as its name, from which `Scheduler.queue` makes a handle."""
        return str, (self.name,)

    def get(self) -> QueueStatus:
        """Returns what is in force of it.

        Raises:
            NotFoundError: no definition was put, and the settings do not list it: it has no limits.
        """
        found = statuses(self._connection.plan.state(), self._connection.settings, self.name).get(self.name)
        if found is None:
            raise NotFoundError(
                f"The queue {self.name!r} is not defined: its tasks run without limits.",
                hint="`scylla-spark queue list` shows those that are.",
            )
        return found

    def update(self, *, unset: tuple[str, ...] = (), expect: int | None = None, **fields: Any) -> int:
        """Changes some fields, and leaves the others as they are.

        Args:
            unset: names of fields that go back to their defaults.
            expect: the revision that must be stored; 0: none. Default: any.
            **fields: as `Queue` has them; None is a value: no limit, or of `max_retries`: for ever.

        Returns:
            The revision that is stored now.

        Raises:
            ArgumentError: there is no such field, or it has a bad value.
            ConflictError: another revision is stored than expected.
        """
        left_out = [Queue.wire_name(field) for field in unset]
        given = Queue(name=self.name, **fields).definition
        expected = {self.name: expect} if expect is not None else None
        asked = {"queues": [given], "patch": True, "unset": left_out or None, "expect": expected}
        revision: int = self._connection.plan.ask("put_queue", author=self._author or None, **asked).done[self.name][
            "revision"
        ]
        return revision

    def pause(self) -> None:
        """Nothing of it starts any more; what was handed to an executor goes on."""
        self.update(paused=True)

    def resume(self) -> None:
        """Its tasks start again."""
        self.update(paused=False)

    def delete(self, *, expect: int | None = None) -> None:
        """Forgets its definition: start values of the settings are in force again, or it has no limits.

        Args:
            expect: the revision that must be stored. Default: any.

        Raises:
            NotFoundError: no definition was put.
            ConflictError: another revision is stored than expected.
        """
        delete(self._connection.plan, Queue, [self.name], self._author, expect)

    def stats(self) -> QueueStats:
        """Counts its tasks by state, and those that were started, retried and completed, from the tables.

        Raises:
            ConflictError: there are no tables.
        """
        return self._tasks().stats()

    def clear(self, *, running: bool = False, grace: object = "10s", dry_run: bool = False) -> Cleared:
        """Ends all its open tasks that the tables show, without running them (again): sends a cancel for each, and waits for no answer.

        What workers have leased ends at once, with or without `running`.

        Args:
            running: end also what a dispatcher runs: it is asked to, and killed after the grace.
            grace: how long that may go on (duration).
            dry_run: only count.

        Returns:
            How many there were, and how many cancels are acknowledged.

        Raises:
            ConflictError: there are no tables.
            UnreachableError: some cancels were not acknowledged.
        """
        return self._tasks().clear(max(1, duration_ms(grace)) if running else None, dry_run=dry_run)

    def _tasks(self) -> QueueTasks:
        if self._make_tasks is None:
            raise ConflictError("The world of a test has no tables.", hint="Look at `world.tasks(state=…)` there.")
        return self._make_tasks(self.name)


def statuses(state: PlanState, settings: Settings, only: str | None = None) -> dict[str, QueueStatus]:
    """Returns what is in force of queues, by name in order.

    Args:
        state: what the planner knows.
        settings: with start values.
        only: a name; None: of all.
    """
    names = sorted(state.queues.keys() | settings.queues.keys()) if only is None else [only]
    found = {}
    for name in names:
        stored = state.queues.get(name)
        if stored is not None:
            found[name] = QueueStatus(**stored_fields(Queue, name, stored))
        elif name in settings.queues:
            start = settings.queues[name]
            found[name] = QueueStatus(name, 0, "", None, start.definition, start.values, SETTINGS)
    return found


def warning_of_delete(state: PlanState, settings: Settings, name: str) -> str | None:
    """Returns what is to be said of the tasks of a queue before its definition is forgotten; None: nothing.

    Args:
        state: what the planner knows.
        settings: with start values, which are in force then.
        name: of the queue.
    """
    found, start = statuses(state, settings, name).get(name), settings.queues.get(name)
    is_pull = found is not None and found.fields["mode"] == "pull"
    if not is_pull or (start is not None and start.mode == "pull"):
        return None
    return (
        f"Workers lease the tasks of {name!r}. Without its definition those that name a handler are run by dispatchers at once, "
        "and where these do not have the handler, they wait."
    )


def is_reusable(state: PlanState, settings: Settings, name: str) -> bool:
    """Returns True if a uniqueness key of a queue is free again once its task has ended.

    Args:
        state: what the planner knows.
        settings: with start values.
        name: of the queue.
    """
    found = statuses(state, settings, name).get(name)
    return found is not None and found.fields["key_reuse"] == "when_done"
