"""Commands that put and delete stored definitions: queues, notification rules and tokens.

All of one record is done, or nothing, in steps as with schedules. A new kind is a class here, and a line in `planner.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from scylla_spark.core.plan.commands.definitions import Steps
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.notices.state import RULE
from scylla_spark.core.plan.state.stored_definition import (
    QUEUE,
    DefinitionChange,
    StoredDefinition,
    StoredDefinitions,
)
from scylla_spark.core.plan.state.stored_token import StoredToken, read_stored_token, token_change
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.definitions.definition import Definition
from scylla_spark.definitions.notification_rule import NotificationRule
from scylla_spark.definitions.queue import Queue
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError, shown

V = TypeVar("V")
D = TypeVar("D", bound=Definition)


class StoredKind(ABC, Generic[V]):
    """Changes the definitions of one kind.

    Args:
        journal: takes what is decided.
        stored: name → what is stored.
    """

    noun: ClassVar[str]
    field: ClassVar[str]
    most: ClassVar[int] = 10_000
    group: ClassVar[str]

    def __init__(self, journal: Journal, stored: Mapping[str, Any]) -> None:
        self._journal = journal
        self._stored = stored

    def put(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Stores definitions; one that says the same as before stays as it is.

        Args:
            command: with the definitions.
            now: microseconds since the epoch.
            last: the definitions up to this name are done; empty: none.

        Returns:
            By name what became of each, and its revision; nothing is taken back.

        Raises:
            ArgumentError: one of them is not valid; nothing is changed.
            ConflictError: another revision is stored than `expect` says, and it differs from what is given.
        """
        wanted: dict[str, V] = {}
        for given in command.fields[self.field]:
            name, value = self._read(given, command, now, last)
            if name in wanted:
                raise ArgumentError(f"The {self.noun} {name!r} is defined twice.", hint="Define it once.")
            wanted[name] = value
        self._check_expected(command, last, {name for name, value in wanted.items() if self._is_stored(name, value)})
        if len(self._stored.keys() | wanted.keys()) > self.most:
            raise ArgumentError(f"More than {self.most} {self.noun}s would be stored.", hint="Delete some.")
        done: dict[str, Any] = {}
        for name, value in sorted(wanted.items(), key=lambda item: item[0]):
            if name <= last:
                done[name] = self._answer("stored", name)
                continue
            became = "changed" if name in self._stored else "added"
            if self._is_stored(name, value):
                became = "unchanged"
            else:
                self._note(name, value, command, now)
            done[name] = self._answer(became, name)
            yield name
        return done, []

    def delete(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Removes definitions. See `put` for arguments and result.

        Raises:
            NotFoundError: one of the names has none; nothing is changed.
            ConflictError: another revision is stored than `expect` says.
        """
        names = sorted(set(command.fields["names"]))
        missing = [name for name in names if name not in self._stored and name > last]
        if missing:
            raise self._missing(missing[0])
        self._check_expected(command, last)
        done: dict[str, Any] = {}
        for name in names:
            if name > last:
                self._note(name, None, command, now)
                yield name
            done[name] = self._answer("removed", name)
        return done, []

    @abstractmethod
    def _read(self, given: Mapping[str, Any], command: PlanCommand, now: int, last: str) -> tuple[str, V]:
        """Name and content of a definition that is to be put. See `put` for arguments and errors."""

    @abstractmethod
    def _is_stored(self, name: str, value: V) -> bool:
        """True if the same is stored already."""

    @abstractmethod
    def _note(self, name: str, value: V | None, command: PlanCommand, now: int) -> None:
        """Decides that this is stored from now on; None: nothing is."""

    def _missing(self, name: str) -> NotFoundError:
        """The error that says that a name has no definition."""
        return NotFoundError(f"No {self.noun} {name!r} is stored.", hint=f"`scylla-spark {self.group} list` shows all.")

    def _answer(self, became: str, name: str) -> dict[str, Any]:
        return {"became": became, "revision": getattr(self._stored.get(name), "revision", 0)}

    def _check_expected(self, command: PlanCommand, last: str, same: Collection[str] = ()) -> None:
        for name, revision in command.fields.get("expect", {}).items():
            found = getattr(self._stored.get(name), "revision", 0)
            if found != revision and name > last and name not in same:
                said = f"is at revision {found}" if found else "is not stored"
                raise ConflictError(
                    f"The {self.noun} {name!r} {said}, not at {revision}.", hint="Look at it, and ask again."
                )


class DefinitionKind(StoredKind[D]):
    """Definitions that are stored as texts, under revisions.

    Args:
        journal: takes what is decided.
        stored: what is stored of the kind.
    """

    model: type[D]
    change: ClassVar[str]

    def __init__(self, journal: Journal, stored: StoredDefinitions) -> None:
        super().__init__(journal, stored)
        self._definitions = stored

    def _read(self, given: Mapping[str, Any], command: PlanCommand, now: int, last: str) -> tuple[str, D]:
        made = self.model.of(given)
        return made.name, made

    def _is_stored(self, name: str, value: D) -> bool:
        old = self._definitions.get(name)
        return old is not None and self.model.of(json.loads(old.text)) == value

    def _note(self, name: str, value: D | None, command: PlanCommand, now: int) -> None:
        revision = self._definitions.revision + 1
        stored = None if value is None else StoredDefinition(value.text, revision, command.author, now)
        change = DefinitionChange(name, revision, stored, command.author, now, command.id or "")
        self._journal.note(*change.logged(self.change))


class QueueKind(DefinitionKind[Queue]):
    """Queues, which may also be patched: a record then holds only the fields that change.

    Args:
        journal: takes what is decided.
        start: name → start values of the settings; a patch of a queue of which nothing is stored begins with them.
    """

    noun, field, group, model, change = "queue", "queues", "queue", Queue, QUEUE

    def __init__(self, journal: Journal, start: Mapping[str, Queue]) -> None:
        super().__init__(journal, journal.state.queues)
        self._start = start

    def _read(self, given: Mapping[str, Any], command: PlanCommand, now: int, last: str) -> tuple[str, Queue]:
        if not command.fields.get("patch"):
            return super()._read(given, command, now, last)
        unset = {Queue.field_named(field) for field in command.fields.get("unset", ())}
        name = given["name"]
        stored, start = self._definitions.get(name), self._start.get(name)
        before = json.loads(stored.text) if stored is not None else start.definition if start is not None else {}
        kept = {field: item for field, item in Queue.by_name(before).items() if field not in unset}
        return super()._read({**kept, **Queue.by_name(given)}, command, now, last)

    def _missing(self, name: str) -> NotFoundError:
        if name in self._start:
            return NotFoundError(
                f"The queue {name!r} stands in the settings only.", hint="Change it there, or put one."
            )
        return super()._missing(name)


class RuleKind(DefinitionKind[NotificationRule]):
    """Notification rules.

    Args:
        journal: takes what is decided.
        channels: names of those that the settings have.
    """

    noun, field, group, model, change = "notification rule", "rules", "notify", NotificationRule, RULE
    most = 100

    def __init__(self, journal: Journal, channels: Collection[str]) -> None:
        super().__init__(journal, journal.state.notices.rules)
        self._channels = channels

    def _read(
        self, given: Mapping[str, Any], command: PlanCommand, now: int, last: str
    ) -> tuple[str, NotificationRule]:
        name, rule = super()._read(given, command, now, last)
        if rule.channel not in self._channels:
            known = ", ".join(sorted(self._channels)) or "none"
            raise ArgumentError(
                f"channel: the planner's settings have no channel {shown(rule.channel)}.",
                hint=f"Set notify.channels.{rule.channel}, and start the planner again. It has: {known}.",
            )
        return name, rule


class TokenKind(StoredKind[StoredToken]):
    """Tokens, by their ids. A secret stays what it is, and what was revoked stays so.

    Args:
        journal: takes what is decided.
    """

    noun, field, group = "token", "tokens", "token"

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, journal.state.tokens)

    def _read(self, given: Mapping[str, Any], command: PlanCommand, now: int, last: str) -> tuple[str, StoredToken]:
        id, token = read_stored_token(given, command.author, now)
        old: StoredToken | None = self._stored.get(id)
        if id > last and old is not None:
            if old.digest != token.digest:
                raise ConflictError(f"The token {id!r} has another secret.", hint="Make a new one.")
            if old.revoked and not token.revoked:
                raise ConflictError(f"The token {id!r} was revoked.", hint="Make a new one.")
        return id, token

    def _is_stored(self, name: str, value: StoredToken) -> bool:
        old: StoredToken | None = self._stored.get(name)
        return old is not None and old._replace(author=value.author, changed_us=value.changed_us) == value

    def _note(self, name: str, value: StoredToken | None, command: PlanCommand, now: int) -> None:
        self._journal.note(*token_change(name, value, command.author, now, command.id or ""))
