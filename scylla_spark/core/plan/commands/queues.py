"""What is asked of definitions of queues: put and delete. All of one record is done, or nothing, in steps as with schedules."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from scylla_spark.core.plan.commands.definitions import Steps
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.state.stored_definition import QUEUE, DefinitionChange, StoredDefinition
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.queues.definition import QueueDefinition, check_field, queue_text, read_queue
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError

MOST_QUEUES: Final = 10_000
_LISTS: Final = "`scylla-spark queue list` shows what is stored."


class QueueCommands:
    """Changes the definitions of queues.

    Args:
        journal: takes what is decided.
        start: name → start values of the settings, JSON values; a patch of a queue of which nothing is stored begins with them.
    """

    def __init__(self, journal: Journal, start: Mapping[str, Mapping[str, Any]]) -> None:
        self._journal = journal
        self._state = journal.state
        self._start = start

    def put(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Stores definitions; one that says the same as before stays as it is.

        Args:
            command: with the definitions; as a patch they hold only fields that change.
            now: microseconds since the epoch.
            last: the queues up to this one are done; empty: none.

        Returns:
            By name what became of each, and its revision; nothing is taken back.

        Raises:
            ArgumentError: one of them is none; nothing is changed.
            ConflictError: another revision is stored than `expect` says, and it differs from what is given.
        """
        wanted: dict[str, tuple[QueueDefinition, str]] = {}
        for given in command.fields["queues"]:
            definition, text = self._judged(given, command.fields)
            if definition.name in wanted:
                raise ArgumentError(f"The queue {definition.name!r} is defined twice.", hint="Say all of it in one.")
            wanted[definition.name] = definition, text
        self._check_expected(
            command, last, {name for name, (definition, _) in wanted.items() if self._is_stored(definition)}
        )
        if len(self._state.queues.keys() | wanted.keys()) > MOST_QUEUES:
            raise ArgumentError(f"More than {MOST_QUEUES} queues would be stored.", hint="Delete some.")
        done: dict[str, Any] = {}
        for name, (definition, text) in sorted(wanted.items()):
            if name <= last:
                done[name] = self._told("stored", name)
                continue
            done[name] = self._put(definition, text, command, now)
            yield name
        return done, []

    def delete(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Forgets definitions: start values are in force again. See `put` for arguments and result.

        Raises:
            NotFoundError: one of the names has none; nothing is changed.
            ConflictError: another revision is stored than `expect` says.
        """
        names = sorted(set(command.fields["names"]))
        missing = [name for name in names if name not in self._state.queues and name > last]
        if missing:
            raise self._missing(missing[0])
        self._check_expected(command, last)
        done: dict[str, Any] = {}
        for name in names:
            if name > last:
                self._note(DefinitionChange(name, self._next, None, command.author, now, command.id or ""))
                yield name
            done[name] = self._told("removed", name)
        return done, []

    def _put(self, definition: QueueDefinition, text: str, command: PlanCommand, now: int) -> dict[str, Any]:
        name = definition.name
        old = self._state.queues.get(name)
        if self._is_stored(definition):
            return self._told("unchanged", name)
        stored = StoredDefinition(text, self._next, command.author, now)
        self._note(DefinitionChange(name, stored.revision, stored, command.author, now, command.id or ""))
        return self._told("added" if old is None else "changed", name)

    def _is_stored(self, definition: QueueDefinition) -> bool:
        old = self._state.queues.get(definition.name)
        return old is not None and read_queue(json.loads(old.text)) == definition

    @property
    def _next(self) -> int:
        return self._state.queue_revision + 1

    def _note(self, change: DefinitionChange) -> None:
        self._journal.note(*change.logged(QUEUE))

    def _told(self, became: str, name: str) -> dict[str, Any]:
        stored = self._state.queues.get(name)
        return {"became": became, "revision": stored.revision if stored is not None else 0}

    def _judged(self, given: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[QueueDefinition, str]:
        value = self._patched(given, fields.get("unset", ())) if fields.get("patch") else given
        return read_queue(value), queue_text(value)

    def _patched(self, given: Mapping[str, Any], unset: list[str]) -> dict[str, Any]:
        """What is stored, or the start values, with some fields replaced and some left out."""
        name = given.get("name")
        stored = self._state.queues.get(name) if isinstance(name, str) else None
        before = json.loads(stored.text) if stored is not None else self._start.get(str(name), {})
        for field in unset:
            check_field(field)
        kept = {field: item for field, item in before.items() if field not in unset or field == "name"}
        return {**kept, **given}

    def _check_expected(self, command: PlanCommand, last: str, same: Collection[str] = ()) -> None:
        for name, revision in command.fields.get("expect", {}).items():
            stored = self._state.queues.get(name)
            found = stored.revision if stored is not None else 0
            if found != revision and name > last and name not in same:
                said = f"is at revision {found}" if found else "has no definition"
                raise ConflictError(f"The queue {name!r} {said}, not at {revision}.", hint="Look at it, and ask again.")

    def _missing(self, name: str) -> NotFoundError:
        if name in self._start:
            return NotFoundError(
                f"The queue {name!r} stands in the settings only.", hint="Change it there, or put one."
            )
        return NotFoundError(f"No queue {name!r} is stored.", hint=_LISTS)
