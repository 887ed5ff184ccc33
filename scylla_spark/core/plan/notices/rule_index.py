"""The notification rules that are in force, read once for each revision, and which of them an occurrence concerns."""

from __future__ import annotations

import json
from typing import Final

from scylla_spark.core.plan.notices.notice import Concern
from scylla_spark.core.plan.notices.state import NoticeState
from scylla_spark.core.plan.state.stored_definition import StoredDefinition
from scylla_spark.definitions.notification_rule import NotificationRule

_MOST_REMEMBERED: Final = 10_000


class RuleIndex:
    """Rules by name and by what they are about.

    Args:
        state: with the stored rules.
    """

    def __init__(self, state: NoticeState) -> None:
        self._state = state
        self._revision = -1
        self._rules: dict[str, NotificationRule] = {}
        self._concerned: dict[tuple[str, Concern], list[NotificationRule]] = {}

    def all(self) -> dict[str, NotificationRule]:
        """Name → rule, in order of the names; those that only a newer version can read are left out."""
        if self._revision != self._state.rules.revision:
            self._revision, self._concerned = self._state.rules.revision, {}
            found = {name: _readable(stored) for name, stored in sorted(self._state.rules.items())}
            self._rules = {name: rule for name, rule in found.items() if rule is not None}
        return self._rules

    def told_by(self, event: str, concern: Concern) -> list[NotificationRule]:
        """The rules that tell of something, in order of their names.

        Args:
            event: what happened.
            concern: the work that it is about.
        """
        rules = self.all()
        found = self._concerned.get((event, concern))
        if found is None:
            if len(self._concerned) >= _MOST_REMEMBERED:
                self._concerned.clear()
            chosen = (one for one in rules.values() if event in one.when and not one.paused)
            found = self._concerned[event, concern] = [one for one in chosen if one.concerns(*concern)]
        return found


def _readable(stored: StoredDefinition) -> NotificationRule | None:
    try:
        return NotificationRule.of(json.loads(stored.text))
    except ValueError:
        return None
