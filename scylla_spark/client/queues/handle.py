"""A handle on one queue: what is in force of it, and what is asked of its definition."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from scylla_spark.client.planner_interface import Planned
from scylla_spark.client.queues.queue import in_python, on_the_wire
from scylla_spark.clock import from_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.stored_definition import StoredDefinition
from scylla_spark.core.queues.definition import queue_fields, read_queue
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from scylla_spark.client.queues.tasks import Cleared, QueueTasks
    from scylla_spark.io.delta.queue_stats import QueueStats

STORED = "stored"
SETTINGS = "settings"


class QueueStatus(NamedTuple):
    """What is in force of a queue.

    Attributes:
        name: of the queue.
        source: "stored": a definition was put; "settings": it has start values of the settings.
        revision: of the definition; 0: none was put.
        author: who put it.
        changed_at: when.
        definition: as it was put, a JSON object; `Queue.of` reads it.
        fields: all fields by their names in Python, defaults included.
    """

    name: str
    source: str
    revision: int
    author: str
    changed_at: datetime | None
    definition: dict[str, Any]
    fields: dict[str, Any]


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
        self._author = author or None
        self._make_tasks = tasks

    def __repr__(self) -> str:
        return f"QueueHandle({self.name!r})"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Is pickled as its name, from which `Scheduler.queue` makes a handle."""
        return str, (self.name,)

    def get(self) -> QueueStatus:
        """What is in force of it.

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
        left_out = list(on_the_wire(dict.fromkeys(unset)))
        given = {"name": self.name} | on_the_wire(fields)
        expected = {self.name: expect} if expect is not None else None
        return self._ask("put_queue", queues=[given], patch=True, unset=left_out or None, expect=expected)

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
        self._ask("delete_queue", names=[self.name], expect={self.name: expect} if expect is not None else None)

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

    def _ask(self, kind: str, **fields: Any) -> int:
        done = self._connection.plan.ask(kind, author=self._author, **fields).done
        revision: int = done[self.name]["revision"]
        return revision


def statuses(state: PlanState, settings: Settings, only: str | None = None) -> dict[str, QueueStatus]:
    """What is in force of queues, by name in order.

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
            found[name] = _status(name, json.loads(stored.text), stored)
        elif name in settings.queues:
            found[name] = _status(name, settings.queues[name].definition(name), None)
    return found


def warning_of_delete(state: PlanState, settings: Settings, name: str) -> str | None:
    """What is to be said of the tasks of a queue before its definition is forgotten; None: nothing.

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
    """Whether a uniqueness key of a queue is free again once its task has ended.

    Args:
        state: what the planner knows.
        settings: with start values.
        name: of the queue.
    """
    found = statuses(state, settings, name).get(name)
    return found is not None and found.fields["key_reuse"] == "when_done"


def _status(name: str, definition: Mapping[str, Any], stored: StoredDefinition | None) -> QueueStatus:
    fields = in_python(queue_fields(read_queue(definition)))
    if stored is None:
        return QueueStatus(name, SETTINGS, 0, "", None, dict(definition), fields)
    return QueueStatus(
        name, STORED, stored.revision, stored.author, from_us(stored.changed_us), dict(definition), fields
    )
