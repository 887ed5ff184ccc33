"""What is asked of notification rules: put and delete. All of one record is done, or nothing, in steps as with schedules."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from scylla_spark.core.notifications.rule import RuleDefinition, read_rule, rule_text
from scylla_spark.core.plan.commands.definitions import Steps
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.notices.state import RULE
from scylla_spark.core.plan.state.stored_definition import DefinitionChange, StoredDefinition
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError, shown

MOST_RULES: Final = 100
_LISTS: Final = "`scylla-spark notify list` shows what is stored."


class RuleCommands:
    """Changes notification rules.

    Args:
        journal: takes what is decided.
        channels: names of those that the settings have.
    """

    def __init__(self, journal: Journal, channels: Collection[str]) -> None:
        self._journal = journal
        self._state = journal.state.notices
        self._channels = channels

    def put(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Stores rules; one that says the same as before stays as it is.

        Args:
            command: with the rules.
            now: microseconds since the epoch.
            last: the rules up to this one are done; empty: none.

        Returns:
            By name what became of each, and its revision; nothing is taken back.

        Raises:
            ArgumentError: one of them is none, or names a channel that the settings do not have; nothing is changed.
            ConflictError: another revision is stored than `expect` says, and it differs from what is given.
        """
        wanted: dict[str, tuple[RuleDefinition, str]] = {}
        for given in command.fields["rules"]:
            rule = read_rule(given)
            self._check_channel(rule)
            if rule.name in wanted:
                raise ArgumentError(f"The rule {rule.name!r} is defined twice.", hint="Say all of it in one.")
            wanted[rule.name] = rule, rule_text(given)
        self._check_expected(command, last, {name for name, (rule, _) in wanted.items() if self._is_stored(rule)})
        if len(self._state.rules.keys() | wanted.keys()) > MOST_RULES:
            raise ArgumentError(f"More than {MOST_RULES} rules would be stored.", hint="Join some, by prefixes.")
        done: dict[str, Any] = {}
        for name, (rule, text) in sorted(wanted.items()):
            if name <= last:
                done[name] = self._told("stored", name)
                continue
            done[name] = self._put(rule, text, command, now)
            yield name
        return done, []

    def delete(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Forgets rules, and what they have told of. See `put` for arguments and result.

        Raises:
            NotFoundError: one of the names has none; nothing is changed.
            ConflictError: another revision is stored than `expect` says.
        """
        names = sorted(set(command.fields["names"]))
        missing = [name for name in names if name not in self._state.rules and name > last]
        if missing:
            raise NotFoundError(f"No notification rule {missing[0]!r} is stored.", hint=_LISTS)
        self._check_expected(command, last)
        done: dict[str, Any] = {}
        for name in names:
            if name > last:
                self._note(
                    DefinitionChange(name, self._state.revision + 1, None, command.author, now, command.id or "")
                )
                yield name
            done[name] = self._told("removed", name)
        return done, []

    def _put(self, rule: RuleDefinition, text: str, command: PlanCommand, now: int) -> dict[str, Any]:
        old = self._state.rules.get(rule.name)
        if self._is_stored(rule):
            return self._told("unchanged", rule.name)
        stored = StoredDefinition(text, self._state.revision + 1, command.author, now)
        self._note(DefinitionChange(rule.name, stored.revision, stored, command.author, now, command.id or ""))
        return self._told("added" if old is None else "changed", rule.name)

    def _is_stored(self, rule: RuleDefinition) -> bool:
        old = self._state.rules.get(rule.name)
        return old is not None and read_rule(json.loads(old.text)) == rule

    def _note(self, change: DefinitionChange) -> None:
        self._journal.note(*change.logged(RULE))

    def _told(self, became: str, name: str) -> dict[str, Any]:
        stored = self._state.rules.get(name)
        return {"became": became, "revision": stored.revision if stored is not None else 0}

    def _check_channel(self, rule: RuleDefinition) -> None:
        if rule.channel not in self._channels:
            known = ", ".join(sorted(self._channels)) or "none"
            raise ArgumentError(
                f"channel: the planner's settings have no channel {shown(rule.channel)}.",
                hint=f"Set notify.channels.{rule.channel}, and start the planner again. It has: {known}.",
            )

    def _check_expected(self, command: PlanCommand, last: str, same: Collection[str] = ()) -> None:
        for name, revision in command.fields.get("expect", {}).items():
            stored = self._state.rules.get(name)
            found = stored.revision if stored is not None else 0
            if found != revision and name > last and name not in same:
                said = f"is at revision {found}" if found else "is not stored"
                raise ConflictError(f"The rule {name!r} {said}, not at {revision}.", hint="Look at it, and ask again.")
