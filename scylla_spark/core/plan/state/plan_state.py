"""All that the planner knows, and how each change of its log alters it. Decisions and replays change it in this one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scylla_spark.core.plan.notices.state import KINDS, NoticeState
from scylla_spark.core.plan.state.audit_entry import AUDIT
from scylla_spark.core.plan.state.backfill_entry import BackfillEntry, without_oldest
from scylla_spark.core.plan.state.plan_log import (
    BACKFILL,
    BACKFILL_OF,
    BACKFILL_STANDS,
    BEGUN,
    CAUGHT_UP,
    ENTRY_JOB,
    ENTRY_PART,
    GOES_ON,
    LAUNCHES,
    PROMISED,
    RATED,
    RUN_ENDED,
    RUNS_OF,
    STARTED,
    SUCCEEDED,
    TABLE_PART,
    Change,
    Group,
    Partly,
    Position,
)
from scylla_spark.core.plan.state.schedule_entry import MOST_LAUNCHES_KEPT, Entry, Handed, Job, Run
from scylla_spark.core.plan.state.stored_definition import QUEUE, QUEUE_ENTRY, StoredDefinitions, read_definition_change
from scylla_spark.core.plan.state.stored_token import TOKEN, TOKEN_ENTRY, StoredToken, read_token_change
from scylla_spark.core.plan.times.breaks import Days
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import FAILURES

RATE_KEY: Final = "rate:"
"""Begins the key of a schedule that limits the rate of a tag."""
ANSWER: Final = "answer"
"""Kind of the change that answers a request; a snapshot repeats those of which is known that they were carried out."""
OK: Final = "ok"
PENDING: Final = "pending"
LAUNCHED: Final = "launched"
LATE: Final = "late"
OVERDUE: Final = "overdue"
SILENT: Final = "silent"
MOST_SUCCESSES: Final = 10_000  # of so many handlers it is known when they succeeded last
MOST_BEGUN: Final = 100_000  # of so many tasks at once it is known that their start was reported
MOST_TAGS_RATED: Final = 1_000  # of so many tags launches are counted
MOST_ANSWERS: Final = 1_000  # of so many requests it is known that they were carried out
_MOST_DONE: Final = 10  # schedules of one request of which the answer is kept
MOST_GRAVES: Final = 100_000  # schedules of one name that go and come again do so soon


@dataclass(slots=True)
class PlanState:
    """The fold of the planner's log.

    Attributes:
        entries: name → schedule.
        runs: key of a run that has not ended → name of its schedule, and generation.
        handlers: key of a run that has not ended and whose schedule is gone, or has another handler by now → the handler that it is of.
        begun: keys of tasks that were reported to triggers on starts, and have not ended; the newest last.
        tags: key of a run that has not ended, and whose schedule is gone or has other tags by now → the tags that it was launched under.
        launches: tag whose launches are counted → the latest of them, oldest first.
        successes: handler → when a run of it succeeded last, of whichever schedule.
        calendars: name → days, with what is told of them.
        queues: name → definition that was put.
        tokens: id → token for the HTTP API.
        notices: notification rules, and what they have told of.
        commands: next offset of `schedules`.
        outcomes: partition → position in `outcomes`.
        partly: what of the next input is done.
        number: of the last group.
        sent: what groups up to this one asked to be sent was sent.
        unsent: number of a group → commands for `tasks`, JSON texts, that may not have been sent.
        unreadable: changes that no reader could make.
        graves: name of a schedule that is gone → number of its last job: one of the same name goes on counting.
        answers: id of a request that was carried out → code, message, hint of its answer, and what became of each; the newest last.
        snapshot: where the last complete snapshot begins.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    runs: dict[TaskKey, tuple[str, int]] = field(default_factory=dict)
    handlers: dict[TaskKey, str] = field(default_factory=dict)
    begun: dict[TaskKey, None] = field(default_factory=dict)
    tags: dict[TaskKey, tuple[str, ...]] = field(default_factory=dict)
    launches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    successes: dict[str, int] = field(default_factory=dict)
    calendars: dict[str, Days] = field(default_factory=dict)
    queues: StoredDefinitions = field(default_factory=StoredDefinitions)
    tokens: dict[str, StoredToken] = field(default_factory=dict)
    notices: NoticeState = field(default_factory=NoticeState)
    commands: int = 0
    outcomes: dict[int, Position] = field(default_factory=dict)
    partly: Partly | None = None
    number: int = 0
    sent: int = 0
    unsent: dict[int, list[str]] = field(default_factory=dict)
    unreadable: int = 0
    graves: dict[str, int] = field(default_factory=dict)
    answers: dict[str, tuple[str, str, str, Mapping[str, Any]]] = field(default_factory=dict)
    snapshot: int = -1

    def fold(self, group: Group) -> None:
        """Takes one record of the log that counts."""
        self.number = group.number
        for change in group.changes:
            try:
                self.apply(change)
            except MemoryError:
                raise
            except Exception:  # no planner wrote this; it must not end all that read it
                self.unreadable += 1
        if group.commands is not None:
            self.commands = group.commands
        self.outcomes |= group.outcomes
        self.partly = group.partly
        self.was_sent(group.sent)
        self.snapshot = group.snapshot

    def was_sent(self, number: int) -> None:
        """What groups up to a number asked for was sent."""
        self.sent = max(self.sent, number)
        for asked in [asked for asked in self.unsent if asked <= self.sent]:
            del self.unsent[asked]

    def note_success(self, handler: str, at_us: int) -> None:
        """A run of a handler has succeeded; 0: none has."""
        if at_us > self.successes.get(handler, 0):
            self.successes.pop(handler, None)
            self.successes[handler] = at_us
            if len(self.successes) > MOST_SUCCESSES:
                del self.successes[next(iter(self.successes))]

    def count_launches(self, keys: Iterable[str]) -> None:
        """Counts launches under a tag from now on, if a schedule limits their rate.

        Args:
            keys: what the schedule listens to and is found by.
        """
        for key in keys:
            if key.startswith(RATE_KEY):
                self.set_launches(key.removeprefix(RATE_KEY), self.launches.get(key.removeprefix(RATE_KEY), ()))

    def set_launches(self, tag: str, launches_us: Iterable[int]) -> None:
        """Runs were launched under a tag at these times. Of too many tags, one whose rate nothing limits any more is forgotten first."""
        self.launches.pop(tag, None)
        self.launches[tag] = tuple(launches_us)[-MOST_LAUNCHES_KEPT:]
        if len(self.launches) > MOST_TAGS_RATED:
            limited = {key for entry in self.entries.values() for key in entry.keys if key.startswith(RATE_KEY)}
            others = (tag for tag in self.launches if f"{RATE_KEY}{tag}" not in limited)
            del self.launches[next(others, next(iter(self.launches)))]

    def apply(self, change: Change) -> None:
        """Makes one change; of a schedule that is not there, nothing (it stands in a later part of a snapshot, or is gone)."""
        kind = change[0]
        found = _WHOLE.get(kind)
        if found is not None:
            found(self, change)
            return
        if kind in KINDS:
            self.notices.apply(change)
            return
        entry = self.entries.get(change[1])
        if entry is not None:
            _OF_ENTRY[kind](self, entry, change)


