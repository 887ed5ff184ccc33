"""The state of stored notification rules, and test messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scylla_spark.client.stored_definitions import DefinitionStatus, stored_fields
from scylla_spark.clock import from_us
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.definitions.notification_rule import NotificationRule, matches
from scylla_spark.errors import NotFoundError

if TYPE_CHECKING:
    from scylla_spark.io.kafka.plan_requests import PlanRequests


@dataclass(frozen=True)
class RuleStatus(DefinitionStatus):
    """A notification rule that is stored.

    Attributes:
        open: what it has notified of and is not over: what happened, since when and how often.
        unknown_tags: of its `tags` those that no schedule has now; tasks may have them.
    """

    open: list[dict[str, Any]]
    unknown_tags: list[str]


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
        common = stored_fields(NotificationRule, name, stored)
        unknown = _unknown(common["definition"], tags)
        found[name] = RuleStatus(**common, open=_open(state, name), unknown_tags=unknown)
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
