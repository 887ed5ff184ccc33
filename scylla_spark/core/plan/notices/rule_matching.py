"""Who is told of what: which rules an occurrence concerns, and what is told because nothing occurs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from scylla_spark.core.plan.notices.gathering import MOST_TOLD, OTHERS, WINDOW, Gathering
from scylla_spark.core.plan.notices.notice import (
    TEST,
    Channels,
    Message,
    Occurrence,
    concern_of,
    is_notice,
    of_end,
    of_entry,
    of_schedule,
)
from scylla_spark.core.plan.notices.rule_index import RuleIndex
from scylla_spark.core.plan.notices.state import RULE, SEEN
from scylla_spark.core.plan.state.plan_log import Change
from scylla_spark.core.plan.state.schedule_entry import Entry, Run
from scylla_spark.core.plan.state.stored_definition import read_definition_change
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.taken_back import is_our_cancel
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.tags import channels_in
from scylla_spark.defaults import NOTIFY_HANDLER, NOTIFY_QUEUE
from scylla_spark.definitions.notification_rule import (
    ABSENT,
    ALIVE,
    CANCELLED,
    DUPLICATE,
    EXPIRED,
    FAILED,
    SUCCEEDED,
    NotificationRule,
)
from scylla_spark.duration import duration_text
from scylla_spark.errors import NotFoundError

DEAD_MAN: Final = "notice dead man"
PULSE: Final = "notice pulse"
TIMERS: Final = frozenset({WINDOW, DEAD_MAN, PULSE})
_VERDICTS: Final = frozenset({"missed", "skipped", "failed", "late", "overdue", "silent"})
_ENDED: Final = {
    "failed": FAILED,
    "aborted": FAILED,
    "succeeded": SUCCEEDED,
    "expired": EXPIRED,
    "cancelled": CANCELLED,
    "duplicate": DUPLICATE,
}
OF_TASK: Final = "task"  # stands for the rule in messages that a task asked for
_SLACK: Final = 32  # successes are recorded once in so many parts of the time that a rule waits for one


class Noticing:
    """Decides what is told.

    Args:
        journal: takes what is decided.
        timers: when to look again.
        channels: of the settings.
        note_defect: takes the stack of a defect that a rule met.
    """

    def __init__(
        self, journal: Journal, timers: Timers, channels: Channels, note_defect: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._schedules = journal.state.entries
        self._state = journal.state.notices
        self._timers = timers
        self._rules = RuleIndex(self._state)
        self._gathering = Gathering(journal, timers, self._rules, channels, note_defect)
        self.anew = self._gathering.anew
        self._open_channels = frozenset(name for name, channel in channels.known.items() if channel.tasks)
        journal.watchers.append(self._watch)
        for rule in self._rules.all().values():
            self._arm(rule)

    @property
    def idle(self) -> bool:
        """Returns True if there are no rules, and no task may name a channel."""
        return not (self._state.rules or self._open_channels)

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
        if run is not None and is_our_cancel(run, fact):  # we took it back ourselves, for a pause or another run
            return
        concern = concern_of(fact, entry)
        if event == SUCCEEDED:
            self._gathering.recover(concern.subject, now)
            for rule in self._rules.told_by(ABSENT, concern):
                with self._gathering.guarded(rule, now):
                    self._note_success(rule, now)
        if rules := self._rules.told_by(event, concern):
            self._tell(rules, of_end(event, fact, concern, run), now)
        if named := self._open_channels.intersection(channels_in(fact.tags or ())):
            asked = [_rule_of_task(event, one) for one in sorted(named)]
            self._tell(asked, of_end(event, fact, concern, run), now)

    def _watch(self, change: Change) -> None:
        if change[0] == RULE:
            self._rule_changed(change)
        elif not self._state.rules:
            return
        elif change[0] == "fire" and change[2]["verdict"] in _VERDICTS:
            fire = change[2]
            self._about_schedule(fire["verdict"], change[1], fire["why"], fire["at_us"], fire["planned_us"])
        elif change[0] == "set" and change[2].get("paused"):
            fields = change[2]
            why = f"{fields['note']} ({fields['author']})" if fields["author"] else fields["note"]
            self._about_schedule("paused", change[1], why, fields["changed_us"])

    def _about_schedule(self, event: str, name: str, why: str, now: int, planned_us: int = 0) -> None:
        entry = self._schedules[name]
        if rules := self._rules.told_by(event, of_entry(entry)):
            self._tell(rules, of_schedule(event, entry, why, now, planned_us), now)

    def _tell(self, rules: Sequence[NotificationRule], occurrence: Occurrence, now: int) -> None:
        for rule in rules[:MOST_TOLD]:
            with self._gathering.guarded(rule, now):
                self._gathering.tell(rule, occurrence, now)

    # -- what is due --------------------------------------------------------------------------------------------------------

    def timer(self, timer: Timer, now: int) -> None:
        """A moment of ours has come, one whose kind is in `TIMERS`.

        Args:
            timer: which.
            now: microseconds since the epoch.
        """
        rule = self._rules.all().get(timer.name)
        if rule is None:
            return
        with self._gathering.guarded(rule, now):
            if timer.kind == WINDOW:
                self._gathering.window_ends(rule, timer.number, now)
            elif timer.kind == DEAD_MAN:
                self._look_for_success(rule, now)
            else:
                self._pulse(rule, now)

    # -- successes that do not come -----------------------------------------------------------------------------------------

    def _note_success(self, rule: NotificationRule, now: int) -> None:
        self._gathering.recover(_absence_of(rule), now)
        if now - self._state.seen_us.get(rule.name, 0) >= rule.within_us // _SLACK:
            self._journal.note(SEEN, rule.name, now)
            self._arm(rule)

    def _arm(self, rule: NotificationRule) -> None:
        """Begins to wait for a success that is missing, or for the next sign of life."""
        if rule.within_us and not rule.paused:
            self._timers.add(Timer(self._missing_from_us(rule), rule.name, DEAD_MAN))
        if rule.every_us and not rule.paused:
            self._timers.add(Timer(self._state.seen_us.get(rule.name, 0) + rule.every_us, rule.name, PULSE))

    def _missing_from_us(self, rule: NotificationRule) -> int:
        """Returns when a success is missing for certain: some may have come since the one that was recorded."""
        return self._state.seen_us.get(rule.name, 0) + rule.within_us + rule.within_us // _SLACK

    def _look_for_success(self, rule: NotificationRule, now: int) -> None:
        if rule.paused or not rule.within_us or now < self._missing_from_us(rule):
            return
        subject = _absence_of(rule)
        if self._gathering.about(rule.name, subject):
            return
        why = (
            f"nothing that the rule is about has succeeded for {duration_text(timedelta(microseconds=rule.within_us))}"
        )
        sample = {"status": ABSENT, "why": why}
        self._gathering.tell(rule, Occurrence(ABSENT, subject, now, sample), now)

    def _pulse(self, rule: NotificationRule, now: int) -> None:
        """Sends a sign of life, if the last one is old enough; those that were missed are not sent afterwards."""
        if rule.paused or not rule.every_us or now < self._state.seen_us.get(rule.name, 0) + rule.every_us:
            return
        self._gathering.send(rule, Message(ALIVE, ALIVE, OTHERS, 1, {"status": ALIVE}, 1, now), now)
        self._journal.note(SEEN, rule.name, now)
        self._arm(rule)

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
        rule = self._rules.all().get(name)
        if rule is None:
            raise NotFoundError(
                f"No notification rule {name!r} is stored.", hint="`scylla-spark notify list` shows them."
            )
        sample = {"status": TEST, "why": "somebody asked for a test of this rule"}
        return self._gathering.send(rule, Message(TEST, TEST, OTHERS, number, sample, 1, now), now)

    def _rule_changed(self, change: Change) -> None:
        read = read_definition_change(change)
        self._gathering.forget(read.name)
        rule = self._rules.all().get(read.name)
        if rule is not None and rule.within_us:
            self._journal.note(SEEN, rule.name, read.changed_us)
        if rule is not None:
            self._arm(rule)


def _rule_of_task(event: str, channel: str) -> NotificationRule:
    return NotificationRule.of({"name": OF_TASK, "when": [event], "channel": channel, "digest": "0s"})


def _absence_of(rule: NotificationRule) -> str:
    return f"{ABSENT} {rule.name}"


def _is_ours(fact: Fact) -> bool:
    return fact.queue == NOTIFY_QUEUE or fact.handler == NOTIFY_HANDLER