# -- changes that are not of one known schedule ---------------------------------------------------------------------


def _put(state: PlanState, change: Change) -> None:
    fields: dict[str, Any] = {**change[2], "keys": tuple(change[2]["keys"])}
    goes_on = fields.pop(GOES_ON, False)
    old = state.entries.get(change[1])
    entry = Entry(change[1], **fields)
    if old is None:
        entry.generation = state.graves.pop(entry.name, 0)
    else:  # what has run belongs to the name
        entry.generation, entry.runs, entry.backfills = old.generation, old.runs, old.backfills
        entry.failures, entry.launches_us = old.failures, old.launches_us
        _note_success(state, entry, old.success_of or old.handler, old.last_success_us)
        entry.tables, entry.seen_us = _kept_tables(old, entry, change), {}
        if goes_on:
            entry.jobs, entry.seen_us, entry.held_us, entry.silent_us = (
                old.jobs,
                old.seen_us,
                old.held_us,
                old.silent_us,
            )
    state.entries[change[1]] = entry
    state.count_launches(entry.keys)


def _kept_tables(old: Entry, entry: Entry, change: Change) -> dict[int, Handed]:
    """Returns where the tables of a changed schedule stand: as the change says by leaf, or as before if it listens to the same."""
    if len(change) > 3:
        return {new: old.tables[leaf] for new, leaf in change[3] if leaf in old.tables}
    return old.tables if old.keys == entry.keys else {}


