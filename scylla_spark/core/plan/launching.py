"""From a job whose trigger holds to a task: constraints, then what other runs of the schedule leave room for, then the command."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from scylla_spark import failpoint
from scylla_spark.clock import iso
from scylla_spark.core.bounded_text import cut
from scylla_spark.core.key import TaskKey
from scylla_spark.core.plan.backfill import tag_of
from scylla_spark.core.plan.constraint import Concurrency, LastRun, Rate, Situation, decide
from scylla_spark.core.plan.handler_runs import BACKFILL, HandlerRuns
from scylla_spark.core.plan.payload_template import Instant
from scylla_spark.core.plan.schedule import Schedule
from scylla_spark.core.plan.state.entry import (
    MOST_JOBS,
    MOST_RUNS,
    PENDING_CONSTRAINT,
    PENDING_LAUNCH,
    Entry,
    Job,
    Run,
)
from scylla_spark.core.plan.state.journal import Journal, fire_of
from scylla_spark.core.plan.state.plan_log import CAUGHT_UP, RUNS_OF, Change
from scylla_spark.core.plan.state.plan_state import LAUNCHED
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.tables.handing_over import handed_over
from scylla_spark.core.plan.triggers.seen import all_by_name, last_of_each
from scylla_spark.core.plan.triggers.trigger import AtTimes, leaves
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command, encode, payload_text
from scylla_spark.core.task_tags import tags_of_runs
from scylla_spark.duration import duration_ms, duration_text
from scylla_spark.errors import ArgumentError

SKIPPED: Final = "skipped"
WAITING: Final = "waiting"
FAILED: Final = "failed"
OBSOLETE: Final = "obsolete"
_MOST_WHY_BYTES: Final = 4_096
_MOST_SEEN_CHARS: Final = 20_000  # of one value; only results of runs can be longer
_CANCEL_GRACE_MS: Final = duration_ms("10s")  # as `cancel(running=True)` gives
_SLACK_US: Final = 2_000_000  # what runs this long has a start fact


class _Given(NamedTuple):
    """What a run by hand has of its own, instead of what its schedule says."""

    payload: Mapping[str, Any] | None = None
    lane: str = ""
    priority: int | None = None
    tags: tuple[str, ...] = ()


class Backfilled(NamedTuple):
    """How far a backfill is.

    Attributes:
        tried: so many of its runs are decided.
        first: number that its lanes are named by.
        launched: so many runs were launched.
    """

    tried: int
    first: int
    launched: int


class Launching:
    """Launches jobs, or says why not.

    Args:
        journal: takes what is decided.
        timers: when to look again.
        runs: of each handler, which constraints look at.
    """

    def __init__(self, journal: Journal, timers: Timers, runs: HandlerRuns) -> None:
        self._journal = journal
        self._state = journal.state
        self._timers = timers
        self._runs = runs
        self._waiting: dict[str, set[str]] = defaultdict(set)  # handler → schedules with jobs that wait for its runs

    def load(self, entry: Entry) -> None:
        """Takes over a schedule of the log."""
        for job in entry.jobs.values():
            if job.state != "pending_trigger":
                self._waits(entry)
                self._timers.add(Timer(0, entry.name, "again", job.generation))
                self._limit_wait(entry, job)
        if entry.runs:
            self._load_runs(entry)

    def _load_runs(self, entry: Entry) -> None:
        schedule = entry.schedule
        for run in entry.runs.values():
            if _is_exclusive(schedule) and not run.by_hand and _is_of_its_time(schedule, run):
                self._timers.add(Timer(run.key.time_us, entry.name, "check", run.generation))
            self._time_limits(schedule, run)

    # -- a trigger holds ------------------------------------------------------------------------------------------------

    def fired(
        self, entry: Entry, job: Job, now: int, starts_us: int = 0, *, caught_up: bool = False, **timed: Any
    ) -> None:
        """Launches a job, makes it wait, or drops it.

        Args:
            entry: of its schedule.
            job: whose trigger holds.
            now: microseconds since the epoch.
            starts_us: when the run is to start, if that is later.
            caught_up: it is one of all the times that were missed, or has waited for constraints where all such run: they run one after
                the other, whatever runs.
            **timed: fields of the decision that move the schedule's cursor.
        """
        failpoint.reach("plan.judge", entry.name)
        schedule = entry.schedule
        if _expires_ms(schedule, job, max(starts_us, now)) == 0:
            self._say(entry, job, now, SKIPPED, _expired(schedule), timed)
            return
        if schedule.constraints:
            decision = decide(schedule.constraints, self._situation(entry, job, now), now)
            if decision.drop:
                self._say(entry, job, now, SKIPPED, "; ".join(decision.unmet), timed)
                return
            if not decision.launch:
                waiting = self._wait(entry, job, now, "; ".join(decision.unmet), timed)
                again_us = decision.again_us
                if again_us is not None:
                    self._timers.add(Timer(max(again_us, now + 1_000), entry.name, "again", waiting))
                return
        if caught_up and schedule.policies.overlap != "allow_all":
            given = _Given(lane=schedule.work.lane or _lane(entry))
            if schedule.policies.overlap == "cancel_other":
                timed[CAUGHT_UP] = True
            self._launch(entry, schedule, job, now, max(starts_us, now), timed, given)
        else:
            self._overlap(entry, schedule, job, now, max(starts_us, now), timed)

    def collected(self, entry: Entry, job: Job, joined: int = 0) -> None:
        """A job that waits to be launched has seen more.

        Args:
            entry: of its schedule.
            job: as it is now.
            joined: number of the job whose round it has taken; 0: none.
        """
        before = entry.jobs[job.generation]
        changes: list[Change] = [("job", entry.name, job.generation, job.to_json())]
        if joined in entry.jobs:
            changes.append(("job", entry.name, joined, None))
        self._journal.note_together(*changes)
        if job.planned_us != before.planned_us:
            self._limit_expiry(entry, job)

    def _wait(self, entry: Entry, job: Job, now: int, why: str, timed: Mapping[str, Any]) -> int:
        """Lets a job wait for its constraints; number of the job that does, which may be one of before."""
        known = entry.jobs.get(job.generation)
        if known is not None and known.state == PENDING_CONSTRAINT:
            return job.generation
        before = _replaced(entry, job) if known is None else None  # what has waited for a run keeps its place
        if before is not None:
            instead = f"the run planned for {iso(job.planned_us)} takes its place"
            self._say(entry, before, now, SKIPPED, instead, {}, ends_job=False)
            job = job._replace(generation=before.generation, first_us=before.first_us)
        elif known is None and len(entry.jobs) >= MOST_JOBS:
            self._say(entry, job, now, SKIPPED, f"{len(entry.jobs)} jobs wait already", timed)
            return job.generation
        self._hold(entry, job, now, PENDING_CONSTRAINT, why, timed)
        return job.generation

    def _hold(self, entry: Entry, job: Job, now: int, state: str, why: str, timed: Mapping[str, Any]) -> None:
        held = job._replace(state=state)
        self._journal.note("job", entry.name, job.generation, held.to_json())
        self._say(entry, job, now, WAITING, why, timed, ends_job=False)
        self._waits(entry)
        self._limit_wait(entry, held)

    def _waits(self, entry: Entry) -> None:
        """A job of a schedule waits: the end of any run of its handler may be what it waits for."""
        if _asks_for_runs(entry.schedule):
            self._waiting[entry.handler].add(entry.name)

    def _limit_wait(self, entry: Entry, job: Job) -> None:
        """Looks again at a job that waits when it has waited for too long, and when its run would have expired."""
        schedule = entry.schedule
        self._timers.add(Timer(_since_us(job) + schedule.policies.timeout_us, entry.name, "timeout", job.generation))
        self._limit_expiry(entry, job)

    def _limit_expiry(self, entry: Entry, job: Job) -> None:
        schedule = entry.schedule
        if schedule.work.expires_ms is not None:
            expires_us = job.planned_us + schedule.work.expires_ms * 1000
            self._timers.add(Timer(expires_us, entry.name, "again", job.generation))

    def again(self, entry: Entry, generation: int, now: int) -> None:
        """Looks once more at a job that waits.

        Args:
            entry: the schedule.
            generation: of the job.
            now: microseconds since the epoch.
        """
        job = entry.jobs.get(generation)
        if job is None or job.state == "pending_trigger":
            return
        if _since_us(job) + entry.schedule.policies.timeout_us <= now:
            self._say(entry, job, now, OBSOLETE, "it has waited for longer than its job timeout", {})
            return
        waited = job.state == PENDING_CONSTRAINT and not job.latches
        self.fired(entry, job, now, caught_up=waited and entry.schedule.policies.catch_up == "all")

    # -- other runs of the schedule --------------------------------------------------------------------------------------

    def _overlap(
        self, entry: Entry, schedule: Schedule, job: Job, now: int, starts_us: int, timed: Mapping[str, Any]
    ) -> None:
        policies, active = schedule.policies, entry.active()
        if len(entry.runs) >= MOST_RUNS:
            self._say(entry, job, now, SKIPPED, f"{MOST_RUNS} runs are active", timed)
        elif policies.overlap == "skip" and starts_us <= now and len(active) >= policies.max_running:
            self._say(entry, job, now, SKIPPED, _busy(active), timed)
        elif policies.overlap == "buffer_one" and active:
            self._buffer(entry, job, now, active, timed)
        else:
            if policies.overlap == "cancel_other":
                for run in active:
                    if not run.caught_up:
                        self.cancel(entry, run, now, _CANCEL_GRACE_MS)
            self._launch(entry, schedule, job, now, starts_us, timed)

    def _buffer(self, entry: Entry, job: Job, now: int, active: list[Run], timed: Mapping[str, Any]) -> None:
        known = entry.jobs.get(job.generation)
        if known is not None and known.state == PENDING_LAUNCH:
            return
        if any(other.state == PENDING_LAUNCH for other in entry.jobs.values()):
            self._say(entry, job, now, SKIPPED, f"another one waits already, and {_busy(active)}", timed)
            return
        self._hold(entry, job, now, PENDING_LAUNCH, _busy(active), timed)

    def check(self, entry: Entry, generation: int, now: int) -> None:
        """At the time of a run that was launched ahead: if another one has not ended, it was one too many.

        Both are of one lane, so it cannot have begun.

        Args:
            entry: the schedule.
            generation: of the run.
            now: microseconds since the epoch.
        """
        run = entry.runs.get(generation)
        if run is None or run.cancelled:
            return
        earlier = [other for other in entry.active() if other.key < run.key]
        if earlier:
            self.cancel(entry, run, now)
            self._journal.fire(
                entry, generation=generation, planned_us=run.planned_us, at_us=now, verdict=SKIPPED, why=_busy(earlier)
            )

    # -- launches and their ends -----------------------------------------------------------------------------------------

    def by_hand(self, entry: Entry, now: int, payload: Mapping[str, Any] | None) -> str | None:
        """Launches a run that somebody asks for, whatever else runs; what keeps it from being launched, if anything does.

        Args:
            entry: the schedule.
            now: microseconds since the epoch.
            payload: instead of the schedule's own; None: that.
        """
        generation = entry.generation + 1
        job = Job(generation, PENDING_LAUNCH, now, now)
        self._launch(entry, entry.schedule, job, now, now, {"by_hand": True}, _Given(payload))
        return None if generation in entry.runs else "its payload cannot be made: `schedule explain` says why"

    def backfill(
        self, entry: Entry, planned: list[int], now: int, lanes: int, priority: int, done: Backfilled
    ) -> Iterator[Backfilled]:
        """Launches past planned times, so many at once, in their order; yields after each how far it is.

        Args:
            entry: of the schedule.
            planned: the times that the runs are named by.
            now: microseconds since the epoch; the first starts now, others as their lane lets them.
            lanes: how many may run at once.
            priority: of their tasks.
            done: what was yielded last before the planner ended in the midst, or `Backfilled(0, entry.generation + 1, 0)`.
        """
        tried, first, launched = done
        tags = (tag_of(entry.name, first),)
        for number in range(tried, len(planned)):
            job = Job(entry.generation + 1, PENDING_LAUNCH, now, planned[number])
            lane = f"{BACKFILL}{entry.name}/{first}/{number % lanes}"
            given = _Given(None, lane, priority, tags)
            self._launch(entry, entry.schedule, job, now, now + number, {"by_hand": True}, given)
            launched += job.generation in entry.runs
            yield Backfilled(number + 1, first, launched)

    def anew(self, entry: Entry, run: Run, payload: Mapping[str, Any], now: int) -> None:
        """Launches a run once more, under a key of its own: its task was never sent, and is too old by now to be taken.

        Args:
            entry: the schedule.
            run: that was recorded.
            payload: of its task.
            now: microseconds since the epoch.
        """
        taken_back = run.cancelled
        self.cancel(entry, run, now)  # whoever sees the old task after all must not run it
        self._journal.note("end", entry.name, run.generation, "cancelled", 0, now, run.key)
        if taken_back:
            return
        job = Job(entry.generation + 1, PENDING_LAUNCH, now, run.planned_us)
        if not run.by_hand and _expires_ms(entry.schedule, job, now) == 0:
            self._say(entry, job, now, SKIPPED, _expired(entry.schedule), {})
            return
        more = {name: True for name in ("by_hand", CAUGHT_UP) if getattr(run, name)}
        self._launch(entry, entry.schedule, job, now, now, more, _Given(payload))

    def _launch(
        self, entry: Entry, schedule: Schedule, job: Job, now: int, starts_us: int, more: Mapping[str, Any],
        given: _Given | None = None,
    ) -> None:  # fmt: skip
        given = given or _Given()
        work, unique = schedule.work, f"{entry.name}/{iso(job.planned_us)}/{job.generation}"
        own = unique if more.get("by_hand") or _is_parallel(schedule) else _lane(entry)
        key = TaskKey(starts_us, given.lane or work.lane or own, unique)
        try:
            filled = work.payload.render(values_of(entry, job, now)) if given.payload is None else given.payload
            text = payload_text(filled)
        except (ArgumentError, ValueError, TypeError) as error:
            self._say(entry, job, now, FAILED, cut(f"its payload cannot be made: {error}", _MOST_WHY_BYTES), more)
            return
        command = Command(
            ENQUEUE, key, 0, work.handler, work.queue, text, work.priority if given.priority is None else given.priority,
            work.timeout_ms, work.retry, now, tags=tags_of_runs((*given.tags, *schedule.tags)),
            expires_ms=None if more.get("by_hand") else _expires_ms(schedule, job, starts_us),
        )  # fmt: skip
        rated = not more.get("by_hand") and any(isinstance(one, Rate) for one in schedule.constraints)
        fire = fire_of(
            entry, generation=job.generation, planned_us=job.planned_us, at_us=now, verdict=LAUNCHED, why="", key=key,
            **({"rated": True} if rated else {}), **_seen(entry, job), **more,
        )  # fmt: skip
        self._journal.note_together(fire, ("send", encode(command).decode()), *handed_over(entry, job, now))
        run = entry.runs[job.generation]
        if starts_us > now and _is_exclusive(schedule) and not more.get("by_hand"):
            self._timers.add(Timer(starts_us, entry.name, "check", job.generation))
        self._time_limits(schedule, run)

    def _time_limits(self, schedule: Schedule, run: Run) -> None:
        policies, name = schedule.policies, schedule.name
        if policies.late_after_us:
            at_us = max(run.planned_us + policies.late_after_us, run.key.time_us) + _SLACK_US
            self._timers.add(Timer(at_us, name, "late", run.generation))
        if policies.end_within_us:
            self._timers.add(Timer(run.planned_us + policies.end_within_us, name, "overdue", run.generation))

    def cancel(self, entry: Entry, run: Run, now: int, grace_ms: int | None = None) -> None:
        """Asks for the end of a run.

        Args:
            entry: the schedule.
            run: of it.
            now: microseconds since the epoch.
            grace_ms: one that has begun is to end, too, and is ended after so long; None: it goes on.
        """
        if run.cancelled:
            return
        command = Command(CANCEL, run.key, 0, enqueued_us=now, grace_ms=grace_ms)
        self._journal.note_together(("cancelled", entry.name, run.generation), ("send", encode(command).decode()))

    def cancel_ahead(self, entry: Entry, now: int) -> list[TaskKey]:
        """Takes back what was launched ahead of its time; their keys."""
        ahead = [run for run in entry.runs.values() if run.key.time_us > now and not run.cancelled]
        for run in ahead:
            self.cancel(entry, run, now)
        return [run.key for run in ahead]

    def outlive(self, entry: Entry) -> None:
        """Keeps in mind of which handler the runs of a schedule are that goes, or gets another handler: they are active until they end.

        What is known of them is said again: a snapshot in the making would have told of that with the schedule.
        """
        found: dict[str, list[TaskKey]] = defaultdict(list)
        for run in entry.runs.values():
            found[self._state.handlers.get(run.key, entry.handler)].append(run.key)
        for handler, keys in found.items():
            self._journal.note(RUNS_OF, handler, keys)

    def drop_jobs(self, entry: Entry, now: int, why: str) -> None:
        """Forgets what a schedule has waited for.

        Args:
            entry: the schedule.
            now: microseconds since the epoch.
            why: for people.
        """
        for job in list(entry.jobs.values()):  # without what they have seen: a hundred of them must fit into one record
            self._journal.fire(
                entry, generation=job.generation, planned_us=job.planned_us or now, at_us=now, verdict=OBSOLETE, why=why
            )

    def waiting(self, handler: str, name: str = "") -> list[str]:
        """Schedules with jobs that are looked at again when a run of a handler has ended, by name.

        Args:
            handler: of the run.
            name: of the schedule that it was of, which is looked at in any case; empty: that is gone.
        """
        return sorted({*self._waiting.get(handler, ()), *([name] if name else ())})

    def look_again(self, name: str, now: int) -> None:
        """Looks again at all jobs of a schedule that wait for the end of a run; what waits for a time has a timer.

        Args:
            name: of the schedule.
            now: microseconds since the epoch.
        """
        entry = self._state.entries.get(name)
        if entry is None:
            return
        asks = bool(entry.jobs) and _asks_for_runs(entry.schedule)
        for job in [job for job in entry.jobs.values() if asks or job.state == PENDING_LAUNCH]:
            if self._journal.full:
                self._timers.add(Timer(now, name, "again", job.generation))
            else:
                self.again(entry, job.generation, now)
        if all(job.state == "pending_trigger" for job in entry.jobs.values()):
            self._waiting[entry.handler].discard(name)

    # -- what others look at --------------------------------------------------------------------------------------------

    def _situation(self, entry: Entry, job: Job, now: int) -> Situation:
        runs, handler = self._runs, entry.handler
        return Situation(job.first_us, runs.active(handler, now), runs.last_success_us(handler), entry.launches_us)

    def _say(
        self, entry: Entry, job: Job, now: int, verdict: str, why: str, more: Mapping[str, Any], **others: Any
    ) -> None:
        self._journal.fire(
            entry, generation=job.generation, planned_us=job.planned_us or now, at_us=now, verdict=verdict, why=why,
            **_seen(entry, job), **more, **others,
        )  # fmt: skip


def values_of(entry: Entry, job: Job, now: int) -> dict[str, Any]:
    """What templates may know of a launch.

    Args:
        entry: the schedule.
        job: that is launched.
        now: microseconds since the epoch.
    """
    values: dict[str, Any] = {
        "planned": Instant(job.planned_us), "started": Instant(now), "schedule": entry.name, "revision": entry.revision,
        "generation": job.generation,
    }  # fmt: skip
    return values | last_of_each(job.latches) | all_by_name(entry.schedule.trigger, job.latches)


def can_be_ahead(schedule: Schedule) -> bool:
    """Whether a fire by time may be launched before its time: nothing that happens until then can change the decision."""
    if schedule.constraints or not all(isinstance(leaf, AtTimes) for leaf in leaves(schedule.trigger)):
        return False
    return schedule.policies.overlap in ("allow_all", "buffer_all") or _is_exclusive(schedule)


def may_wait_alone(schedule: Schedule) -> bool:
    """Whether of the jobs of a schedule one at most waits to be launched, and takes what comes meanwhile."""
    return schedule.policies.overlap in ("skip", "buffer_one")


def _replaced(entry: Entry, job: Job) -> Job | None:
    """The job that waits for its constraints at an earlier planned time, and whose place a job of a later one takes; None: none does."""
    schedule = entry.schedule
    if job.latches or not may_wait_alone(schedule) or schedule.policies.catch_up == "all":
        return None
    waiting = (one for one in entry.jobs.values() if one.state == PENDING_CONSTRAINT and not one.latches)
    return max(waiting, default=None, key=lambda one: one.planned_us)


def _since_us(job: Job) -> int:
    """Since when a job waits, as its timeout counts: one that took the place of others has their first instant, but its own time."""
    return job.first_us if job.latches else max(job.first_us, job.planned_us)


def _asks_for_runs(schedule: Schedule) -> bool:
    """Whether a constraint of a schedule looks at runs of its handler, so that the end of one may change what it says."""
    return any(isinstance(one, Concurrency | LastRun) for one in schedule.constraints)


def _is_exclusive(schedule: Schedule) -> bool:
    return schedule.policies.overlap == "skip" and schedule.policies.max_running == 1 and not schedule.work.lane


def _is_of_its_time(schedule: Schedule, run: Run) -> bool:
    """Whether a run starts at its time, and was not launched when that had passed."""
    times = [leaf.times for leaf in leaves(schedule.trigger) if isinstance(leaf, AtTimes)]
    return any(one.starts_us(schedule.name, run.planned_us) == run.key.time_us for one in times)


def _lane(entry: Entry) -> str:
    """The lane of all runs of a schedule of which one may run at once."""
    return f"schedule/{entry.name}"


def _is_parallel(schedule: Schedule) -> bool:
    policies = schedule.policies
    return policies.overlap == "allow_all" or (policies.overlap == "skip" and policies.max_running > 1)


def _expires_ms(schedule: Schedule, job: Job, starts_us: int) -> int | None:
    """How long after the scheduled time of its task a run expires: `expires` counts from its planned time. 0: it has; None: never."""
    if schedule.work.expires_ms is None:
        return None
    return max(0, schedule.work.expires_ms - (starts_us - job.planned_us) // 1000)


def _expired(schedule: Schedule) -> str:
    span = duration_text(timedelta(milliseconds=schedule.work.expires_ms or 0))
    return f"it expires {span} after its planned time, and had not begun by then"


def _busy(active: list[Run]) -> str:
    first = min(active, key=lambda run: run.planned_us)
    more = f" and {len(active) - 1} others are" if len(active) > 1 else " is"
    return f"the run planned for {iso(first.planned_us)}{more} active"


def _seen(entry: Entry, job: Job) -> dict[str, Any]:
    values = last_of_each(job.latches)
    if len(job.latches) > 1:
        several = all_by_name(entry.schedule.trigger, job.latches)
        values |= {kind: named for kind, named in several.items() if len(named) > 1}
    texts = {name: json.dumps(value, separators=(",", ":"), ensure_ascii=False) for name, value in values.items()}
    kept = [f"{json.dumps(name)}:{text}" for name, text in texts.items() if len(text) <= _MOST_SEEN_CHARS]
    return {"values": f"{{{','.join(kept)}}}"} if kept else {}
