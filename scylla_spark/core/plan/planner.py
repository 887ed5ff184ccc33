"""The planner: a pure state machine, from commands, events, ended runs and time to groups of changes. It never meets the engine.

Whoever feeds it sends the groups, in order, and reads them back; what a group asks to be sent may be sent once it was read back under
a fence that holds. After any doubt a new planner begins from the log: this one is thrown away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from scylla_spark import failpoint
from scylla_spark.clock import iso, to_us
from scylla_spark.core.bounded_text import cut
from scylla_spark.core.key import TaskKey
from scylla_spark.core.plan.backfill import chosen, planned_between, tag_of
from scylla_spark.core.plan.commands.definitions import Definitions, Steps
from scylla_spark.core.plan.commands.plan_command import PlanCommand, Refused, read_command
from scylla_spark.core.plan.commands.queues import QueueCommands
from scylla_spark.core.plan.commands.rules import RuleCommands
from scylla_spark.core.plan.commands.tokens import TokenCommands
from scylla_spark.core.plan.defects import Defect, Defects
from scylla_spark.core.plan.handler_runs import HandlerRuns
from scylla_spark.core.plan.launching import Backfilled, Launching
from scylla_spark.core.plan.notices.notice import Channels, is_notice
from scylla_spark.core.plan.notices.rule_matching import TIMERS, Noticing
from scylla_spark.core.plan.state import snapshot
from scylla_spark.core.plan.state.audit_entry import AUDIT
from scylla_spark.core.plan.state.entry import MOST_RUNS, Entry, Run
from scylla_spark.core.plan.state.journal import GroupTooLargeError, Journal
from scylla_spark.core.plan.state.plan_log import (
    MAX_GROUP_BYTES,
    RUN_ENDED,
    SOFT_GROUP_BYTES,
    Group,
    Partly,
    Position,
    change_bytes,
)
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.tables.watch import Place, TableWatch, Wanted
from scylla_spark.core.plan.triggers.observations import Occurrence, Watching
from scylla_spark.core.plan.triggers.timing import Timing
from scylla_spark.core.records import rejection
from scylla_spark.core.records.fact import Fact, Fence
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError, SchedulerError

COMMANDS: Final = -1  # stands for the partition of `schedules` where inputs are named
OK: Final = "ok"
PENDING: Final = "pending"
_LATE: Final = "late"
_OVERDUE: Final = "overdue"
_SILENT: Final = "silent"
_TELL_EVERY_US: Final = 5_000_000  # how often positions alone are worth a group
_TAKEN_BACK_US: Final = 5_000_000  # how long an answer waits for the ends of what was taken back
_MOST_WORDS_BYTES: Final = 8_192
_MOST_ANSWER_BYTES: Final = 256 * 1024
_SECOND: Final = "~"  # is greater than all that names begin with
_SNAPSHOT_PART_BYTES: Final = 64 * 1024  # small, so that decisions need not wait for it
_MOST_VALUE_CHARS: Final = 64 * 1024  # of a result that is read
_MOST_LEVELS: Final = 30  # … and what it may go through
_KEPT_VALUE_CHARS: Final = 16 * 1024
_ENDS: Final = {
    "succeeded": "succeeded",
    "cancelled": "cancelled",
    "expired": "cancelled",  # it has ended, and nothing was run
    "duplicate": "cancelled",  # likewise
    "failed": "failed",
    "aborted": "failed",
    "timed_out": "failed",
}


class Planner:
    """Decides what is launched.

    Args:
        state: fold of the log up to our own fence; it is ours from now on.
        fence: under which we write.
        ahead_us: how long before their time tasks may be launched.
        now: since when we plan, microseconds since the epoch.
        queues: name → start values of the settings, JSON values of definitions.
        channels: of the settings, for notifications; None: there are none.
        group_bytes: a group ends when it has so many, at the next step.
    """

    def __init__(
        self,
        state: PlanState,
        fence: Fence,
        ahead_us: int,
        now: int,
        queues: Mapping[str, Mapping[str, Any]] | None = None,
        channels: Channels | None = None,
        group_bytes: int = SOFT_GROUP_BYTES,
    ) -> None:
        self.state = state
        self.fence = fence
        self._journal = Journal(state, group_bytes)
        self._timers = Timers()
        self._runs = HandlerRuns(self._journal)
        self._launching = Launching(self._journal, self._timers, self._runs)
        self._watching = Watching(self._journal, self._timers, self._launching)
        self._timing = Timing(self._journal, self._timers, self._launching, self._watching, ahead_us, now)
        self._definitions = Definitions(self._journal, self._timers, self._launching, self._watching, self._timing)
        self._defects = Defects(self._journal, self._definitions.stop)
        self._queues = QueueCommands(self._journal, queues or {})
        self._tokens = TokenCommands(self._journal)
        channels = channels or Channels()
        self._rules = RuleCommands(self._journal, channels.known)
        self._noticing = Noticing(self._journal, self._timers, channels)
        self.tables = TableWatch(self._journal, self._watching)
        self._groups: list[Group] = []
        self._moved: dict[int, Position] = {}
        self._commands_moved = False
        self._told_us = now
        self._resume = state.partly  # until that input has come again
        self._at: Partly | None = None  # how far the input is that timers and the like go off in
        self._untold: list[Occurrence] = []
        self._answers: dict[int, tuple[set[TaskKey], tuple[Any, ...]]] = {}
        self._answered = 0
        self._sent = state.sent
        state.number += 1  # of the group in the making
        for entry in state.entries.values():
            self._defects.guarded(entry.name, partial(self._load, entry), now)

    def _load(self, entry: Entry) -> None:
        self._definitions.load(entry)
        failpoint.reach("plan.load", entry.name)
        self._watching.load(entry)
        self._runs.load(entry)
        if entry.jobs or entry.runs:
            self._launching.load(entry)
        if entry.next_us and not entry.paused:
            self._timers.add(Timer(entry.next_us, entry.name, "time"))
        if entry.until_us:
            self._timers.add(Timer(entry.until_us, entry.name, "until"))
        if "deadline" in entry.keys and not entry.paused:
            self._expect(entry)

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
        found = read_command(value)
        if isinstance(found, Refused):
            self._refuse(offset, append_us, value, found)
        else:
            self._obey(offset, append_us, value, found, now)
        self.state.commands, self._commands_moved = offset + 1, True
        self._is_through(COMMANDS, offset)
        if self._journal.full:
            self._seal(now)

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
        resumed = self._resume
        for item, fact in enumerate(facts):
            at = Partly(partition, offset, item, "")
            if fact.terminal and resumed is not None and resumed[:2] == at[:2] and item < resumed.item:
                continue
            if fact.terminal:
                if resumed is None or resumed[:3] != at[:3] or not resumed.name:
                    self._defects.guarded("", partial(self._notice, fact, now), now)
                if resumed is not None and resumed[:3] == at[:3] and resumed.name and self._was_run(fact.key):
                    again = partial(self._tell_end, at, *_named(fact.key), fact, now)
                    self._defects.guarded(self._schedule_of(fact.key), again, now)
                self._defects.guarded(self._schedule_of(fact.key), partial(self._ended, at, fact, now), now)
                self._part(at._replace(item=item + 1), now)
                self._tell_untold(at._replace(item=item + 1), now)
            elif fact.outcome == "started" and fact.key in self.state.runs:
                self._runs.started[fact.key] = fact.started_us
        self.state.outcomes[partition] = self._moved[partition] = after
        self._is_through(partition, offset)

    def watched(self) -> Mapping[Place, Wanted]:
        """Which tables are to be looked at, by leaf."""
        listeners = self._definitions.listeners
        return self.tables.wanted(
            lambda: {name for key, names in listeners.items() if key.startswith("table:") for name in names}
        )

    def tick(self, now: int) -> None:
        """Decides all that is due."""
        while (timer := self._timers.pop_due(now)) is not None:
            name = "" if timer.kind in TIMERS else timer.name  # those are of rules
            self._defects.guarded(name, partial(self._timer, timer, now), now)
            self._tell_untold(None, now)
            self.rest(now)

    def looked(self, name: str, tell: Callable[[TableWatch], None], now: int) -> None:
        """Takes what was found at a table that a schedule watches.

        Args:
            name: of the schedule.
            tell: tells it.
            now: microseconds since the epoch.
        """
        self._defects.guarded(name, lambda: tell(self.tables), now)
        self.rest(now)

    def rest(self, now: int) -> None:
        """Writes what is decided, if it is much; to be called between two inputs."""
        if self._journal.full:
            self._seal(now)

    def anew(self, key: TaskKey, payload: Mapping[str, Any], now: int) -> None:
        """The task of a launch was never sent, and would be refused as too late: it is launched again for the same planned time.

        Args:
            key: of the task.
            payload: of it.
            now: microseconds since the epoch.
        """
        found = self.state.runs.get(key)
        if found is not None:
            entry = self.state.entries[found[0]]
            run = entry.runs[found[1]]
            self._defects.guarded(entry.name, lambda: self._launching.anew(entry, run, payload, now), now)
        elif key in self.state.handlers:  # nobody wants it any more
            self._journal.conclude(RUN_ENDED, key)
        elif is_notice(key):
            self._noticing.anew(key, payload, now)
        self.rest(now)

    def sent(self, number: int) -> None:
        """All that groups up to a number asked to be sent was acknowledged."""
        self._sent = max(self._sent, number)
        self.state.was_sent(self._sent)

    # -- outputs --------------------------------------------------------------------------------------------------------

    def take_defects(self) -> list[Defect]:
        """Defects that were met since the last time, for the shell to tell of."""
        return self._defects.take()

    def take(self, now: int) -> list[Group]:
        """The groups to be written next, in order."""
        for name, error in self.tables.take_failed():
            self._defects.set_aside(name, error, now)
        idle = self._moved or self._commands_moved or self._sent > self.state.sent
        if self._journal.changes or (idle and now >= self._told_us + _TELL_EVERY_US):
            self._seal(now)
        groups, self._groups = self._groups, []
        return groups

    @property
    def next_wake_us(self) -> int | None:
        """When `tick` has something to do; None: never, as things are."""
        return self._timers.next_us

    def _part(self, at: Partly, now: int) -> None:
        """Writes what is decided, in the midst of an input, if it is much; not while another input of before is to go on first."""
        if not self._journal.full:
            return
        place = at if at.source >= COMMANDS else self._at
        if place is None or self._resume is None or self._resume[:2] == place[:2]:
            self._seal(now, place)

    def _is_through(self, source: int, offset: int) -> None:
        resume = self._resume
        if resume is not None and resume.source == source and resume.offset <= offset:
            self._resume = None

    def _seal(self, now: int, partly: Partly | None = None, *, begins: bool = False) -> None:
        state, partly = self.state, partly if partly is not None else self._resume
        group = Group(
            self.fence, state.number, now, state.commands if self._commands_moved else None, self._moved, partly, self._sent,
            state.snapshot, self._journal.take(), begins,
        )  # fmt: skip
        self._groups.append(group)
        state.number += 1
        state.partly = partly
        self._moved, self._commands_moved, self._told_us = {}, False, now

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def begin_snapshot(self, now: int) -> list[str]:
        """Writes what is not of one schedule or queue; the names of all these, for `snapshot`."""
        if self._journal.changes:
            self._seal(now)
        self._moved, self._commands_moved = dict(self.state.outcomes), True
        self._seal(now, begins=True)
        for change in snapshot.common_changes(self.state):
            self._keep(change, now)
        self._seal(now)
        return snapshot.names_of(self.state)

    def snapshot(self, names: list[str], now: int) -> None:
        """Writes some schedules and queues of a snapshot; takes their names off the list."""
        if self._journal.changes:
            self._seal(now)
        before = self.state.number
        while names and self._journal.size < _SNAPSHOT_PART_BYTES and self.state.number == before:
            for change in snapshot.changes_of(self.state, names.pop()):
                self._keep(change, now)
        self._seal(now)

    def _keep(self, change: Sequence[Any], now: int) -> None:
        if self._journal.changes and self._journal.size + change_bytes(change) > MAX_GROUP_BYTES:
            self._seal(now)
        self._journal.keep(*change)
        self.rest(now)

    def end_snapshot(self, begins: int) -> None:
        """All that a snapshot holds was read back; it begins at an offset."""
        self.state.snapshot = begins
        self._commands_moved = True

    # -- commands -------------------------------------------------------------------------------------------------------

    def _refuse(
        self, offset: int, append_us: int, value: bytes | None, found: Refused, hint: str = "Nothing was changed."
    ) -> None:
        text = (value or b"")[:_KEPT_VALUE_CHARS].decode("utf-8", "replace")
        detail = cut(found.detail, _MOST_WORDS_BYTES)
        self._journal.conclude("refuse", offset, append_us, found.reason, detail, text, len(value or b""))
        if found.id is not None:
            self._answer(found.id, "rejected", detail, hint)

    def _obey(self, offset: int, append_us: int, value: bytes | None, command: PlanCommand, now: int) -> None:
        try:
            self._carry_out(offset, command, now)
        except SchedulerError as error:
            code = _code(error)
            if command.id is not None:
                message, hint = cut(error.message, _MOST_WORDS_BYTES), cut(error.hint or "", _MOST_WORDS_BYTES)
                self._answer(command.id, code, message, hint)
            if code == "argument":
                self._refuse(offset, append_us, value, Refused("wrong_value", error.message))
        except MemoryError:
            raise
        except GroupTooLargeError as error:
            found = Refused("too_large", f"It cannot be done: {error}.", command.id)
            self._refuse(
                offset, append_us, value, found, "What was done of it before that stands; ask for less at once."
            )
        except Exception as error:  # a defect of ours that this command meets must not stop all others
            self._refuse(offset, append_us, value, Refused(*rejection.of_defect(error), command.id))

    def _carry_out(self, offset: int, command: PlanCommand, now: int) -> None:
        failpoint.reach("plan.command")
        fields, definitions = command.fields, self._definitions
        changes = {
            "put": definitions.put, "delete": definitions.delete, "pause": definitions.pause, "resume": definitions.resume,
            "put_queue": self._queues.put, "delete_queue": self._queues.delete,
            "put_token": self._tokens.put, "delete_token": self._tokens.delete,
            "put_rule": self._rules.put, "delete_rule": self._rules.delete, AUDIT: self._audit,
        }  # fmt: skip
        if command.type in changes:
            last = self._resume.name if self._resume is not None and self._resume[:2] == (COMMANDS, offset) else ""
            done, taken_back = self._step_by_step(
                Partly(COMMANDS, offset, 0, ""), changes[command.type](command, now, last), now
            )
            self._answer_when_ended(command.id, set(taken_back), (OK, "", "", done), now)
        elif command.type == "run":
            self._run(command, now)
        elif command.type == "test_rule":
            self._test_rule(offset, command, now)
        elif command.type == "backfill":
            self._backfill(offset, command, now)
        elif command.type == "event":
            values = {"event": {"name": fields["name"], **fields.get("fields", {})}}
            self._tell(
                Partly(COMMANDS, offset, 0, ""),
                Occurrence(f"event:{fields['name']}", values, fields.get("fields", {})),
                now,
            )
            self._say_ok(command.id)
        elif command.type == "partitions":
            self._partitions(offset, command, now)
        else:
            self._calendar(command, now)

    def _audit(self, command: PlanCommand, now: int, last: str) -> Steps:
        """Passes on who asked for what, one after the other."""
        for number, entry in enumerate(command.fields["entries"]):
            place = f"{number:05}"
            if place > last:
                self._journal.note(AUDIT, entry["atUs"], entry)
                yield place
        return {}, []

    def _step_by_step(self, at: Partly, steps: Steps, now: int) -> tuple[dict[str, Any], list[TaskKey]]:
        while True:
            try:
                name = next(steps)
            except StopIteration as end:
                result: tuple[dict[str, Any], list[TaskKey]] = end.value
                return result
            self._part(at._replace(name=name), now)

    def _asked_about(self, command: PlanCommand) -> Entry:
        """The schedule that a command names."""
        name = command.fields["name"]
        entry = self.state.entries.get(name)
        if entry is None:
            raise NotFoundError(f"There is no schedule {name!r}.", hint="`scylla-spark schedule list` names all.")
        return entry

    def _run(self, command: PlanCommand, now: int) -> None:
        entry = self._asked_about(command)
        trouble = self._launching.by_hand(entry, now, command.fields.get("payload"))
        if trouble is not None:
            raise ArgumentError(f"The run was not launched: {trouble}.", hint="Give a payload.")
        if command.id is not None:
            key = entry.runs[entry.generation].key
            self._answer(command.id, OK, "", "", {entry.name: str(key)})

    def _backfill(self, offset: int, command: PlanCommand, now: int) -> None:
        fields, at = command.fields, Partly(COMMANDS, offset, 0, "")
        entry = self._asked_about(command)
        room = MOST_RUNS - len(entry.runs)
        planned = planned_between(entry, fields["begin"], fields["end"], self.state.calendars, MOST_RUNS)
        todo = chosen(planned, frozenset(fields.get("leaveOut", ())), fields.get("order", "oldest"))
        done = Backfilled(0, entry.generation + 1, 0)
        if self._resume is not None and self._resume[:2] == at[:2]:
            done = Backfilled(*map(int, self._resume.name.split("/")))
        elif len(todo) > room:
            raise ConflictError(
                f"{len(todo)} runs are asked for, and {len(entry.runs)} of {entry.name!r} are active; {MOST_RUNS} may be.",
                hint="Backfill in parts, or wait for some to end.",
            )
        lanes, priority = fields.get("maxRunning", 1), fields.get("priority", 0)
        for after in self._launching.backfill(entry, todo, now, lanes, priority, done):
            done = after
            self._part(at._replace(name="/".join(map(str, done))), now)
        if command.id is not None:
            tag = tag_of(entry.name, done.first)
            self._answer(command.id, OK, "", "", {"planned": len(planned), "launched": done.launched, "tag": tag})

    def _partitions(self, offset: int, command: PlanCommand, now: int) -> None:
        given = command.fields["partitions"]
        count = sum(one.get("count", 1) for one in given)
        rows, size = (sum(one.get(name, 0) for one in given) for name in ("rows", "bytes"))
        known = [one.get("values", {}) for one in given]
        values = {"partitions": {"dataset": command.fields["name"], "values": known[-1], "all": known}}
        happened = Occurrence(f"dataset:{command.fields['name']}", values, seen=count, rows=rows, size=size)
        self._tell(Partly(COMMANDS, offset, 0, ""), happened, now)
        self._say_ok(command.id)

    def _calendar(self, command: PlanCommand, now: int) -> None:
        from datetime import date

        name, days = command.fields["name"], sorted(set(command.fields["days"]))
        try:
            for day in days:
                date.fromisoformat(day)
        except ValueError as error:
            raise ArgumentError(f"The calendar {name!r} has a day that does not exist: {error}.") from error
        self._journal.note("calendar", name, days)
        for user in sorted(self._definitions.listeners.get(f"calendar:{name}", ())):
            self._defects.guarded(user, partial(self._count_anew, self.state.entries[user], now), now)
            if self._journal.full:
                self._seal(now)  # all of it may be done again
        self._say_ok(command.id)

    def _count_anew(self, entry: Entry, now: int) -> None:
        """The days of a calendar have changed: the next time may be another one."""
        if entry.paused:
            return
        next_us = self._timing.begin(entry.schedule, max(entry.cursor_us, now))
        self._journal.note("set", entry.name, {"next_us": next_us})
        if next_us:
            self._timers.add(Timer(next_us, entry.name, "time"))

    # -- answers --------------------------------------------------------------------------------------------------------

    def _answer(self, to: str, code: str, message: str, hint: str = "", done: Mapping[str, Any] | None = None) -> None:
        change: tuple[Any, ...] = ("answer", to, code, message, hint, dict(done or {}))
        if change_bytes(change) > _MOST_ANSWER_BYTES:
            change = ("answer", to, code, message or "What became of each of so many is too long to be told.", hint, {})
        self._journal.conclude(*change)

    def _say_ok(self, to: str | None) -> None:
        if to is not None:
            self._answer(to, OK, "")

    def _answer_when_ended(self, to: str | None, keys: set[TaskKey], answer: tuple[Any, ...], now: int) -> None:
        """Answers once nothing that was taken back can begin any more."""
        if to is None:
            return
        keys &= self.state.runs.keys()
        if not keys:
            self._answer(to, *answer)
            return
        self._answered += 1
        self._answers[self._answered] = (keys, (to, *answer))
        self._timers.add(Timer(now + _TAKEN_BACK_US, "", "answer", self._answered))

    def _give(self, number: int) -> None:
        """Answers: all was taken back, or it takes too long to wait for that."""
        keys, (to, *answer) = self._answers.pop(number, (set(), ("",)))
        if keys:
            words = f"It is done, but {len(keys)} runs that were launched ahead of their time may still begin, such as {min(keys)}."
            self._answer(to, PENDING, words, "A dispatcher takes them back as soon as it reads that.")
        elif answer:
            self._answer(to, *answer)

    # -- notifications --------------------------------------------------------------------------------------------------

    @property
    def wants_facts(self) -> bool:
        """Whether the ends of tasks of others than schedules are of use, too."""
        return bool(self.state.handlers) or not self._noticing.idle or self._definitions.listens_to_handlers

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
        key = self._noticing.test(name, offset, now)
        if command.id is not None:
            self._answer(command.id, OK, "", "", {name: str(key)})

    # -- ended runs and events ------------------------------------------------------------------------------------------

    def _schedule_of(self, key: TaskKey) -> str:
        """Name of the schedule whose run a task is, and has not ended; empty: it is none."""
        return self.state.runs.get(key, ("", 0))[0]

    def _ended(self, at: Partly, fact: Fact, now: int) -> None:
        found = self.state.runs.get(fact.key)
        if found is None:
            self._ended_without_schedule(at, fact, now)
            return
        entry = self.state.entries[found[0]]
        run, handler = entry.runs[found[1]], self.state.handlers.get(fact.key, entry.handler)
        self._journal.conclude(
            "end", entry.name, run.generation, fact.outcome, fact.started_us, fact.finished_us, fact.key
        )  # fmt: skip
        for number in [number for number, (keys, _) in self._answers.items() if fact.key in keys]:
            self._answers[number][0].discard(fact.key)
            if not self._answers[number][0]:
                self._give(number)
        taken_back = run.cancelled and fact.outcome == "cancelled" and not fact.started_us
        self._defects.guarded(entry.name, lambda: self._after(entry, run, fact, now), now)
        self._room(handler, now, entry.name)
        self._defects.guarded(entry.name, lambda: self._timing.room(entry, now), now)
        if not taken_back:
            self._tell_end(at, entry.name, iso(run.planned_us), fact, now, handler)

    def _ended_without_schedule(self, at: Partly, fact: Fact, now: int) -> None:
        """The end of a task that nobody launched, or of a run whose schedule is gone, though one of its name may have come."""
        handler = self.state.handlers.get(fact.key)
        if handler is not None:
            self._journal.conclude(RUN_ENDED, fact.key)
            self._room(handler, now)
            if self._was_run(fact.key):
                self._tell_end(at, *_named(fact.key), fact, now, handler)
                return
        self._tell_end_by_hand(at, fact, now)

    def _tell_end_by_hand(self, at: Partly, fact: Fact, now: int) -> None:
        """Tells who listens to a handler of the end of a task that no schedule has launched."""
        work = f"work:{fact.handler}"
        if fact.handler is None or work not in self._definitions.listeners:  # most tasks are nobody's concern
            return
        if self._was_run(fact.key):  # a run that has ended is told of once
            return
        upstream = {
            "schedule": "", "handler": fact.handler, "planned": iso(fact.key.time_us), **_ended_so(fact),
        }  # fmt: skip
        happened = Occurrence(work, {"upstream": upstream}, ended=_ENDS.get(fact.outcome, ""))
        self._tell(at, happened, now)

    def _was_run(self, key: TaskKey) -> bool:
        """Whether a task was a run of a schedule that is there, as far as that has counted its runs; others may be named alike."""
        name, planned = _named(key)
        number, entry = key.uniqueness_key.rpartition("/")[2], self.state.entries.get(name)
        if entry is None or not (number.isascii() and number.isdecimal() and 0 < int(number[:18]) <= entry.generation):
            return False
        try:
            return iso(to_us(datetime.fromisoformat(planned))) == planned
        except (ValueError, OverflowError, TypeError):  # TypeError: it names no zone
            return False

    def _tell_end(self, at: Partly, name: str, planned: str, fact: Fact, now: int, launched: str = "") -> None:
        """Tells who listens of the end of a run; `launched` is the handler that it was launched with, if that is known."""
        entry = self.state.entries.get(name)
        if entry is None:
            return
        handler = fact.handler or launched or entry.handler  # which the schedule may have changed meanwhile
        both = (f"work:{name}", f"work:{handler}")
        if self._definitions.listeners.keys().isdisjoint(both):
            return
        upstream = {
            "schedule": name, "handler": handler, "planned": planned, **_ended_so(fact),
        }  # fmt: skip
        happened = Occurrence(both[0], {"upstream": upstream}, ended=_ENDS.get(fact.outcome, ""), also=both[1])
        self._tell(at, happened, now)
        if name != handler:
            self._tell(at, happened._replace(key=both[1], also=both[0]), now, _SECOND)

    def _room(self, handler: str, now: int, name: str = "") -> None:
        """A run of a handler has ended: what has waited for that, and what waits of a schedule, is looked at again."""
        for waiting in self._launching.waiting(handler, name):
            self._defects.guarded(waiting, partial(self._launching.look_again, waiting, now), now)

    def _after(self, entry: Entry, run: Run, fact: Fact, now: int) -> None:
        policies = entry.schedule.policies
        if policies.late_after_us and fact.started_us > run.planned_us + policies.late_after_us:
            self._deadline(entry, run, _LATE, f"it started {_seconds(fact.started_us - run.planned_us)} late", now)
        if policies.pause_after_failures and entry.failures >= policies.pause_after_failures and not entry.paused:
            self._definitions.stop(entry, f"paused after {entry.failures} failed runs in a row", "planner", now)
        if fact.outcome == "succeeded":
            self._expect(entry)

    def _tell(self, at: Partly, occurrence: Occurrence, now: int, prefix: str = "") -> None:
        """Tells all schedules that listen; where it was not through when its planner ended, those that come after.

        Args:
            at: which input says so.
            occurrence: what happened.
            now: microseconds since the epoch.
            prefix: of names in `at`, where one input tells of two things: those who listen to the other one as well know already.
        """
        resume = self._resume
        done = resume.name if resume is not None and resume[:3] == at[:3] else ""
        listeners = self._definitions.listeners
        told = listeners.get(occurrence.also, set()) if prefix else set()
        for name in sorted(listeners.get(occurrence.key, set()) - told):
            entry = self.state.entries.get(name)
            if prefix + name <= done or entry is None:
                continue
            self._defects.guarded(name, partial(self._happened, entry, occurrence, now), now)
            self._part(at._replace(name=prefix + name), now)

    def _happened(self, entry: Entry, occurrence: Occurrence, now: int) -> None:
        failpoint.reach("plan.happened", entry.name)
        self._watching.too_old(entry, now)
        self._watching.happened(entry, occurrence, now)

    # -- timers ---------------------------------------------------------------------------------------------------------

    def _timer(self, timer: Timer, now: int) -> None:
        if timer.kind == "answer":
            self._give(timer.number)
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
        elif timer.kind in ("again", "timeout"):
            self._launching.again(entry, timer.number, now)
        elif timer.kind == "absent":
            self._watching.absent(entry, timer.number, now)
        elif timer.kind == "until":
            if entry.paused and 0 < entry.until_us <= now:
                self._definitions.go_on(entry, "planner", now)
        else:
            self._time_limit(entry, timer, now)

    def _time_limit(self, entry: Entry, timer: Timer, now: int) -> None:
        run = entry.runs.get(timer.number)
        if timer.kind == "silent":
            every_us = entry.schedule.policies.expect_every_us
            if every_us and not entry.paused and max(entry.last_success_us, entry.changed_us) + every_us <= now:
                self._deadline(entry, None, _SILENT, f"no run has succeeded for {_seconds(every_us)}", now)
                self._timers.add(Timer(now + every_us, entry.name, "silent"))
        elif run is not None and not run.cancelled:
            if timer.kind == _OVERDUE:
                self._deadline(entry, run, _OVERDUE, "it has not ended by the time that end_within gives", now)
            elif run.key not in self._runs.started:
                self._deadline(entry, run, _LATE, "it has not started by the time that late_after gives", now)

    def _expect(self, entry: Entry) -> None:
        every_us = entry.schedule.policies.expect_every_us
        if every_us:
            at_us = max(entry.last_success_us, entry.changed_us) + every_us
            self._timers.add(Timer(at_us, entry.name, "silent"))

    def _deadline(self, entry: Entry, run: Run | None, verdict: str, why: str, now: int) -> None:
        """Notes that a promise is not kept, and tells those who listen to that."""
        planned_us = run.planned_us if run is not None else now
        generation = run.generation if run is not None else 0
        self._journal.fire(
            entry, generation=generation, planned_us=planned_us, at_us=now, verdict=verdict, why=why, ends_job=False
        )  # fmt: skip
        fields = {"schedule": entry.name, "planned": iso(planned_us)}
        name = f"schedule.{verdict}"
        self._untold.append(Occurrence(f"event:{name}", {"event": {"name": name, **fields}}, fields))

    def _tell_untold(self, at: Partly | None, now: int) -> None:
        """Tells who listens of promises that are not kept, once the step is through that has noted it: they may be many.

        Args:
            at: how far the input is in which that was; None: it was a timer.
            now: microseconds since the epoch.
        """
        if not self._untold:
            return
        untold, self._untold, self._at = self._untold, [], at
        for occurrence in untold:
            self._tell(Partly(COMMANDS - 1, 0, 0, ""), occurrence, now)
        self._at = None


def _code(error: SchedulerError) -> str:
    if isinstance(error, NotFoundError):
        return "not_found"
    return "conflict" if isinstance(error, ConflictError) else "argument"


def _named(key: TaskKey) -> tuple[str, str]:
    """Name of the schedule whose run a task is, and the time it was planned for; empty: it is no run."""
    name, planned, number = (["", "", *key.uniqueness_key.rsplit("/", 2)])[-3:]
    return (name, planned) if planned and number else ("", "")


def _ended_so(fact: Fact) -> dict[str, Any]:
    """What those that come after a run may know of its end."""
    failure = fact.failure
    error = {"kind": failure.kind, "message": cut(failure.message, _MOST_WORDS_BYTES)} if failure is not None else None
    return {
        "key": str(fact.key), "outcome": fact.outcome, "result": _value(fact.result), "error": error, "attempts": fact.attempt,
    }  # fmt: skip


def _value(result: str | None) -> Any:
    """What a run has returned; the text of it, if it is too large, or nothing that a record of ours can hold."""
    if result is None or len(result) > _MOST_VALUE_CHARS:
        return result
    try:
        value = json.loads(result)
        json.dumps(value, allow_nan=False)  # a record would say null
        change_bytes([value])
        return value if _levels(value) <= _MOST_LEVELS else result
    except (ValueError, RecursionError):
        return result


def _levels(value: Any) -> int:
    """How deep a value goes, at most one more than is allowed."""
    within, levels = [value], 0
    while within and levels <= _MOST_LEVELS:
        within = [item for one in within for item in _items(one)]
        levels += 1
    return levels


def _items(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _seconds(us: int) -> str:
    return f"{us / 1e6:g} s"
