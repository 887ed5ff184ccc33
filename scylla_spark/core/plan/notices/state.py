"""What the planner holds for notifications, rules and open incidents, and how changes of its log alter that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.state.plan_log import Change
from scylla_spark.core.plan.state.stored_definition import StoredDefinitions, read_definition_change
from scylla_spark.definitions.notification_rule import ABSENT, FAILED, SILENT

RULE: Final = "notification_rule"
"""Kind of the change by which a rule is put, or deleted."""
RULE_ENTRY: Final = "notification_rule_entry"
"""Kind of the part of a snapshot that repeats a rule."""
RULE_REVISION: Final = "notification_revision"
INCIDENT: Final = "incident"
RECURS: Final = "incident_recurs"
RECOVERED: Final = "incident_recovered"
IS_RESOLVED: Final = "incident_resolved"
SEEN: Final = "notification_seen"
_OF: Final = "|"  # no rule's name has it
RESOLVABLE: Final = frozenset({FAILED, SILENT, ABSENT})
"""Events of which a success of the same work is the end."""


class Incident(NamedTuple):
    """Something that a rule has told of, and that may happen again. Instants are microseconds since the epoch.

    Attributes:
        event: what the rule tells of, such as "failed".
        subject: the work that it is about.
        sample: its first occurrence, as messages show it.
        first_us: when it happened first …
        last_us: … and last.
        window_us: until when what repeats is gathered; 0: nothing is.
        untold: how often it happened since the last message.
        total: how often altogether.
        recovered_us: when the same work succeeded after that; 0: it has not.
        messages: how many there were.
    """

    event: str
    subject: str
    sample: Mapping[str, Any]
    first_us: int
    last_us: int
    window_us: int
    untold: int = 0
    total: int = 1
    recovered_us: int = 0
    messages: int = 1


@dataclass(slots=True)
class NoticeState:
    """Rules, and what they have told of.

    Attributes:
        rules: name → rule.
        incidents: name of a rule → fingerprint → what is open.
        seen_us: name of a rule that waits for successes → when the last one was recorded.
    """

    rules: StoredDefinitions = field(default_factory=StoredDefinitions)
    incidents: dict[str, dict[str, Incident]] = field(default_factory=dict)
    seen_us: dict[str, int] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        """Makes one change, of a kind that `KINDS` names."""
        KINDS[change[0]](self, change)

    def names(self) -> list[str]:
        """Of all that a snapshot repeats, for `again`; taken from the end, a rule comes before what it has told of."""
        found = []
        for rule in self.rules:
            found += [f"{rule}{_OF}{fingerprint}" for fingerprint in self.incidents.get(rule, {})]
            found.append(rule)
        return found

    def again(self, name: str) -> Iterator[Change]:
        """Changes that make a rule, or one thing that it has told of, once more; none if that is gone by now."""
        rule, _, fingerprint = name.partition(_OF)
        if rule not in self.rules:
            return
        incident = self.incidents.get(rule, {}).get(fingerprint)
        if incident is not None:
            yield [INCIDENT, rule, fingerprint, incident._asdict()]
        elif not fingerprint:
            yield [RULE_ENTRY, rule, self.rules[rule]._asdict()]
            if rule in self.seen_us:
                yield [SEEN, rule, self.seen_us[rule]]


def _rule(state: NoticeState, change: Change) -> None:
    """A rule that is changed begins anew: it has told of nothing."""
    read = read_definition_change(change)
    state.incidents.pop(read.name, None)
    state.seen_us.pop(read.name, None)
    state.rules.take(read)


def _rule_entry(state: NoticeState, change: Change) -> None:
    state.rules.take(read_definition_change(change))


def _revision(state: NoticeState, change: Change) -> None:
    state.rules.is_at(change[1])


def _incident(state: NoticeState, change: Change) -> None:
    _, rule, fingerprint, fields = change
    if fields is None:
        state.incidents.get(rule, {}).pop(fingerprint, None)
        if not state.incidents.get(rule):
            state.incidents.pop(rule, None)
    else:
        state.incidents.setdefault(rule, {})[fingerprint] = Incident(**fields)


def _recurs(state: NoticeState, change: Change) -> None:
    _, rule, fingerprint, at_us = change
    found = state.incidents.get(rule, {}).get(fingerprint)
    if found is not None:
        again = found._replace(untold=found.untold + 1, total=found.total + 1, last_us=at_us, recovered_us=0)
        state.incidents[rule][fingerprint] = again


def _recovered(state: NoticeState, change: Change) -> None:
    _, rule, subject, at_us = change
    incidents = state.incidents.get(rule, {})
    for fingerprint in _about(incidents, subject):
        incidents[fingerprint] = incidents[fingerprint]._replace(recovered_us=at_us)


def _resolved(state: NoticeState, change: Change) -> None:
    _, rule, subject = change
    incidents = state.incidents.get(rule, {})
    for fingerprint in _about(incidents, subject):
        del incidents[fingerprint]
    if not incidents:
        state.incidents.pop(rule, None)


def _about(incidents: Mapping[str, Incident], subject: str) -> list[str]:
    return [name for name, one in incidents.items() if one.subject == subject and one.event in RESOLVABLE]


def _seen(state: NoticeState, change: Change) -> None:
    state.seen_us[change[1]] = change[2]


KINDS: Final[dict[str, Callable[[NoticeState, Change], None]]] = {
    RULE: _rule,
    RULE_ENTRY: _rule_entry,
    RULE_REVISION: _revision,
    INCIDENT: _incident,
    RECURS: _recurs,
    RECOVERED: _recovered,
    IS_RESOLVED: _resolved,
    SEEN: _seen,
}
