"""Notification rules as people write them in Python: `NotificationRule`, judged when it is made; and what is asked of stored ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.clock import from_us
from scylla_spark.core.notifications.rule import FIELDS, matches, read_rule, rule_fields
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.duration import duration_text
from scylla_spark.errors import ArgumentError, NotFoundError, shown

if TYPE_CHECKING:
    from scylla_spark.io.kafka.plan_requests import PlanRequests

_LISTS: Final = ("when", "queues", "handlers", "schedules", "tags")


@dataclass(frozen=True)
class NotificationRule:
    """Who is told of what. What is left out, or None, is the default.

    Attributes:
        name: of the rule.
        when: what it tells of: "failed" (for good), "succeeded", "expired", "cancelled", "duplicate", of schedules also "missed",
            "skipped", "paused", "late", "overdue" and "silent", "absent" for a success that is missing for `within`, and "alive" for a
            sign of life `every` so often.
        channel: name of the channel of the settings that is told.
        queues: only of work in these queues; a name, or a beginning and `*`. Work that one of the four names is told of.
        handlers: … or of these handlers …
        schedules: … or runs of these schedules …
        tags: … or of schedules that have one of these tags; default of all four: of everything.
        digest: how long what repeats is gathered (duration); default 5 min; 0: each has a message of its own.
        within: for "absent" (duration).
        every: for "alive" (duration).
        paused: it tells nothing.
        description: for people; stands in each message.

    Raises:
        ArgumentError: it is none; the message names the field.
    """

    name: str
    when: Sequence[str]
    channel: str
    queues: Sequence[str] = ()
    handlers: Sequence[str] = ()
    schedules: Sequence[str] = ()
    tags: Sequence[str] = ()
    digest: timedelta | str | float | None = None
    within: timedelta | str | float | None = None
    every: timedelta | str | float | None = None
    paused: bool | None = None
    description: str | None = None
    definition: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found: dict[str, Any] = {}
        for name in FIELDS:
            value = getattr(self, name)
            if name in _LISTS and isinstance(value, str):
                raise ArgumentError(f"{name}: it is a list of texts, not {shown(value)}.", hint=f'Such as ["{value}"].')
            if value is None or (name in _LISTS and not value and name != "when"):
                continue
            found[name] = list(value) if name in _LISTS else value
            if isinstance(value, timedelta):
                found[name] = duration_text(value)
        object.__setattr__(self, "definition", found)
        read_rule(found)

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> NotificationRule:
        """The rule of a JSON definition, as files, `notify show -o json` and the topic `schedules` have it.

        Raises:
            ArgumentError: it is none; the message names the field.
        """
        read_rule(definition)
        return cls(**definition)


class RuleStatus(NamedTuple):
    """A notification rule that is stored.

    Attributes:
        name: of the rule.
        revision: of its definition.
        author: who put it.
        changed_at: when.
        definition: as it was put, a JSON object; `NotificationRule.of` reads it.
        fields: all fields, defaults included.
        open: what it has told of and is not over: what happened, since when and how often.
        unknown_tags: of its `tags` those that no schedule has now; they name tags of schedules, never of tasks.
    """

    name: str
    revision: int
    author: str
    changed_at: datetime
    definition: dict[str, Any]
    fields: dict[str, Any]
    open: list[dict[str, Any]]
    unknown_tags: list[str]


def put(plan: PlanRequests, rules: Sequence[NotificationRule], author: str) -> dict[str, dict[str, Any]]:
    """Stores rules; name → `became` and `revision`.

    Args:
        plan: asks the planner.
        rules: each replaces the one of its name.
        author: who changes them.

    Raises:
        ArgumentError: one is refused, or two are of one name; nothing is changed.
    """
    return plan.ask("put_rule", rules=[rule.definition for rule in rules], author=author or None).done


def delete(plan: PlanRequests, names: Sequence[str], author: str) -> None:
    """Forgets rules, and what they have told of.

    Args:
        plan: asks the planner.
        names: of the rules.
        author: who asks.

    Raises:
        NotFoundError: one of them is not stored; nothing is changed.
    """
    plan.ask("delete_rule", names=list(names), author=author or None)


def send_test(plan: PlanRequests, name: str) -> TaskKey:
    """Sends a message to the channel of a rule; the key of the task that carries it.

    Args:
        plan: asks the planner.
        name: of the rule.

    Raises:
        NotFoundError: there is no such rule.
    """
    return TaskKey.parse(str(plan.ask("test_rule", name=name).done[name]))


def statuses(state: PlanState) -> dict[str, RuleStatus]:
    """All rules that are stored, by name in order.

    Args:
        state: what the planner knows.
    """
    found = {}
    tags = {tag for entry in state.entries.values() for tag in entry.schedule.tags}
    for name, stored in sorted(state.notices.rules.items()):
        definition = json.loads(stored.text)
        found[name] = RuleStatus(
            name, stored.revision, stored.author, from_us(stored.changed_us), definition, _fields(definition), _open(state, name),
            _unknown(definition, tags)
        )  # fmt: skip
    return found


def status(state: PlanState, name: str) -> RuleStatus:
    """One rule that is stored.

    Args:
        state: what the planner knows.
        name: of the rule.

    Raises:
        NotFoundError: it is not stored.
    """
    found = statuses(state).get(name)
    if found is None:
        raise NotFoundError(
            f"No notification rule {name!r} is stored.", hint="`scylla-spark notify list` shows what is."
        )
    return found


def _fields(definition: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return rule_fields(read_rule(definition))
    except ArgumentError:  # of a newer version
        return dict(definition)


def _unknown(definition: Mapping[str, Any], tags: Collection[str]) -> list[str]:
    wanted = definition.get("tags") or []
    return [one for one in wanted if isinstance(one, str) and not any(matches([one], tag) for tag in tags)]


def _open(state: PlanState, name: str) -> list[dict[str, Any]]:
    return [
        {
            "event": one.event, "subject": one.subject, "since": from_us(one.first_us), "last": from_us(one.last_us), "count": one.total,
            "dedup_key": f"{name}/{fingerprint}",
        }
        for fingerprint, one in state.notices.incidents.get(name, {}).items()
    ]  # fmt: skip
