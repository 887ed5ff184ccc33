"""From a job whose trigger holds to a task: constraints, then what other runs of the schedule leave room for, then the command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from scylla_spark import failpoint
from scylla_spark.clock import iso
from scylla_spark.core.plan.checks import Checks
from scylla_spark.core.plan.constraint import Check, Decision, MaxLoad, Rate, Situation, decide
from scylla_spark.core.plan.handler_runs import BACKFILL, Groups, HandlerRuns, of_tag
from scylla_spark.core.plan.load import Load
from scylla_spark.core.plan.past_versions import leaf_of, seen_by, unwatched_words
from scylla_spark.core.plan.schedule import Schedule
from scylla_spark.core.plan.schedule_policies import (
    expired_words,
    expires_ms,
    groups_asked,
    is_exclusive,
    is_of_its_time,
    is_parallel,
    lane_of,
    promised_us,
    runs_each,
    since_us,
)
from scylla_spark.core.plan.state.backfill_entry import BackfillEntry, tag_of
from scylla_spark.core.plan.state.plan_log import BACKFILL_OF, CAUGHT_UP, PROMISED, RATED, RUNS_OF, UNJUDGED, Change
from scylla_spark.core.plan.state.plan_state import LAUNCHED
from scylla_spark.core.plan.state.schedule_entry import (
    PENDING_CONSTRAINT,
    PENDING_LAUNCH,
    PENDING_TRIGGER,
    Entry,
    Job,
    Run,
)
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal, fire_of
from scylla_spark.core.plan.tables.handing_over import handed_over
from scylla_spark.core.plan.taken_back import ASKS, closes_launch, ends, is_left_over
from scylla_spark.core.plan.verdicts import (
    FAILED,
    OBSOLETE,
    SKIPPED,
    WAITED_TOO_LONG,
    Verdicts,
    busy_words,
    missing_of,
    run_anyway_words,
    seen_of,
    values_of,
)
from scylla_spark.core.plan.waiting_jobs import WaitingJobs
from scylla_spark.core.records.bounded_text import cut
from scylla_spark.core.records.command import CANCEL, ENQUEUE, MISSING, Command, encode, payload_text, with_extra
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.tags import tags_of_runs
from scylla_spark.core.tasks.task import CANCELLED
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError

_MOST_WHY_BYTES: Final = 4_096
_NO_PROMISE: Final = (
    0,
    0,
)  # planned times of a backfill are past: no time is one by which a run is to begin, or to end
_HOLDS: Final = Decision(True, False, None, ())
_CANCEL_GRACE_MS: Final = duration_ms("10s")  # as `cancel(running=True)` gives


class _Given(NamedTuple):
    """What a run by hand has of its own, instead of what its schedule says."""

    payload: Mapping[str, Any] | None = None
    lane: str = ""
    priority: int | None = None
    tags: tuple[str, ...] = ()
    promised: tuple[int, int] | None = None


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
        self._verdicts = Verdicts(journal)
        self._waiting = WaitingJobs(journal, timers, self._verdicts)
        self.collected = self._waiting.collected
        self.checks = Checks(journal, timers, partial(self.again, checked=True))

    def load(self, entry: Entry) -> None:
        """Takes over a schedule of the log."""
        self._waiting.load(entry)
        if entry.runs:
            self._load_runs(entry)

    def _load_runs(self, entry: Entry) -> None:
        schedule = entry.schedule
        for run in entry.runs.values():
            if is_exclusive(schedule) and not run.by_hand and is_of_its_time(schedule, run):
                self._timers.add(Timer(run.key.time_us, entry.name, "check", run.generation))

    # -- a trigger holds ------------------------------------------------------------------------------------------------

    def fired(
        self,
        entry: Entry,
        job: Job,
        now: int,
        starts_us: int = 0,
        *,
        caught_up: bool = False,
        anyway: bool = False,
        checked: bool = False,
        **timed: Any,
    ) -> None:
        """Launches a job, makes it wait, or drops it.

        Args:
            entry: of its schedule.
            job: whose trigger holds.
            now: microseconds since the epoch.
            starts_us: when the run is to start, if that is later.
            caught_up: it is one of all the times that were missed, or has waited for constraints where all such run, or was kept
                during a pause: they run one after the other, regardless of other runs.
            anyway: it has waited for its job timeout, and is launched without what it has waited for.
            checked: its check has just answered that it may be launched.
            **timed: fields of the decision that move the schedule's cursor.
        """
        failpoint.reach("plan.judge", entry.name)
        schedule = entry.schedule
        if expires_ms(schedule, job, max(starts_us, now)) == 0:
            self._verdicts.say(entry, job, now, SKIPPED, expired_words(schedule), timed)
            return
        if entry.paused:
            self._waiting.wait_for_resume(entry, job, now, timed)
            return
        held = [one for one in schedule.constraints if not (checked and isinstance(one, Check))]
        decision = decide(held, self._runs.situation(entry, job, now), now) if held else _HOLDS
        missing = missing_of(entry, job, decision.names if anyway else ())  # also of a job that a pause kept after that
        if missing:
            timed[MISSING] = missing
        if not decision.launch:
            if decision.drop:
                self._verdicts.say(entry, job, now, SKIPPED, "; ".join(decision.unmet), timed)
                return
            if not anyway:
                waiting = self._waiting.wait_for_constraints(entry, job, now, "; ".join(decision.unmet), timed)
                again_us = decision.again_us
                if again_us is not None:
                    self._timers.add(Timer(max(again_us, now + 1_000), entry.name, "again", waiting))
                for tag, room_us in decision.room_us.items():  # one timer for all, before others: the oldest goes first
                    self._timers.add(Timer(max(room_us, now + 1_000), "", of_tag(tag)))
                if decision.asks:
                    self.checks.ask(entry, entry.jobs[waiting], now)
                return
        if decision.unjudged:
            timed[UNJUDGED] = "; ".join(decision.unjudged)
        if caught_up and entry.has_no_room:
            self._waiting.wait_for_place(entry, job, now, timed)
        elif caught_up and schedule.policies.overlap != "allow_all":
            given = _Given(lane=schedule.work.lane or lane_of(entry))
            if schedule.policies.overlap == "cancel_other":
                timed[CAUGHT_UP] = True
            self._launch(entry, schedule, job, now, max(starts_us, now), timed, given)
        else:
            self._overlap(entry, schedule, job, now, max(starts_us, now), timed)

    def again(self, entry: Entry, generation: int, now: int, *, checked: bool = False) -> None:
        """Looks once more at a job that waits; one of a paused schedule, whose stop a defect kept from dropping it, goes on waiting.

        Args:
            entry: the schedule.
            generation: of the job.
            now: microseconds since the epoch.
            checked: its check has just answered that it may be launched.
        """
        job = entry.jobs.get(generation)
        if job is None or job.state == PENDING_TRIGGER or entry.paused:
            return
        policies = entry.schedule.policies
        late = since_us(entry, job) + policies.timeout_us <= now
        if late and policies.on_timeout == "cancel":
            self._verdicts.say(entry, job, now, OBSOLETE, WAITED_TOO_LONG, {})
            return
        waited = job.state == PENDING_CONSTRAINT and not job.latches and policies.catch_up == "all"
        self.fired(entry, job, now, caught_up=waited or job.first_us <= entry.kept_us, anyway=late, checked=checked)

    # -- other runs of the schedule --------------------------------------------------------------------------------------

    def _overlap(
        self, entry: Entry, schedule: Schedule, job: Job, now: int, starts_us: int, timed: Mapping[str, Any]
    ) -> None:
        policies, active = schedule.policies, entry.active()
        if entry.has_no_room and runs_each(schedule):
            self._waiting.wait_for_place(entry, job, now, timed)
        elif entry.has_no_room:
            self._verdicts.say(entry, job, now, SKIPPED, f"{len(entry.runs)} runs are active", timed)
        elif policies.overlap == "skip" and starts_us <= now and len(active) >= policies.max_running:
            self._verdicts.say(entry, job, now, SKIPPED, busy_words(active), timed)
        elif policies.overlap == "buffer_one" and active:
            self._waiting.wait_for_runs(entry, job, now, active, timed)
        else:
            if policies.overlap == "cancel_other":
                for run in active:
                    if not run.caught_up:
                        why = f"the run planned for {iso(job.planned_us)} takes its place"
                        self.cancel(entry, run, now, (OBSOLETE, why), _CANCEL_GRACE_MS)
            self._launch(entry, schedule, job, now, starts_us, timed)

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
            self.cancel(entry, run, now, (SKIPPED, busy_words(earlier)))

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

    def next_of(self, entry: Entry, backfill: BackfillEntry, now: int) -> None:
        """Launches the next run of a backfill, or notes why it cannot be.

        Args:
            entry: of the schedule.
            backfill: of it, with something left.
            now: microseconds since the epoch.
        """
        item = backfill.left[0]
        job = Job(entry.generation + 1, PENDING_LAUNCH, now, item.planned_us)
        more = {"by_hand": True, BACKFILL_OF: backfill.number}
        if backfill.source is not None and item.versions is not None:
            leaf = leaf_of(entry, backfill.source)
            if leaf is None:
                why = cut(unwatched_words(backfill.source, item.versions), _MOST_WHY_BYTES)
                self._verdicts.say(entry, job, now, FAILED, why, more)
                return
            job = job._replace(latches={leaf: seen_by(entry, leaf, backfill.source, item.versions)})
        lane = f"{BACKFILL}{entry.name}/{backfill.number}/{item.place}"
        given = _Given(None, lane, backfill.priority, (tag_of(entry.name, backfill.number),), _NO_PROMISE)
        self._launch(entry, entry.schedule, job, now, now, more, given)

    def anew(self, entry: Entry, run: Run, payload: Mapping[str, Any], missing: Sequence[str], now: int) -> None:
        """Launches a run once more, under a key of its own: its task was never sent, and is too old by now to be taken.

        A run of a backfill is only taken back: that has it among what is left.

        Args:
            entry: the schedule.
            run: that was recorded.
            payload: of its task.
            missing: what it was launched without.
            now: microseconds since the epoch.
        """
        runs_later = is_left_over(entry, run)
        wanted = not run.cancelled and not any(run.generation in one.running for one in entry.backfills.values())
        reason = (OBSOLETE, "its task was never sent, and is too old to be sent now")
        self.cancel(entry, run, now, reason)  # whoever sees the old task after all must not run it
        closed = closes_launch(entry, entry.runs[run.generation], now)
        self._journal.note_together(*closed, ends(entry.name, run, CANCELLED, 0, now, runs_later=runs_later))
        if not wanted:
            return
        job = Job(entry.generation + 1, PENDING_LAUNCH, now, run.planned_us)
        if not run.by_hand and expires_ms(entry.schedule, job, now) == 0:
            self._verdicts.say(entry, job, now, SKIPPED, expired_words(entry.schedule), {})
            return
        more = {name: True for name in ("by_hand", CAUGHT_UP) if getattr(run, name)} | {MISSING: missing}
        left = (run.start_by_us, run.end_by_us)  # what was told of is not told of again
        self._launch(entry, entry.schedule, job, now, now, more, _Given(payload, promised=left))

    def _launch(
        self,
        entry: Entry,
        schedule: Schedule,
        job: Job,
        now: int,
        starts_us: int,
        more: Mapping[str, Any],
        given: _Given | None = None,
    ) -> None:
        given = given or _Given()
        work, unique = schedule.work, f"{entry.name}/{iso(job.planned_us)}/{job.generation}"
        own = unique if more.get("by_hand") or is_parallel(schedule) else lane_of(entry)
        key = TaskKey(starts_us, given.lane or work.lane or own, unique)
        try:
            filled = work.payload.render(values_of(entry, job, now)) if given.payload is None else given.payload
            text = payload_text(filled)
        except (ArgumentError, ValueError, TypeError) as error:
            self._verdicts.say(
                entry, job, now, FAILED, cut(f"its payload cannot be made: {error}", _MOST_WHY_BYTES), more
            )
            return
        command = Command(
            ENQUEUE,
            key,
            0,
            work.handler,
            work.queue,
            text,
            work.priority if given.priority is None else given.priority,
            work.timeout_ms,
            work.retry,
            now,
            tags=tags_of_runs((*given.tags, *schedule.tags)),
            extra=json.dumps({MISSING: more[MISSING]}, ensure_ascii=False) if more.get(MISSING) else None,
            expires_ms=None if more.get("by_hand") else expires_ms(schedule, job, starts_us),
        )
        promised = promised_us(schedule, job.planned_us) if given.promised is None else given.promised
        rated = not more.get("by_hand") and any(isinstance(one, Rate) and not one.tag for one in schedule.constraints)
        fire = fire_of(
            entry,
            generation=job.generation,
            planned_us=job.planned_us,
            at_us=now,
            verdict=LAUNCHED,
            key=key,
            **({"rated": True} if rated else {}),
            **({PROMISED: promised} if any(promised) else {}),
            **seen_of(entry, job),
            **{**more, "why": run_anyway_words(more[MISSING]) if more.get(MISSING) else more.get(UNJUDGED, "")},
        )
        moves = (
            () if BACKFILL_OF in more else handed_over(entry, job, now)
        )  # its versions are past: new ones go on where they stand
        counted = [] if more.get("by_hand") else [tag for tag in entry.tags if tag in self._state.launches]
        counts: list[Change] = [(RATED, counted, now)] if counted else []
        sent = with_extra(encode(command), command.extra).decode()
        self._journal.note_together(fire, ("send", sent), *counts, *moves)
        if self._runs.load is not None:
            self._runs.load.launch(work.queue, now)
        if starts_us > now and is_exclusive(schedule) and not more.get("by_hand"):
            self._timers.add(Timer(starts_us, entry.name, "check", job.generation))

    def cancel(self, entry: Entry, run: Run, now: int, reason: tuple[str, str], grace_ms: int | None = None) -> None:
        """Asks for the end of a run.

        Args:
            entry: the schedule.
            run: of it.
            now: microseconds since the epoch.
            reason: verdict and reason of the row of `fires` that closes its launch, if it never begins.
            grace_ms: one that has begun is to end, too, and is ended after so long; None: it goes on.
        """
        if run.cancelled:
            return
        command = Command(CANCEL, run.key, 0, enqueued_us=now, grace_ms=grace_ms)
        self._journal.note_together(_cancelled(entry, run, reason), ("send", encode(command).decode()))

    def take_back(self, entry: Entry, run: Run, now: int, why: str) -> TaskKey:
        """Asks for the end of a run that may not have begun, and for an answer if it has; its key.

        Args:
            entry: the schedule.
            run: of it; one that was asked to end before is asked again.
            now: microseconds since the epoch.
            why: for people.
        """
        command = Command(CANCEL, run.key, 0, enqueued_us=now, request_id=ASKS)
        self._journal.note_together(_cancelled(entry, run, (OBSOLETE, why)), ("send", encode(command).decode()))
        return run.key

    def cancel_ahead(self, entry: Entry, now: int, why: str) -> list[TaskKey]:
        """Takes back what was launched ahead of its time; the keys of all that may begin until then, also of what was taken back before.

        Args:
            entry: the schedule.
            now: microseconds since the epoch.
            why: for people.
        """
        ahead = [run for run in entry.runs.values() if run.key.time_us > now]
        for run in [run for run in ahead if not run.cancelled]:
            self.cancel(entry, run, now, (OBSOLETE, why))
        return [run.key for run in ahead]

    def close_ahead(self, entry: Entry, now: int) -> None:
        """Closes the launches of what was taken back of a schedule that goes: when these runs end, nothing is known of them.

        These are the runs whose time is still to come, and those that were skipped because another one had not ended.
        """
        for run in [run for run in entry.runs.values() if run.key.time_us > now or _is_skipped(run)]:
            self._journal.note_together(*closes_launch(entry, run, now))

    def outlive(self, entry: Entry, *, retagged: bool = False) -> None:
        """Keeps in mind of which handler and tags the runs of a schedule are that goes, or gets others: they are active until they end.

        What is known of them is said again: a snapshot in the making would have told of that with the schedule.

        Args:
            entry: the schedule, as it was.
            retagged: it gets other tags, so that it must be known of each run that it had none.
        """
        for (handler, tags), keys in self._runs.launched_as(entry).items():
            self._journal.note(RUNS_OF, handler, keys, *([tags] if tags or retagged else []))

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

    def groups(self, key: TaskKey) -> Groups:
        """Returns what an active run counts for."""
        return self._runs.groups(key)

    def expect_load(self, now: int) -> None:
        """Figures of the load are asked for from now on: those of before are not known, and the time without any begins."""
        self._runs.load = Load(now)

    def calm(self, load: Load, now: int) -> list[str]:
        """Takes new figures of the load; schedules with jobs that may be launched by them. Each limit is judged once.

        Args:
            load: the figures.
            now: microseconds since the epoch.
        """
        self._runs.load = load
        situation = Situation(now, load=load)
        return self.waiting([one for one in self._waiting.loads if one.judge(situation, now).met])

    def waiting(self, groups: Iterable[str | MaxLoad], name: str = "") -> list[str]:
        """Schedules with jobs that are looked at again when a run has ended, those whose first job waits for longest first.

        Args:
            groups: what the run counted for, or limits of the load that hold by now.
            name: of the schedule that it was of, which is looked at in any case; empty: that is gone.
        """

        def since(name: str) -> tuple[int, str]:
            entry = self._state.entries.get(name)
            jobs = entry.jobs.values() if entry is not None else ()
            return min((job.first_us for job in jobs if job.state != PENDING_TRIGGER), default=0), name

        return sorted({*self._waiting.of_groups(groups), *([name] if name else ())}, key=since)

    def look_again(self, name: str, now: int) -> None:
        """Looks again at all jobs of a schedule that wait for the end of a run; what waits for a time has a timer.

        Args:
            name: of the schedule.
            now: microseconds since the epoch.
        """
        entry = self._state.entries.get(name)
        if entry is None:
            return
        asks = bool(entry.jobs) and bool(groups_asked(entry.schedule))
        for job in [job for job in entry.jobs.values() if asks or job.state == PENDING_LAUNCH]:
            if self._journal.full:
                self._timers.add(Timer(now, name, "again", job.generation))
            else:
                self.again(entry, job.generation, now)
        self._waiting.looked_at(entry)


def _cancelled(entry: Entry, run: Run, reason: tuple[str, str]) -> Change:
    return ("cancelled", entry.name, run.generation, *reason)


def _is_skipped(run: Run) -> bool:
    return isinstance(run.cancelled, tuple) and run.cancelled[0] == SKIPPED
