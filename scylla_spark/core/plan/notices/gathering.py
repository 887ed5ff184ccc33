"""What is gathered of things that repeat: one message at once, one with the count, and one when all is well again.

Messages are tasks, so what is decided here stands in the log as any launch does, and is sent after that counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final

from scylla_spark.core.plan.notices.notice import (
    FIRST,
    REPEATED,
    RESOLVED,
    Channel,
    Channels,
    Message,
    Occurrence,
    task_of,
)
from scylla_spark.core.plan.notices.rule_index import RuleIndex
from scylla_spark.core.plan.notices.state import (
    INCIDENT,
    IS_RESOLVED,
    RECOVERED,
    RECURS,
    RESOLVABLE,
    RULE,
    Incident,
)
from scylla_spark.core.plan.state.stored_definition import DefinitionChange, StoredDefinition
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.records import rejection_reason
from scylla_spark.core.records.command import ENQUEUE, Command, encode, payload_text
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.definitions.notification_rule import ABSENT, NotificationRule

MOST_INCIDENTS: Final = 200
"""Fingerprints that are open of one rule; what is beyond counts as one and the same."""
OTHERS: Final = "0" * 16
WINDOW: Final = "notice window"
MOST_TOLD: Final = 10
"""Rules that one occurrence is told by, the first ones by name: all of it must fit into one record of the log."""


class Gathering:
    """Sends what rules tell of, and keeps incidents.

    Args:
        journal: takes what is decided.
        timers: when windows end.
        rules: that are in force.
        channels: of the settings.
        note_defect: takes the stack of a defect that a rule met.
    """

    def __init__(
        self, journal: Journal, timers: Timers, rules: RuleIndex, channels: Channels, note_defect: Callable[[str], None]
    ) -> None:
        self._note_defect = note_defect
        self._journal = journal
        self._state = journal.state.notices
        self._timers = timers
        self._rules = rules
        self._channels = channels
        self._open: dict[str, set[str]] = defaultdict(set)  # subject → rules that have told of it
        for name, incidents in self._state.incidents.items():
            for fingerprint, incident in incidents.items():
                self._index(name, fingerprint, incident)

    @contextmanager
    def guarded(self, rule: NotificationRule, now: int) -> Iterator[None]:
        """A defect of ours that a rule meets pauses that rule, and all else goes on."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            stack = rejection_reason.of_defect(error).detail
            self._note_defect(stack)
            self._set_aside(rule.name, stack, now)

    def tell(self, rule: NotificationRule, occurrence: Occurrence, now: int) -> None:
        """Tells of an occurrence, or counts it.

        Args:
            rule: that tells of it.
            occurrence: what happened.
            now: microseconds since the epoch.
        """
        fingerprint = occurrence.fingerprint
        if not rule.digest_us and occurrence.event != ABSENT:
            self.send(rule, Message(FIRST, occurrence.event, _of_one(occurrence), 1, occurrence.sample, 1, now), now)
            return
        if fingerprint not in self._of(rule.name):
            fingerprint = self._room(rule, fingerprint)
        known = self._of(rule.name).get(fingerprint)
        if known is not None:
            self._journal.note(RECURS, rule.name, fingerprint, now)
            known = self._of(rule.name)[fingerprint]
            if not known.window_us:
                self._repeat(rule, fingerprint, known, now)
            return
        window_us = now + rule.digest_us
        begun = Incident(occurrence.event, occurrence.subject, occurrence.sample, now, now, window_us)
        self._keep(rule.name, fingerprint, begun)
        self.send(rule, Message(FIRST, begun.event, fingerprint, 1, begun.sample, 1, now), now)

    def _room(self, rule: NotificationRule, fingerprint: str) -> str:
        """The fingerprint under which something new is kept: another one is let go of for it, or it is one of the others."""
        known = self._of(rule.name)
        if len(known) < MOST_INCIDENTS:
            return fingerprint
        quiet = [(one.last_us, name) for name, one in known.items() if not one.window_us]
        if not quiet:
            return OTHERS
        self._let_go(rule.name, min(quiet)[1])
        return fingerprint

    def window_ends(self, rule: NotificationRule, number: int, now: int) -> None:
        """A timer of a window went off: what was gathered is told of.

        Args:
            rule: whose window.
            number: of the timer: the fingerprint of the incident.
            now: microseconds since the epoch.
        """
        fingerprint = f"{number:016x}"
        known = self._of(rule.name).get(fingerprint)
        if known is None or not 0 < known.window_us <= now:
            return
        if known.recovered_us and all(one.recovered_us for one in self.about(rule.name, known.subject)):
            self._resolve(rule, known.subject, now)
        elif known.untold and not known.recovered_us:
            self._repeat(rule, fingerprint, known, now)
        elif known.event in RESOLVABLE:
            self._keep(rule.name, fingerprint, known._replace(window_us=0))
        else:
            self._let_go(rule.name, fingerprint)

    def _repeat(self, rule: NotificationRule, fingerprint: str, known: Incident, now: int) -> None:
        number = known.messages + 1
        message = Message(REPEATED, known.event, fingerprint, number, known.sample, known.untold, known.first_us)
        self.send(rule, message, now)
        after = known._replace(untold=0, messages=number, window_us=now + rule.digest_us)
        self._keep(rule.name, fingerprint, after)

    def recover(self, subject: str, now: int) -> None:
        """The same work has succeeded: what is open of it is resolved, once all that is being gathered was told.

        Args:
            subject: the work.
            now: microseconds since the epoch.
        """
        if subject not in self._open:
            return
        for name in sorted(self._open[subject])[:MOST_TOLD]:
            rule, about = self._rules.all().get(name), self.about(name, subject)
            if rule is None or not about:
                self._unlist(name, subject)
                continue
            with self.guarded(rule, now):
                if not any(one.window_us for one in about):
                    self._resolve(rule, subject, now)
                elif not all(one.recovered_us for one in about):
                    self._journal.note(RECOVERED, name, subject, now)

    def _resolve(self, rule: NotificationRule, subject: str, now: int) -> None:
        """Says once that a subject is well again, whatever there was about it."""
        about = self.about(rule.name, subject)
        first = min(about, key=lambda one: one.first_us)
        total = sum(one.total for one in about)
        fingerprint = next(name for name, one in self._of(rule.name).items() if one is first)
        message = Message(RESOLVED, first.event, fingerprint, first.messages + 1, first.sample, total, first.first_us)
        self.send(rule, message, now)
        self._journal.note(IS_RESOLVED, rule.name, subject)
        self._unlist(rule.name, subject)

    def about(self, rule: str, subject: str) -> list[Incident]:
        """Returns what a rule has told of a subject that is open and can be resolved."""
        return [one for one in self._of(rule).values() if one.subject == subject and one.event in RESOLVABLE]

    def _keep(self, rule: str, fingerprint: str, incident: Incident) -> None:
        self._journal.note(INCIDENT, rule, fingerprint, incident._asdict())
        self._index(rule, fingerprint, incident)

    def _let_go(self, rule: str, fingerprint: str) -> None:
        subject = self._of(rule)[fingerprint].subject
        self._journal.note(INCIDENT, rule, fingerprint, None)
        if not self.about(rule, subject):
            self._unlist(rule, subject)

    def _unlist(self, rule: str, subject: str) -> None:
        """A rule has nothing open of a subject any more."""
        self._open[subject].discard(rule)
        if not self._open[subject]:
            del self._open[subject]

    def forget(self, rule: str) -> None:
        """A rule was changed, and begins anew."""
        for subject in [subject for subject, rules in self._open.items() if rule in rules]:
            self._unlist(rule, subject)

    def _index(self, rule: str, fingerprint: str, incident: Incident) -> None:
        if incident.event in RESOLVABLE:
            self._open[incident.subject].add(rule)
        if incident.window_us:
            self._timers.add(Timer(incident.window_us, rule, WINDOW, int(fingerprint, 16)))

    def anew(self, key: TaskKey, payload: Mapping[str, Any], now: int) -> None:
        """The task of a message was never sent, and would be refused as too late: it is sent for now.

        Args:
            key: of the task.
            payload: of it.
            now: microseconds since the epoch.
        """
        channel = self._channels.known.get(str(payload.get("channel")), Channel())
        command = Command(
            ENQUEUE,
            key._replace(time_us=now),
            0,
            channel.handler,
            channel.queue,
            payload_text(payload),
            enqueued_us=now,
        )
        self._journal.note("send", encode(command).decode())

    def _set_aside(self, name: str, why: str, now: int) -> None:
        stored = self._state.rules.get(name)
        if stored is not None:
            rule = NotificationRule.of(json.loads(stored.text))
            paused = rule.model_copy(update={"paused": True, "description": why[:1_000]})  # it may be too large by now
            after = StoredDefinition(paused.text, self._state.rules.revision + 1, "planner", now)
            self._journal.conclude(*DefinitionChange(name, after.revision, after, "planner", now, "").logged(RULE))

    def _of(self, rule: str) -> dict[str, Incident]:
        return self._state.incidents.get(rule, {})

    def send(self, rule: NotificationRule, message: Message, now: int) -> TaskKey:
        """Sends a message; the key of its task.

        Args:
            rule: that wants it sent.
            message: what it says.
            now: microseconds since the epoch.
        """
        command = task_of(message, rule, self._channels, now)
        self._journal.note("send", encode(command).decode())
        return command.key


def _of_one(occurrence: Occurrence) -> str:
    """In place of a fingerprint, where each occurrence has a message: what tells it from all others."""
    said = json.dumps([occurrence.event, occurrence.subject, occurrence.at_us, occurrence.sample], sort_keys=True)
    return sha256(said.encode("utf-8", "replace")).hexdigest()[:16]
