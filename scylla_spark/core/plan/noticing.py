"""Who is told of what: which rules an occurrence concerns, what is gathered, and when a message is due.

Messages are tasks, so what is decided here stands in the log as any launch does, and is sent after that counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final

from scylla_spark.core import rejection
from scylla_spark.core.command import ENQUEUE, Command, encode, payload_text
from scylla_spark.core.fact import Fact
from scylla_spark.core.key import TaskKey
from scylla_spark.core.notification_rule import ABSENT, FAILED, SUCCEEDED, RuleDefinition, read_rule, rule_text
from scylla_spark.core.plan.entry import Entry, Run
from scylla_spark.core.plan.journal import Journal
from scylla_spark.core.plan.notice import (
    FIRST,
    REPEATED,
    RESOLVED,
    TEST,
    Channel,
    Channels,
    Message,
    Occurrence,
    is_notice,
    of_end,
    of_schedule,
    task_of,
)
from scylla_spark.core.plan.notice_state import (
    INCIDENT,
    IS_RESOLVED,
    RECOVERED,
    RECURS,
    RESOLVABLE,
    RULE,
    SEEN,
    Incident,
    RuleChange,
    StoredRule,
    read_rule_change,
    rule_change,
)
from scylla_spark.core.plan.plan_log import Change
from scylla_spark.core.plan.timers import Timer, Timers
from scylla_spark.defaults import NOTIFY_HANDLER, NOTIFY_QUEUE
from scylla_spark.duration import duration_text
from scylla_spark.errors import NotFoundError

MOST_TOLD: Final = 10
"""Rules that one occurrence is told by, the first ones by name: all of it must fit into one record of the log."""
MOST_INCIDENTS: Final = 200
"""Fingerprints that are open of one rule; what is beyond counts as one and the same."""
OTHERS: Final = "0" * 16
WINDOW: Final = "notice window"
DEAD_MAN: Final = "notice dead man"
TIMERS: Final = frozenset({WINDOW, DEAD_MAN})
_VERDICTS: Final = frozenset({"missed", "skipped", "failed", "late", "overdue", "silent"})
_ENDED: Final = {"failed": FAILED, "aborted": FAILED, "succeeded": SUCCEEDED}
_MOST_REMEMBERED: Final = 10_000
_SLACK: Final = 32  # successes are recorded once in so many parts of the time that a rule waits for one

_Scope = tuple[str, str, str, str, tuple[str, ...]]


class Noticing:
    """Decides what is told.

    Args:
        journal: takes what is decided.
        timers: when to look again.
        channels: of the settings.
    """

    def __init__(self, journal: Journal, timers: Timers, channels: Channels) -> None:
        self._journal = journal
        self._schedules = journal.state.entries
        self._state = journal.state.notices
        self._timers = timers
        self._channels = channels
        self._revision = -1
        self._rules: list[RuleDefinition] = []
        self._concerned: dict[_Scope, list[RuleDefinition]] = {}
        self._open: dict[str, set[str]] = defaultdict(set)  # subject → rules that have told of it
        self._load()
        journal.watchers.append(self._watch)

    def _load(self) -> None:
        """Takes over what the log says."""
        for name, incidents in self._state.incidents.items():
            for fingerprint, incident in incidents.items():
                self._index(name, fingerprint, incident)
        for rule in self._all():
            self._wait_for_success(rule)

    @property
    def idle(self) -> bool:
        """Whether nobody wants to be told of anything."""
        return not self._state.rules

    # -- what happens -----------------------------------------------------------------------------------------------------

    def ended(self, fact: Fact, entry: Entry | None, run: Run | None, now: int) -> None:
        """A task has ended.

        Args:
            fact: that says so.
            entry: the schedule whose run it was.
            run: likewise.
            now: microseconds since the epoch.
        """
        event = _ENDED.get(fact.outcome)
        if self.idle or event is None or is_notice(fact.key) or _is_ours(fact):
            return
        occurrence = of_end(event, fact, entry, run)
        if event == SUCCEEDED:
            self._recover(occurrence.subject, now)
            for rule in self._told_by(occurrence._replace(event=ABSENT)):
                with self._guarded(rule, now):
                    self._note_success(rule, now)
        self._happened(occurrence, now)

    def _watch(self, change: Change) -> None:
        if change[0] == RULE:
            self._rule_changed(change)
        elif self.idle:
            return
        elif change[0] == "fire" and change[2]["verdict"] in _VERDICTS:
            fire = change[2]
            entry = self._schedules[change[1]]
            told = of_schedule(fire["verdict"], entry, fire["why"], fire["at_us"], fire["planned_us"])
            self._happened(told, fire["at_us"])
        elif change[0] == "set" and change[2].get("paused"):
            fields = change[2]
            why = f"{fields['note']} ({fields['author']})" if fields["author"] else fields["note"]
            self._happened(
                of_schedule("paused", self._schedules[change[1]], why, fields["changed_us"]), fields["changed_us"]
            )

    def _happened(self, occurrence: Occurrence, now: int) -> None:
        for rule in self._told_by(occurrence)[:MOST_TOLD]:
            with self._guarded(rule, now):
                self._tell(rule, occurrence, now)

    @contextmanager
    def _guarded(self, rule: RuleDefinition, now: int) -> Iterator[None]:
        """A defect of ours that a rule meets pauses that rule, and all else goes on."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            self._set_aside(rule.name, rejection.of_defect(error).detail, now)

    def _tell(self, rule: RuleDefinition, occurrence: Occurrence, now: int) -> None:
        fingerprint = occurrence.fingerprint
        if not rule.digest_us and occurrence.event != ABSENT:
            self._send(rule, Message(FIRST, occurrence.event, _of_one(occurrence), 1, occurrence.sample, 1, now), now)
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
        self._send(rule, Message(FIRST, begun.event, fingerprint, 1, begun.sample, 1, now), now)

    def _room(self, rule: RuleDefinition, fingerprint: str) -> str:
        """The fingerprint under which something new is kept: another one is let go of for it, or it is one of the others."""
        known = self._of(rule.name)
        if len(known) < MOST_INCIDENTS:
            return fingerprint
        quiet = [(one.last_us, name) for name, one in known.items() if not one.window_us]
        if not quiet:
            return OTHERS
        self._journal.note(INCIDENT, rule.name, min(quiet)[1], None)
        return fingerprint

    # -- what is gathered ---------------------------------------------------------------------------------------------------

    def timer(self, timer: Timer, now: int) -> None:
        """A moment of ours has come, one whose kind is in `TIMERS`.

        Args:
            timer: which.
            now: microseconds since the epoch.
        """
        rule = self._named(timer.name)
        if rule is None:
            return
        with self._guarded(rule, now):
            if timer.kind == DEAD_MAN:
                self._look_for_success(rule, now)
                return
            fingerprint = f"{timer.number:016x}"
            known = self._of(rule.name).get(fingerprint)
            if known is not None and 0 < known.window_us <= now:
                self._window_ends(rule, fingerprint, known, now)

    def _window_ends(self, rule: RuleDefinition, fingerprint: str, known: Incident, now: int) -> None:
        if known.recovered_us and all(one.recovered_us for one in self._about(rule.name, known.subject)):
            self._resolve(rule, known.subject, now)
        elif known.untold and not known.recovered_us:
            self._repeat(rule, fingerprint, known, now)
        elif known.event in RESOLVABLE:
            self._keep(rule.name, fingerprint, known._replace(window_us=0))
        else:
            self._journal.note(INCIDENT, rule.name, fingerprint, None)

    def _repeat(self, rule: RuleDefinition, fingerprint: str, known: Incident, now: int) -> None:
        number = known.messages + 1
        message = Message(REPEATED, known.event, fingerprint, number, known.sample, known.untold, known.first_us)
        self._send(rule, message, now)
        after = known._replace(untold=0, messages=number, window_us=now + rule.digest_us)
        self._keep(rule.name, fingerprint, after)

    def _recover(self, subject: str, now: int) -> None:
        """The same work has succeeded: what is open of it is resolved, once all that is being gathered was told."""
        if subject not in self._open:
            return
        for name in sorted(self._open[subject])[:MOST_TOLD]:
            rule, about = self._named(name), self._about(name, subject)
            if rule is None or not about:
                self._open[subject].discard(name)
                continue
            with self._guarded(rule, now):
                if not any(one.window_us for one in about):
                    self._resolve(rule, subject, now)
                elif not all(one.recovered_us for one in about):
                    self._journal.note(RECOVERED, name, subject, now)
        if not self._open[subject]:
            del self._open[subject]

    def _resolve(self, rule: RuleDefinition, subject: str, now: int) -> None:
        """Says once that a subject is well again, whatever there was about it."""
        about = self._about(rule.name, subject)
        first = min(about, key=lambda one: one.first_us)
        total = sum(one.total for one in about)
        fingerprint = next(name for name, one in self._of(rule.name).items() if one is first)
        message = Message(
            RESOLVED, first.event, fingerprint, first.messages + 1, first.sample, total, first.first_us
        )  # fmt: skip
        self._send(rule, message, now)
        self._journal.note(IS_RESOLVED, rule.name, subject)
        self._open[subject].discard(rule.name)

    def _about(self, rule: str, subject: str) -> list[Incident]:
        """What is open of a subject and can be resolved."""
        return [one for one in self._of(rule).values() if one.subject == subject and one.event in RESOLVABLE]

    def _keep(self, rule: str, fingerprint: str, incident: Incident) -> None:
        self._journal.note(INCIDENT, rule, fingerprint, incident._asdict())
        self._index(rule, fingerprint, incident)

    def _index(self, rule: str, fingerprint: str, incident: Incident) -> None:
        if incident.event in RESOLVABLE:
            self._open[incident.subject].add(rule)
        if incident.window_us:
            self._timers.add(Timer(incident.window_us, rule, WINDOW, int(fingerprint, 16)))

    # -- successes that do not come -----------------------------------------------------------------------------------------

    def _note_success(self, rule: RuleDefinition, now: int) -> None:
        self._recover(_absence_of(rule), now)
        if now - self._state.seen_us.get(rule.name, 0) >= rule.within_us // _SLACK:
            self._journal.note(SEEN, rule.name, now)
            self._wait_for_success(rule)

    def _wait_for_success(self, rule: RuleDefinition) -> None:
        if rule.within_us and not rule.paused:
            self._timers.add(Timer(self._missing_from_us(rule), rule.name, DEAD_MAN))

    def _missing_from_us(self, rule: RuleDefinition) -> int:
        """When a success is missing for certain: some may have come since the one that was recorded."""
        return self._state.seen_us.get(rule.name, 0) + rule.within_us + rule.within_us // _SLACK

    def _look_for_success(self, rule: RuleDefinition, now: int) -> None:
        if rule.paused or not rule.within_us or now < self._missing_from_us(rule):
            return
        subject = _absence_of(rule)
        if self._about(rule.name, subject):
            return
        why = (
            f"nothing that the rule is about has succeeded for {duration_text(timedelta(microseconds=rule.within_us))}"
        )
        sample = {"status": ABSENT, "why": why}
        self._tell(rule, Occurrence(ABSENT, subject, "", "", "", (), now, sample), now)

    # -- rules --------------------------------------------------------------------------------------------------------------

    def test(self, name: str, number: int, now: int) -> TaskKey:
        """Sends a message to the channel of a rule; the key of its task.

        Args:
            name: of the rule.
            number: that no other test at this moment has.
            now: microseconds since the epoch.

        Raises:
            NotFoundError: there is no such rule.
        """
        rule = self._named(name)
        if rule is None:
            raise NotFoundError(
                f"No notification rule {name!r} is stored.", hint="`scylla-spark notify list` shows them."
            )
        sample = {"status": TEST, "why": "somebody asked for a test of this rule"}
        return self._send(rule, Message(TEST, TEST, OTHERS, number, sample, 1, now), now)

    def anew(self, key: TaskKey, payload: Mapping[str, Any], now: int) -> None:
        """The task of a message was never sent, and would be refused as too late: it is sent for now.

        Args:
            key: of the task.
            payload: of it.
            now: microseconds since the epoch.
        """
        channel = self._channels.known.get(str(payload.get("channel")), Channel())
        command = Command(
            ENQUEUE, key._replace(time_us=now), 0, channel.handler, channel.queue, payload_text(payload), enqueued_us=now
        )  # fmt: skip
        self._journal.note("send", encode(command).decode())

    def _set_aside(self, name: str, why: str, now: int) -> None:
        stored = self._state.rules.get(name)
        if stored is not None:
            value: dict[str, Any] = {**json.loads(stored.text), "paused": True, "description": why[:1_000]}
            after = StoredRule(rule_text(value), self._state.revision + 1, "planner", now)
            self._journal.note(*rule_change(RuleChange(name, after.revision, after, "planner", now, "")))

    def _rule_changed(self, change: Change) -> None:
        read = read_rule_change(change)
        rule = self._named(read.name)
        if rule is not None and rule.within_us:
            self._journal.note(SEEN, rule.name, read.changed_us)
            self._wait_for_success(rule)

    def _all(self) -> list[RuleDefinition]:
        """All rules in order of their names; those that only a newer version can read are left out."""
        if self._revision != self._state.revision:
            self._revision, self._concerned = self._state.revision, {}
            found = (_readable(stored) for _, stored in sorted(self._state.rules.items()))
            self._rules = [rule for rule in found if rule is not None]
        return self._rules

    def _named(self, name: str) -> RuleDefinition | None:
        return next((rule for rule in self._all() if rule.name == name), None)

    def _told_by(self, occurrence: Occurrence) -> list[RuleDefinition]:
        rules = self._all()
        scope = (occurrence.event, occurrence.queue, occurrence.handler, occurrence.schedule, occurrence.tags)
        found = self._concerned.get(scope)
        if found is None:
            if len(self._concerned) >= _MOST_REMEMBERED:
                self._concerned.clear()
            found = [one for one in rules if scope[0] in one.when and not one.paused and one.concerns(*scope[1:])]
            self._concerned[scope] = found
        return found

    def _of(self, rule: str) -> dict[str, Incident]:
        return self._state.incidents.get(rule, {})

    def _send(self, rule: RuleDefinition, message: Message, now: int) -> TaskKey:
        command = task_of(message, rule, self._channels, now)
        self._journal.note("send", encode(command).decode())
        return command.key


def _absence_of(rule: RuleDefinition) -> str:
    return f"{ABSENT} {rule.name}"


def _of_one(occurrence: Occurrence) -> str:
    """In place of a fingerprint, where each occurrence has a message: what tells it from all others."""
    said = json.dumps([occurrence.event, occurrence.subject, occurrence.at_us, occurrence.sample], sort_keys=True)
    return sha256(said.encode("utf-8", "replace")).hexdigest()[:16]


def _is_ours(fact: Fact) -> bool:
    return fact.queue == NOTIFY_QUEUE or fact.handler == NOTIFY_HANDLER


def _readable(stored: StoredRule) -> RuleDefinition | None:
    try:
        return read_rule(json.loads(stored.text))
    except ValueError:
        return None
