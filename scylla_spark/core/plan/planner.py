"""The planner: a pure state machine, from commands, events, ended runs and time to groups of changes. It never meets the engine.

Whoever feeds it sends the groups, in order, and reads them back; what a group asks to be sent may be sent once it was read back under
a fence that holds. After any doubt a new planner begins from the log: this one is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from scylla_spark import failpoint
from scylla_spark.core.plan.backfilling import NEXT_RUN, Backfilling
from scylla_spark.core.plan.begun_runs import BegunRuns
from scylla_spark.core.plan.checks import is_check, owner_of
from scylla_spark.core.plan.commands.answers import Answers
from scylla_spark.core.plan.commands.calendars import Calendars
from scylla_spark.core.plan.commands.definitions import CHECK_KEY, LOAD_KEY, Definitions, Watchable
from scylla_spark.core.plan.commands.happenings import Happenings
from scylla_spark.core.plan.commands.obeying import AtOnce, Obeying, Stepwise
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.commands.runs_by_hand import RunsByHand
from scylla_spark.core.plan.commands.stored_kinds import QueueKind, RuleKind, StoredKind, TokenKind
from scylla_spark.core.plan.deadlines import Deadlines
from scylla_spark.core.plan.defects import Defect, Defects
from scylla_spark.core.plan.ended_runs import EndedRuns
from scylla_spark.core.plan.handler_runs import HandlerRuns
from scylla_spark.core.plan.launching import Launching
from scylla_spark.core.plan.load import Load
from scylla_spark.core.plan.missing_handlers import MissingHandlers
from scylla_spark.core.plan.notices.notice import Channels, is_notice
from scylla_spark.core.plan.notices.rule_matching import TIMERS, Noticing
from scylla_spark.core.plan.state.group_writer import COMMANDS, GroupWriter
from scylla_spark.core.plan.state.plan_log import RUN_ENDED, SOFT_GROUP_BYTES, Group, Partly, Position
from scylla_spark.core.plan.state.plan_state import ANSWER, PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry, Run
from scylla_spark.core.plan.state.snapshot_writer import SnapshotWriter
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal, StateInDoubt
from scylla_spark.core.plan.suspect_inputs import Doubts
from scylla_spark.core.plan.tables.watch import Place, TableWatch, Wanted
from scylla_spark.core.plan.triggers.due_times import Timing
from scylla_spark.core.plan.triggers.observations import Watching
from scylla_spark.core.plan.triggers.telling import Telling
from scylla_spark.core.records.fact import TOO_LATE, Fact, Fence
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.definitions.queue import Queue
from scylla_spark.table_place import TablePlaces
from scylla_spark.topic_names import WatchableTopics

__all__ = ["COMMANDS", "Planner"]


class Planner:
    """Takes inputs, has its parts decide, and gives groups; each step that concerns one schedule is taken under a guard.

    Args:
        state: fold of the log up to our own fence; it is ours from now on.
        fence: under which we write.
        ahead_us: how long before their time tasks may be launched.
        now: since when we plan, microseconds since the epoch.
        queues: name → start values of the settings.
        channels: of the settings, for notifications; None: there are none.
        group_bytes: a group ends when it has so many, at the next step.
        doubts: what planners before us of this process have met, and we set aside; None: nothing.
        places: which tables triggers may watch; None: any that is supported.
        topics: which topics triggers may watch; None: any.
    """

    def __init__(
        self,
        state: PlanState,
        fence: Fence,
        ahead_us: int,
        now: int,
        queues: Mapping[str, Queue] | None = None,
        channels: Channels | None = None,
        group_bytes: int = SOFT_GROUP_BYTES,
        doubts: Doubts | None = None,
        places: TablePlaces | None = None,
        topics: WatchableTopics | None = None,
    ) -> None:
        self.state = state
        self.fence = fence
        self._journal = journal = Journal(state, group_bytes)
        self._timers = timers = Timers()
        self._groups = GroupWriter(journal, fence, now)
        self._snapshots = SnapshotWriter(journal, self._groups)
        self._runs = HandlerRuns(journal)
        self._runs.load = Load(now)
        self._launching = Launching(journal, timers, self._runs)
        self._backfilling = Backfilling(journal, timers, self._launching)
        self._watching = Watching(journal, timers, self._launching)
        self._timing = Timing(journal, timers, self._launching, self._watching, ahead_us, now)
        watchable = Watchable(places or TablePlaces(), topics or WatchableTopics())
        self._definitions = Definitions(journal, timers, self._launching, self._watching, self._timing, watchable)
        self._defects = Defects(journal, self._definitions.stop)
        self._missing = MissingHandlers(journal, self._definitions, queues or {})
        self._answers = Answers(journal, timers)
        self._telling = Telling(state, self._groups, self._watching, self._defects, self._definitions.listeners)
        self._deadlines = Deadlines(journal, timers, self._telling)
        self._noticing = Noticing(journal, timers, channels or Channels(), self._defects.note)
        self._ended = EndedRuns(journal, self._launching, self._telling, self._answers, self._defects, self._after_run)
        self._begun = BegunRuns(journal, self._telling)
        self.tables = TableWatch(journal, self._watching)
        self._obeying = self._obeying_with(
            {
                "queue": QueueKind(journal, queues or {}),
                "token": TokenKind(journal),
                "rule": RuleKind(journal, (channels or Channels()).known),
            }
        )
        self._doubts = doubts or Doubts()
        self._doubts.begin(state)
        for name, met in self._doubts.schedules.items():
            self._defects.set_aside_in_doubt(name, met, now)
        for entry in state.entries.values():
            self._defects.guarded(entry.name, partial(self._load, entry), now)

    def _obeying_with(self, kinds: Mapping[str, StoredKind[Any]]) -> Obeying:
        definitions, groups, answers = self._definitions, self._groups, self._answers
        by_hand = RunsByHand(self.state, groups, self._launching, self._backfilling, answers)
        happenings = Happenings(self._telling, answers)
        calendars = Calendars(self._journal, groups, self._timing, self._defects, answers, definitions.listeners)
        stepwise: dict[str, Stepwise] = {
            "put": definitions.put,
            "delete": definitions.delete,
            "pause": definitions.pause,
            "resume": definitions.resume,
            **{f"put_{name}": kind.put for name, kind in kinds.items()},
            **{f"delete_{name}": kind.delete for name, kind in kinds.items()},
        }
        at_once: dict[str, AtOnce] = {
            "run": by_hand.run,
            "backfill": by_hand.backfill,
            "event": happenings.event,
            "partitions": happenings.partitions,
            "calendar": calendars.put,
            "test_rule": self._test_rule,
            "pause_backfill": by_hand.pause_backfill,
            "resume_backfill": by_hand.resume_backfill,
            "cancel_backfill": by_hand.cancel_backfill,
        }
        return Obeying(self._journal, groups, answers, stepwise, at_once, self._defects.note)

    def _load(self, entry: Entry) -> None:
        self._runs.take_over(entry)  # first: limits of others count them, whatever is wrong with this one
        self._definitions.load(entry)
        failpoint.reach("plan.load", entry.name)
        self._watching.load(entry)
        if entry.jobs or entry.runs:
            self._launching.load(entry)
        self._backfilling.load(entry)
        if entry.next_us and not entry.is_deaf:
            self._timers.add(Timer(entry.next_us, entry.name, "time"))
        if entry.until_us:
            self._timers.add(Timer(entry.until_us, entry.name, "until"))
        self._deadlines.load(entry)

    # -- inputs ---------------------------------------------------------------------------------------------------------

    def command(self, offset: int, value: bytes | None, append_us: int, now: int) -> None:
        """Takes one record of `schedules`.

        Args:
            offset: of the record; what lies below the planner's position is passed over.
            value: its bytes, whatever they are.
            append_us: the broker's time of it.
            now: microseconds since the epoch.
        """
        if offset < self.state.commands:
            return
        place = Partly(COMMANDS, offset, 0, "")
        met = self._doubts.inputs.get(place)
        try:
            if met is None:
                self._obeying.obey(offset, value, append_us, now)
            else:
                self._obeying.refuse_in_doubt(offset, value, append_us, met)
        except StateInDoubt as doubt:
            doubt.input = place
            raise
        self._groups.command_is_read(offset)
        self._groups.rest(now)

    def outcomes(self, partition: int, offset: int, facts: Sequence[Fact], after: Position, now: int) -> None:
        """Takes one record of `outcomes` that counts.

        Args:
            partition: of the topic.
            offset: of the record.
            facts: all in it, whether they concern us or not; none: it was a fence, or does not count.
            after: position behind it.
            now: microseconds since the epoch.
        """
        known = self.state.outcomes.get(partition)
        if known is not None and offset < known[0]:
            return
        resumed = self._groups.resume
        for item, fact in enumerate(facts):
            at = Partly(partition, offset, item, "")
            if resumed is not None and resumed[:2] == at[:2] and item < resumed.item:
                continue
            try:
                self._take_fact(at, fact, resumed, now)
            except StateInDoubt as doubt:
                doubt.input = at
                raise
        self._groups.outcome_is_read(partition, offset, after)

    def _take_fact(self, at: Partly, fact: Fact, resumed: Partly | None, now: int) -> None:
        met = self._doubts.inputs.get(at) if self._doubts.inputs else None
        if met is not None:
            if fact.terminal and met.times == 1:
                self._only_end(fact, now)
        elif fact.terminal:
            self._take_end(at, fact, resumed, now)
        elif fact.outcome == TOO_LATE:
            self._answers.ended(fact.key)
        elif fact.started_us:
            self._take_start(at, fact, resumed, now)

    def _only_end(self, fact: Fact, now: int) -> None:
        name, _ = self.state.runs.get(fact.key, ("", 0))
        self._ended.only_end(fact, now)
        if name in self.state.entries:  # later, since a launch may have been what brought the state in doubt
            self._backfilling.go_on(self.state.entries[name], now)

    def _take_end(self, at: Partly, fact: Fact, resumed: Partly | None, now: int) -> None:
        if resumed is not None and resumed[:3] == at[:3] and resumed.name:
            self._ended.go_on(at, fact, now)
        else:
            self._defects.guarded("", partial(self._notice, fact, now), now)
        if is_check(fact.key):
            self._defects.guarded(owner_of(fact.key)[0], partial(self._launching.checks.answered, fact, now), now)
        self._ended.ended(at, fact, now)
        self._begun.took(at, fact, resumed, now)
        behind = at._replace(item=at.item + 1)
        self._groups.part(behind, now)
        self._telling.tell_later(behind, now)

    def _take_start(self, at: Partly, fact: Fact, resumed: Partly | None, now: int) -> None:
        behind, found = at._replace(item=at.item + 1), self.state.runs.get(fact.key)
        if found is not None:
            entry = self.state.entries[found[0]]
            run = entry.runs[found[1]]
            self._defects.guarded(entry.name, partial(self._deadlines.started, entry, run, fact.started_us, now), now)
        self._begun.took(at, fact, resumed, now)
        if found is not None:
            self._telling.tell_later(behind, now)

    def watched(self) -> Mapping[Place, Wanted]:
        """Returns which tables and topics are to be looked at, by leaf; the same mapping as long as that is the same."""
        listeners = self._definitions.listeners
        return self.tables.wanted(
            lambda: {name for key, names in listeners.items() if key.startswith(("table:", "topic:")) for name in names}
        )

    def tick(self, now: int) -> None:
        """Decides all that is due."""
        while (timer := self._timers.pop_due(now)) is not None:
            if timer in self._doubts.inputs:
                continue
            try:
                self._goes_off(timer, now)
            except StateInDoubt as doubt:
                doubt.input = timer
                raise
            self.rest(now)

    def _goes_off(self, timer: Timer, now: int) -> None:
        name = "" if timer.kind in TIMERS else timer.name  # those are of rules
        self._defects.guarded(name, partial(self._timer, timer, now), now)
        self._telling.tell_later(None, now)

    def looked(self, name: str, tell: Callable[[TableWatch], None], now: int) -> None:
        """Takes what was found at a table or topic that a schedule watches.

        Args:
            name: of the schedule.
            tell: tells it.
            now: microseconds since the epoch.
        """
        self._defects.guarded(name, lambda: tell(self.tables), now)
        self.rest(now)

    def handlers_in_question(self, now: int) -> set[str]:
        """Handlers that runs of schedules may wait for; see `MissingHandlers.in_question`."""
        return self._missing.in_question(now)

    def missing_handlers(self, names: Collection[str], now: int) -> None:
        """No dispatcher has these handlers; see `MissingHandlers.missing`.

        Args:
            names: of them.
            now: microseconds since the epoch.
        """
        for entry in [entry for entry in self.state.entries.values() if entry.handler in names]:
            self._defects.guarded(entry.name, partial(self._missing.missing, entry, now), now)
            self.rest(now)

    def take_load(self, load: Load, now: int) -> None:
        """Takes new figures of what queues have to do.

        Args:
            load: the figures.
            now: microseconds since the epoch.
        """
        for name in self._launching.calm(load, now):
            self._defects.guarded(name, partial(self._launching.look_again, name, now), now)
            self.rest(now)

    def rest(self, now: int) -> None:
        """Writes what is decided, if it is much; to be called between two inputs."""
        self._groups.rest(now)

    def anew(self, key: TaskKey, payload: Mapping[str, Any], now: int, missing: Sequence[str] = ()) -> None:
        """The task of a launch was never sent, and would be refused as too late: it is launched again for the same planned time.

        Args:
            key: of the task.
            payload: of it.
            now: microseconds since the epoch.
            missing: what it was launched without.
        """
        found = self.state.runs.get(key)
        if found is not None:
            entry = self.state.entries[found[0]]
            run = entry.runs[found[1]]
            self._defects.guarded(entry.name, lambda: self._launching.anew(entry, run, payload, missing, now), now)
            self._defects.guarded(entry.name, lambda: self._backfilling.room(entry, now), now)
        elif key in self.state.handlers:  # nobody wants it any more
            self._journal.conclude(RUN_ENDED, key)
        elif is_notice(key):
            self._noticing.anew(key, payload, now)
        elif is_check(key):
            self._defects.guarded(owner_of(key)[0], partial(self._launching.checks.was_never_sent, key, now), now)
        self.rest(now)

    def sent(self, number: int) -> None:
        """All that groups up to a number asked to be sent was acknowledged."""
        self._groups.sent(number)

    # -- outputs --------------------------------------------------------------------------------------------------------

    def take(self, now: int) -> list[Group]:
        """The groups to be written next, in order."""
        for name, error in self.tables.take_failed():
            self._defects.set_aside(name, error, now)
        return self._groups.take(now)

    def take_defects(self) -> list[Defect]:
        """Defects that were met since the last time, for the shell to tell of."""
        return self._defects.take()

    @property
    def next_wake_us(self) -> int | None:
        """Returns when `tick` has something to do; None: never, as things are."""
        return self._timers.next_us

    @property
    def load(self) -> Load | None:
        """Returns the newest figures of the load; None: no schedule waits for less of it, so nothing need ask for them."""
        return self._runs.load if self._definitions.listeners.get(LOAD_KEY) else None

    @property
    def wants_facts(self) -> bool:
        """Returns True if the ends of tasks of others than schedules are of use, too."""
        return (
            bool(self.state.handlers or self.state.begun)
            or not self._noticing.idle
            or bool(self._definitions.listeners.get(CHECK_KEY))
            or self._definitions.listens_to_handlers
        )

    def begin_snapshot(self, now: int) -> list[str]:
        """Writes what is not of one schedule or queue; the names of all these, for `snapshot`."""
        return self._snapshots.begin(now)

    def snapshot(self, names: list[str], now: int) -> None:
        """Writes some schedules and queues of a snapshot; takes their names off the list."""
        self._snapshots.go_on(names, now)

    def end_snapshot(self, begins: int) -> None:
        """All that a snapshot holds was read back; it begins at an offset."""
        self._snapshots.end(begins)

    # -- notifications --------------------------------------------------------------------------------------------------

    def _notice(self, fact: Fact, now: int) -> None:
        """Tells rules of the end of a task, before the run that it was of is forgotten."""
        if self._noticing.idle:
            return
        found = self.state.runs.get(fact.key)
        entry = self.state.entries[found[0]] if found is not None else None
        run = entry.runs[found[1]] if entry is not None and found is not None else None
        self._noticing.ended(fact, entry, run, now)

    def _test_rule(self, offset: int, command: PlanCommand, now: int) -> None:
        name = command.fields["name"]
        self._answers.done(command.id, {name: str(self._noticing.test(name, offset, now))})

    # -- ends and timers ------------------------------------------------------------------------------------------------

    def _after_run(self, entry: Entry, run: Run, fact: Fact, now: int) -> None:
        """What the policies of a schedule make of the end of its run."""
        policies = entry.schedule.policies
        self._deadlines.ended(entry, run, fact, now)
        if policies.pause_after_failures and entry.failures >= policies.pause_after_failures and not entry.paused:
            self._definitions.stop(
                entry, f"paused after {entry.failures} failed runs in a row", "planner", now, keeps=True
            )
        if fact.outcome == "succeeded":
            self._deadlines.expect(entry)
        if run.cancelled and fact.started_us and not run.by_hand:
            self._timing.has_run(entry, run)
        self._timing.room(entry, now)
        self._backfilling.room(entry, now)

    def _timer(self, timer: Timer, now: int) -> None:
        if timer.kind == ANSWER:
            self._answers.give(timer.number)
            return
        if timer.kind.startswith("tag:"):
            self._ended.room((timer.kind,), now)
            return
        if timer.kind in TIMERS:
            self._noticing.timer(timer, now)
            return
        if timer.kind == "absent":
            self._watching.went_off(timer.name, timer.number, now)
        entry = self.state.entries.get(timer.name)
        if entry is None:
            return
        failpoint.reach("plan.timer")
        if timer.kind == "time":
            if entry.next_us and timer.at_us >= entry.next_us:
                self._timing.decide(entry, now)
        elif timer.kind == "check":
            self._launching.check(entry, timer.number, now)
        elif timer.kind == NEXT_RUN:
            self._backfilling.launch(entry, timer.number, now)
        elif timer.kind in ("again", "timeout"):
            self._launching.again(entry, timer.number, now)
            self._watching.again(entry, timer.number, now)
        elif timer.kind == "absent":
            self._watching.absent(entry, timer.number, now)
        elif timer.kind == "until":
            if entry.paused and 0 < entry.until_us <= now:
                self._definitions.go_on(entry, "planner", now)
        else:
            self._deadlines.timer(entry, timer, now)