def _entry(state: PlanState, change: Change) -> None:
    """A schedule of a snapshot; its backfills are told of after it, and who knows them already keeps them meanwhile."""
    entry = Entry.of(change[1])
    old = state.entries.get(entry.name)
    entry.backfills = old.backfills if old is not None else {}
    state.entries[entry.name] = entry
    state.count_launches(entry.keys)
    state.note_success(entry.success_of or entry.handler, entry.last_success_us)
    for run in entry.runs.values():
        state.runs[run.key] = (entry.name, run.generation)


def _entry_part(state: PlanState, change: Change) -> None:
    """A schedule of a snapshot that is told in parts: who knows jobs and partitions of it already keeps them meanwhile."""
    old, generations = state.entries.get(change[1]["name"]), set(change[2])
    _entry(state, ["entry", change[1]])
    if old is not None:
        entry = state.entries[old.name]
        entry.jobs = {generation: job for generation, job in old.jobs.items() if generation in generations}
        for leaf, handed in entry.tables.items():
            before = old.tables.get(leaf)
            if before is not None and before[:3] == handed[:3]:
                entry.tables[leaf] = before


def _calendar(state: PlanState, change: Change) -> None:
    if change[2]:
        state.calendars[change[1]] = Days.read(change[2], change[3] if len(change) > 3 else {})
    else:
        state.calendars.pop(change[1], None)


def _queue(state: PlanState, change: Change) -> None:
    state.queues.take(read_definition_change(change))


def _queue_revision(state: PlanState, change: Change) -> None:
    state.queues.is_at(change[1])


def _token(state: PlanState, change: Change) -> None:
    id, stored = read_token_change(change)
    if stored is not None:
        state.tokens[id] = stored
    else:
        state.tokens.pop(id, None)


def _send(state: PlanState, change: Change) -> None:
    state.unsent.setdefault(state.number, []).append(change[1])


def _unsent(state: PlanState, change: Change) -> None:
    number, texts = change[1], change[2]
    if type(number) is not int or not isinstance(texts, list) or not all(type(text) is str for text in texts):
        raise TypeError("no planner wrote this")  # it would be met later, where numbers are compared
    state.unsent[number] = texts


def _drop(state: PlanState, change: Change) -> None:
    _grave(state, ["grave", change[1], change[2]["generation"]])
    entry = state.entries.pop(change[1], None)
    for run in entry.runs.values() if entry is not None else ():
        state.runs.pop(run.key, None)


def _runs_of(state: PlanState, change: Change) -> None:
    for key in change[2]:
        state.handlers[TaskKey(*key)] = change[1]
        if len(change) > 3:
            state.tags[TaskKey(*key)] = tuple(change[3])


def _run_ended(state: PlanState, change: Change) -> None:
    handler = state.handlers.pop(TaskKey(*change[1]), None)
    state.tags.pop(TaskKey(*change[1]), None)
    if handler is not None and len(change) > 2:
        state.note_success(handler, change[2])


def _begun(state: PlanState, change: Change) -> None:
    key = TaskKey(*change[1])
    if not change[2]:
        state.begun.pop(key, None)
        return
    state.begun[key] = None
    if len(state.begun) > MOST_BEGUN:
        del state.begun[next(iter(state.begun))]


def _succeeded(state: PlanState, change: Change) -> None:
    state.note_success(change[1], change[2])


