"""What else goes, or changes, when schedules are removed: the planner's rule, worked out for whoever wants to know it before."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.trigger_format import read_trigger
from scylla_spark.core.plan.triggers.tree import keys_of
from scylla_spark.core.plan.triggers.without_deleted import without_work
from scylla_spark.errors import ConflictError


class Loss(NamedTuple):
    """What a schedule loses with another one.

    Attributes:
        work: the schedule that goes, and that it waits for.
        trigger: what is left of its trigger, as JSON; None: nothing, so it goes too.
    """

    work: str
    trigger: Mapping[str, Any] | None

    @property
    def becomes(self) -> str:
        """In one word: "removed" or "changed"."""
        return "changed" if self.trigger is not None else "removed"


def losses(
    entries: Mapping[str, Entry], names: Iterable[str], given: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Loss]:
    """Returns which other schedules lose a trigger, or go, when some are removed; by name.

    Args:
        entries: all that are stored.
        names: are removed, in this order; those that are not there are passed over.
        given: definitions that are stored before, by name.
    """
    return _Removing(entries, given or {}).all(names)


def check_losses(entries: Mapping[str, Entry], names: Iterable[str], bounds: QueueBounds) -> None:
    """Refuses a removal that would change or remove a schedule which the caller may not change.

    Args:
        entries: all that are stored.
        names: are to be removed.
        bounds: queues of the caller.

    Raises:
        ConflictError: a schedule outside of the bounds waits for one of them.
    """
    if bounds == ALL_QUEUES:
        return
    lost = losses(entries, names)
    if not all(bounds.has(entries[name].schedule.work.queue) for name in lost):
        raise ConflictError(
            "Others wait for it: a schedule that you may not change would lose its trigger.",
            hint="Pause it instead, or ask somebody who may change all queues to delete it.",
        )


class _Removing:
    def __init__(self, entries: Mapping[str, Entry], given: Mapping[str, Mapping[str, Any]]) -> None:
        self._entries = entries
        self._given = given
        self._found: dict[str, Loss] = {}
        self._left = set(entries) | set(given)
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)  # work → names of those that wait for its end
        self._runs: Counter[str] = Counter()  # handler → how many schedules run it
        for name in self._left:
            self._runs[self._handler(name)] += 1
            for work in self._works(name):
                self._waiting[work].add(name)

    def all(self, names: Iterable[str]) -> dict[str, Loss]:
        chosen = sorted(set(names) & self._left)
        for name in chosen:
            self._remove(name)
        return {name: loss for name, loss in sorted(self._found.items()) if name not in chosen}

    def _remove(self, gone: str) -> None:
        if gone in self._left:
            self._left.discard(gone)
            self._runs[self._handler(gone)] -= 1
        if self._runs[gone]:
            return  # a handler of that name still runs
        for name in sorted(self._waiting[gone] & self._left):
            left = without_work(self._trigger(name), gone)
            self._found[name] = Loss(gone, left)
            if left is None:
                self._remove(name)

    def _handler(self, name: str) -> str:
        return str(self._given[name]["handler"]) if name in self._given else self._entries[name].handler

    def _works(self, name: str) -> list[str]:
        given = self._given.get(name)
        keys = keys_of(read_trigger(given["trigger"])) if given is not None else self._entries[name].keys
        return [key.removeprefix("work:") for key in keys if key.startswith("work:")]

    def _trigger(self, name: str) -> Mapping[str, Any]:
        loss = self._found.get(name)
        if loss is not None and loss.trigger is not None:
            return loss.trigger
        definition = self._given.get(name) or json.loads(self._entries[name].text)
        trigger: Mapping[str, Any] = definition["trigger"]
        return trigger