def _rated(state: PlanState, change: Change) -> None:
    for tag in change[1]:
        state.set_launches(tag, (*state.launches.get(tag, ()), change[2]))


def _launches(state: PlanState, change: Change) -> None:
    state.set_launches(change[1], change[2])


def _grave(state: PlanState, change: Change) -> None:
    state.graves.pop(change[1], None)
    state.graves[change[1]] = change[2]
    if len(state.graves) > MOST_GRAVES:
        del state.graves[next(iter(state.graves))]


def _answer(state: PlanState, change: Change) -> None:
    """A request was answered; one that was refused may be sent again, so only those that were carried out are known."""
    _, to, code, message, hint, done = change
    if code in (OK, PENDING):
        state.answers.pop(to, None)
        state.answers[to] = (code, message, hint, done if len(done) <= _MOST_DONE else {})
        if len(state.answers) > MOST_ANSWERS:
            del state.answers[next(iter(state.answers))]


def _nothing(state: PlanState, change: Change) -> None:
    """For others than the planner: refusals."""


# -- changes of one schedule ----------------------------------------------------------------------------------------


def _set(state: PlanState, entry: Entry, change: Change) -> None:
    for name, value in change[2].items():
        setattr(entry, name, value)


def _job(state: PlanState, entry: Entry, change: Change) -> None:
    generation, found = change[2], change[3]
    entry.generation = max(entry.generation, generation)
    if found is None:
        entry.jobs.pop(generation, None)
    else:
        entry.jobs[generation] = Job.of(found)


def _fire(state: PlanState, entry: Entry, change: Change) -> None:
    fire = change[2]
    generation, key = fire.get("generation", 0), fire.get("key")
    entry.generation = max(entry.generation, generation)
    if fire.get("timed"):
        entry.cursor_us = max(entry.cursor_us, fire.get("until_us", fire["planned_us"]))
        entry.next_us = fire["next_us"]
    if fire["verdict"] == LAUNCHED:
        run = Run(
            generation,
            fire["planned_us"],
            TaskKey(*key),
            fire.get("by_hand", False),
            False,
            fire.get(CAUGHT_UP, False),
            *fire.get(PROMISED, (0, 0)),
        )
        entry.runs[generation] = run
        state.runs[run.key] = (entry.name, generation)
        if fire.get("rated"):
            entry.launches_us = (*entry.launches_us, fire["at_us"])[-MOST_LAUNCHES_KEPT:]
        elif not run.by_hand:
            entry.launches_us = ()
    elif fire["verdict"] in (LATE, OVERDUE):
        _told_of(entry, generation, fire["verdict"])
    elif fire["verdict"] == SILENT:
        entry.silent_us = fire["at_us"]
    if fire.get(BACKFILL_OF) in entry.backfills:
        _of_backfill(entry, fire)
    if fire.get("ends_job", True) and generation in entry.jobs:
        if entry.is_full:
            entry.held_us = max(entry.held_us, fire["at_us"])
        del entry.jobs[generation]


def _of_backfill(entry: Entry, fire: Mapping[str, Any]) -> None:
    """The next run of a backfill was launched, or could not be."""
    number = fire[BACKFILL_OF]
    backfill, launched = entry.backfills[number], fire["verdict"] == LAUNCHED
    _note_backfill(entry, backfill.launched(fire["generation"]) if launched else backfill.not_launched(fire["at_us"]))


def _note_backfill(entry: Entry, backfill: BackfillEntry) -> None:
    """A backfill stands anew; as soon as one more is over, the oldest of these is forgotten, so that nobody ever knows more than others."""
    entry.backfills[backfill.number] = backfill
    if backfill.is_forgettable:
        entry.backfills = without_oldest(entry.backfills)


def _told_of(entry: Entry, generation: int, verdict: str) -> None:
    """A promise of a run that is broken is told of once."""
    run = entry.runs.get(generation)
    if run is not None:
        entry.runs[generation] = run._replace(start_by_us=0) if verdict == LATE else run._replace(end_by_us=0)


def _started(state: PlanState, entry: Entry, change: Change) -> None:
    run = entry.runs.get(change[2])
    if run is not None:
        entry.runs[change[2]] = run._replace(start_by_us=0)


def _cancelled(state: PlanState, entry: Entry, change: Change) -> None:
    run = entry.runs.get(change[2])
    if run is not None:
        verdict, why = (*change[3:], "", "")[:2]
        entry.runs[change[2]] = run._replace(cancelled=(verdict, why) if verdict else True)


def _end(state: PlanState, entry: Entry, change: Change) -> None:
    _, _, generation, outcome, _started_us, finished_us, key = change[:7]
    runs_later = len(change) > 7 and change[7] is True
    handler = state.handlers.pop(
        TaskKey(*key), None
    )  # also of a run that a later part of a snapshot would have told of
    state.tags.pop(TaskKey(*key), None)
    if entry.has_no_room:
        entry.held_us = max(entry.held_us, finished_us)
    run = entry.runs.pop(generation, None)
    if run is not None:
        state.runs.pop(run.key, None)
    for backfill in [one for one in entry.backfills.values() if generation in one.running]:
        _note_backfill(entry, backfill.ended(generation, outcome, finished_us, taken_back=runs_later))
    if outcome == "succeeded":
        entry.failures = 0
        _note_success(state, entry, handler or entry.handler, finished_us)
    elif outcome in FAILURES:
        entry.failures += 1


def _note_success(state: PlanState, entry: Entry, handler: str, at_us: int) -> None:
    """A run of a schedule has succeeded, whatever handler the schedule has by now."""
    state.note_success(handler, at_us)
    if at_us > entry.last_success_us:
        entry.last_success_us, entry.success_of = at_us, "" if handler == entry.handler else handler


def _table(state: PlanState, entry: Entry, change: Change) -> None:
    entry.tables[change[2]] = Handed.of(change[3])


def _table_part(state: PlanState, entry: Entry, change: Change) -> None:
    leaf, part, version, at_us = change[2:]
    handed = entry.tables.get(leaf)
    if handed is not None:
        entry.tables[leaf] = handed.with_part(part, version, at_us)


def _backfill(state: PlanState, entry: Entry, change: Change) -> None:
    """A backfill begins; its number is that of no run, so that the next backfill has another."""
    _note_backfill(entry, BackfillEntry.of(change[3])._replace(number=change[2]))
    entry.generation = max(entry.generation, change[2])


def _backfill_stands(state: PlanState, entry: Entry, change: Change) -> None:
    number, stands, at_us = change[2:]
    backfill = entry.backfills.get(number)
    if backfill is not None:
        _note_backfill(entry, backfill.stands(stands, at_us))


def _seen(state: PlanState, entry: Entry, change: Change) -> None:
    entry.seen_us[change[2]] = change[3]


_WHOLE: Final[dict[str, Callable[[PlanState, Change], None]]] = {
    "put": _put,
    "drop": _drop,
    "entry": _entry,
    ENTRY_PART: _entry_part,
    "calendar": _calendar,
    QUEUE: _queue,
    QUEUE_ENTRY: _queue,
    "queue_revision": _queue_revision,
    TOKEN: _token,
    TOKEN_ENTRY: _token,
    "send": _send,
    "unsent": _unsent,
    "grave": _grave,
    RUNS_OF: _runs_of,
    RUN_ENDED: _run_ended,
    BEGUN: _begun,
    SUCCEEDED: _succeeded,
    RATED: _rated,
    LAUNCHES: _launches,
    ANSWER: _answer,
    "refuse": _nothing,
    AUDIT: _nothing,
}
_OF_ENTRY: Final[dict[str, Callable[[PlanState, Entry, Change], None]]] = {
    "set": _set,
    "job": _job,
    "fire": _fire,
    STARTED: _started,
    "cancelled": _cancelled,
    "end": _end,
    ENTRY_JOB: _job,
    "table": _table,
    TABLE_PART: _table_part,
    "seen": _seen,
    BACKFILL: _backfill,
    BACKFILL_STANDS: _backfill_stands,
}
