"""A handle on one schedule: how it stands, when it fires next, why it did not, and what is asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from scylla_spark.client.connection import Connection
from scylla_spark.client.handlers import check_payload, known_handlers
from scylla_spark.client.schedules.selection import is_now
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.clock import from_us, now_us
from scylla_spark.core.plan.schedule_state import quick_state, state_of
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.times.breaks import Days
from scylla_spark.core.plan.times.fire_times import Calendars
from scylla_spark.core.plan.times.planned_times import planned_after, times_of
from scylla_spark.core.tasks.key import TaskKey, instant_us
from scylla_spark.errors import ArgumentError, NotFoundError

if TYPE_CHECKING:
    from scylla_spark.client.schedules.backfills import Backfill, BackfillStatus, Period

MOST_RUNS_LISTED: Final = 10_000
_NO_DAYS: Final = Days()
_NEVER_US: Final = 2**63


class ScheduleStatus(NamedTuple):
    """How a schedule stands.

    Attributes:
        name: of the schedule.
        handler: what it runs.
        state: "active", "paused", or "completed": its trigger can never fire again, no job waits and no run is active.
        revision: of its definition.
        trigger: what it listens to.
        next_at: its next fire by time, if there is one; None for one that is paused or completed.
        running: runs whose time has come and that have not ended.
        waiting: jobs that wait for their trigger, constraints, or another run.
        last_success_at: when its last successful run ended.
        failures: failed runs in a row.
        note: why it is paused, or anything else.
        author: who changed it last.
        changed_at: when.
        tags: for lists.
        owner: whom to ask.
        definition: as it was put.
    """

    name: str
    handler: str
    state: str
    revision: int
    trigger: str
    next_at: datetime | None
    running: int
    waiting: int
    last_success_at: datetime | None
    failures: int
    note: str
    author: str
    changed_at: datetime | None
    tags: tuple[str, ...]
    owner: str
    definition: dict[str, Any]


class Fire(NamedTuple):
    """A decision about a schedule.

    Attributes:
        planned_at: the time it is about.
        until_at: the last time, where it is about several.
        decided_at: when it was made.
        verdict: launched, skipped, missed and so on, as in the table `fires`.
        why: as a sentence; None: nothing is to be said.
        task: the run, where one was launched.
        by_hand: somebody asked for it.
    """

    planned_at: datetime
    until_at: datetime | None
    decided_at: datetime
    verdict: str
    why: str | None
    task: TaskKey | None
    by_hand: bool


class ScheduleHandle:
    """One schedule, by its name; making one asks nobody.

    Args:
        connection: to the deployment.
        name: of the schedule.
        author: who asks; stands beside each change.
    """

    def __init__(self, connection: Connection, name: str, author: str = "") -> None:
        self.name = name
        self._connection = connection
        self._author = author or None

    def __repr__(self) -> str:
        return f"ScheduleHandle({self.name!r})"

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Is pickled as its name, from which `Scheduler.schedule` makes a handle."""
        return str, (self.name,)

    def status(self) -> ScheduleStatus:
        """Returns how it stands now.

        Raises:
            NotFoundError: there is no schedule of that name.
        """
        state = self._connection.plan.state()
        return status_of(self._entry(state), state, now_us())

    def pause(self, note: str = "", until: datetime | None = None) -> None:
        """It fires nothing any more; when this returns, nothing can start that is planned for a later time.

        What it has collected is dropped, unless its `on_pause` keeps it. What was launched ahead of its time is taken back.
        Runs whose time has come go on, those that wait in its lane among them.

        Args:
            note: why, for people.
            until: when it goes on by itself (aware).

        Raises:
            ConflictError: it is paused already, and neither note nor end is another.
            NotFoundError: there is none of that name.
        """
        fields: dict[str, Any] = {"until": instant_us(until)} if until is not None else {}
        self._ask("pause", names=[self.name], note=note or None, **fields)

    def resume(self, *, begin: Literal["pause", "now"] = "pause") -> None:
        """It fires again, from now on; what `on_pause` has kept is launched.

        Args:
            begin: where it goes on in the tables that it watches: after what it had run before the pause, so that it runs what has
                come since; or with what comes from now on, so that it does not. What `on_pause` has kept is dropped then.

        Raises:
            ArgumentError: it is to begin now, and the `start` of its trigger names earlier versions.
            ConflictError: it is not paused.
            NotFoundError: there is none of that name.
        """
        self._ask("resume", names=[self.name], fromNow=is_now(begin))

    def delete(self) -> None:
        """It is gone; what it has run stays in the tables.

        Raises:
            NotFoundError: there is none of that name.
        """
        self._ask("delete", names=[self.name])

    def run_now(self, payload: Mapping[str, Any] | None = None) -> TaskHandle:
        """Launches a run at once, whatever else runs.

        Args:
            payload: instead of the schedule's own; it must match the schema that the handler declares for it.

        Raises:
            ArgumentError: its payload cannot be made, or the given one does not match.
            NotFoundError: there is none of that name.
        """
        if payload is not None:
            handler = self._entry(self._connection.plan.state()).handler
            check_payload(known_handlers(self._connection), handler, payload)
        return self.run_unchecked(payload)

    def run_unchecked(self, payload: Mapping[str, Any] | None) -> TaskHandle:
        """Launches a run whose payload was checked before; see `run_now`."""
        done = self._ask("run", name=self.name, payload=dict(payload) if payload is not None else None)
        return TaskHandle(self._connection, TaskKey.parse(done[self.name]))

    def backfill(
        self, begin: datetime | int, end: datetime | int, *, order: str = "oldest", max_running: int = 1, priority: int = 0,
        reprocess: str = "none", exclude: Iterable[Period] = (), dry_run: bool = False,
    ) -> Backfill:  # fmt: skip
        """Runs past planned times, or past versions of the table that it watches, beside what the schedule does by itself.

        Each run knows its planned time, or its versions, as one that the trigger fires does. With versions where the schedule stands in
        its table stays as it is.

        Args:
            begin: the first planned time (aware) … or the last version before those that run …
            end: … and the first that is too late … or the last version; there are at most 1,000 runs.
            order: "oldest" or "newest" first.
            max_running: how many run at once, 1 to 100.
            priority: of their tasks, 0 to 255; the lowest by default.
            reprocess: which of those that ran before run again: "none", "failed", or "all".
            exclude: planned times that are left out (aware), or pairs of the first instant and the first that is too late.
            dry_run: launch nothing.

        Returns:
            What runs, or would, and the tag of its tasks.

        Raises:
            ArgumentError: it does not fire by time, too many times are planned, or one that is to be left out is not; or, with
                versions, it does not watch one table, or that cannot be read from here, or not so far back.
            ConflictError: too many runs of its backfills have not ended.
            NotFoundError: there is none of that name.
        """
        from scylla_spark.client.schedules.backfills import wanted_times, wanted_versions

        entry = self._entry(state := self._connection.plan.state())
        if isinstance(begin, datetime) and isinstance(end, datetime):
            found = wanted_times(self._connection, state, entry, begin, end, order, reprocess, exclude)
        elif type(begin) is int and type(end) is int:
            found = wanted_versions(self._connection, entry, begin, end, order, reprocess, exclude)
        else:
            raise ArgumentError(
                f"A backfill from {begin!r} to {end!r} is none.",
                hint="Give two instants, or two versions as whole numbers.",
            )
        if dry_run or not found.backfill.planned:
            return found.backfill
        done = self._ask("backfill", name=self.name, maxRunning=max_running, priority=priority, **found.fields)
        return found.backfill.model_copy(update={"tag": done.get("tag", "")})

    def backfills(self) -> list[BackfillStatus]:
        """Its backfills, the newest first: how far each is, and when it will be over; the last ten that are over are kept.

        Raises:
            NotFoundError: there is none of that name.
        """
        from scylla_spark.client.schedules.backfills import backfills_of

        return backfills_of(self._entry(self._connection.plan.state()), now_us())

    def pause_backfill(self, tag: str) -> None:
        """Launches no more of a backfill; when this returns, nothing of it begins that had not begun.

        An attempt that a dispatcher runs goes on to its end; if it fails, its run is launched anew when the backfill goes on. What a
        worker has leased ends at once, as with any cancel, and is run again then.

        Args:
            tag: of the backfill, as the answer and the list of backfills name it.

        Raises:
            ArgumentError: no backfill of this schedule can have the tag.
            ConflictError: it is paused already, or over.
            NotFoundError: there is no such schedule, or it has no such backfill.
            WaitTimeoutError: it is done, but no dispatcher has said yet of all that was launched that it has begun or was taken back.
        """
        self._steer_backfill("pause", tag)

    def resume_backfill(self, tag: str) -> None:
        """Lets a paused backfill go on with what it has left, in its order. See `pause_backfill`."""
        self._steer_backfill("resume", tag)

    def cancel_backfill(self, tag: str) -> None:
        """Runs nothing more of a backfill: what has not begun never does. See `pause_backfill` for tag and errors.

        An attempt that a dispatcher runs goes on to its end; if it fails, it is not tried again, and its run counts as cancelled. What
        a worker has leased ends at once, and is not run again.
        """
        self._steer_backfill("cancel", tag)

    def _steer_backfill(self, what: str, tag: str) -> None:
        from scylla_spark.client.schedules.backfills import number_of

        self._ask(f"{what}_backfill", name=self.name, backfill=number_of(self.name, tag))

    def next_runs(self, count: int = 5, after: datetime | None = None) -> list[datetime]:
        """Its next planned times, the first first; empty for one that is paused or fires on what happens.

        Args:
            count: how many, at most.
            after: later than this (aware). Default: now.

        Raises:
            NotFoundError: there is none of that name.
        """
        state = self._connection.plan.state()
        entry = self._entry(state)
        return [] if entry.paused else planned(entry, state, instant_us(after) if after else now_us(), count)

    def previous_runs(self, count: int = 5, before: datetime | None = None) -> list[datetime]:
        """Its last planned times by its definition as it is now, the first first; `fires` says what was decided about them.

        Args:
            count: how many, at most.
            before: earlier than this (aware). Default: now.

        Raises:
            NotFoundError: there is none of that name.
        """
        from scylla_spark.client.schedules.times import preceding

        if not 0 <= count <= MOST_RUNS_LISTED:
            raise ArgumentError(f"{count} times are asked for; at most {MOST_RUNS_LISTED} are listed.")
        state = self._connection.plan.state()
        series, before_us = times_of(self._entry(state).schedule.trigger), instant_us(before) if before else now_us()
        return [from_us(one.at_us) for one in preceding(series, state.calendars, before_us, count) if one.fires]

    def explain(self, at: datetime | None = None) -> list[str]:
        """Returns why it ran or did not, and what it waits for, in sentences.

        Args:
            at: the planned time that is asked about (aware). Default: the last decisions, and how it stands.

        Raises:
            NotFoundError: there never was one of that name.
        """
        from scylla_spark.client.schedules.explanation import explained

        at_us = None if at is None else instant_us(at)
        return explained(self._connection, self._connection.plan.state(), self.name, at_us, now_us()).said

    def fires(self, since: datetime | None = None, limit: int = 100) -> list[Fire]:
        """Returns what was decided about it, the newest first, by the tables and the planner's log; without Spark.

        Args:
            since: decided at or after this (aware). Default: at any time.
            limit: how many, at most.

        Raises:
            ArgumentError: the limit is no number from 1 to 10,000.
            NotFoundError: there never was one of that name.
        """
        from scylla_spark.client.schedules.explanation import gone
        from scylla_spark.client.schedules.history import history

        if not 1 <= limit <= MOST_RUNS_LISTED:
            raise ArgumentError(f"{limit} decisions are asked for.", hint=f"1 to {MOST_RUNS_LISTED} are listed.")
        past = history(self._connection, self.name)
        rows = past.fires(None if since is None else instant_us(since), limit)
        if not rows and self.name not in self._connection.plan.state().entries:
            gone(past, self.name)
        return [_fire(row) for row in rows]

    def _ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._connection.plan.ask(kind, author=self._author, **fields).done

    def _entry(self, state: PlanState) -> Entry:
        found = state.entries.get(self.name)
        if found is None:
            raise NotFoundError(
                f"There is no schedule {self.name!r}.", hint="`scylla-spark schedule list` names all.", name=self.name
            )
        return found


def planned(entry: Entry, state: PlanState, after_us: int, count: int) -> list[datetime]:
    """Planned times of a schedule after an instant.

    Args:
        entry: the schedule.
        state: for its calendars.
        after_us: later than this, microseconds since the epoch.
        count: how many, at most.

    Raises:
        ArgumentError: too many are asked for.
    """
    if not 0 <= count <= MOST_RUNS_LISTED:
        raise ArgumentError(f"{count} times are asked for; at most {MOST_RUNS_LISTED} are listed.")
    ahead = planned_after(times_of(entry.schedule.trigger), after_us, state.calendars)
    return [from_us(at) for at in islice(ahead, count)]


@lru_cache(maxsize=10_000)
def _known_next(_name: str, _changed_us: int, _revision: int, _days: tuple[Days, ...]) -> list[tuple[int, int]]:
    """Returns where the next time of a schedule is kept: since when it is the next, and the time; microseconds since the epoch."""
    return [(0, 0)]


def _next_us(entry: Entry, calendars: Calendars, now: int) -> int | None:
    """The next planned time of a schedule. It is kept until it has come, as lists ask for those of thousands."""
    series = times_of(entry.schedule.trigger)
    days = tuple(calendars.get(one.calendar, _NO_DAYS) for one in series if one.calendar)
    kept = _known_next(entry.name, entry.changed_us, entry.revision, days)
    since_us, at_us = kept[0]
    if not since_us <= now < at_us:
        at_us = next(planned_after(series, now, calendars), _NEVER_US)
        kept[0] = now, at_us
    return at_us if at_us < _NEVER_US else None


def status_of(entry: Entry, state: PlanState, now: int, *, is_exact: bool = True) -> ScheduleStatus:
    """Returns how a schedule stands.

    Args:
        entry: of the planner's state.
        state: for its calendars.
        now: microseconds since the epoch.
        is_exact: looks at its rules; else it is active unless it is paused, and its next time is when the planner decides.
    """
    schedule = entry.schedule
    if is_exact:
        stands = state_of(entry, state.calendars, now)
        following_us = _next_us(entry, state.calendars, now) if stands == "active" else None
    else:
        stands = quick_state(entry) or "active"
        following_us = entry.next_us or None if stands == "active" else None
    return ScheduleStatus(
        entry.name, entry.handler, stands, entry.revision,
        ", ".join(key for key in entry.keys if key.partition(":")[0] in _LISTENED),
        None if following_us is None else from_us(following_us),
        sum(run.key.time_us <= now for run in entry.runs.values()), len(entry.jobs),
        from_us(entry.last_success_us) if entry.last_success_us else None, entry.failures, entry.note, entry.author,
        from_us(entry.changed_us) if entry.changed_us else None, schedule.tags, schedule.owner, schedule.definition,
    )  # fmt: skip


def _fire(row: Mapping[str, Any]) -> Fire:
    task = None
    if row["uniqueness_key"] is not None:
        task = TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"])
    until_us = row["until_at"]
    return Fire(
        from_us(row["planned_at"]), None if until_us is None else from_us(until_us), from_us(row["decided_at"]), row["verdict"],
        row["why"], task, bool(row["by_hand"]),
    )  # fmt: skip


_LISTENED: Final = frozenset({"time", "event", "dataset", "work", "table", "topic", "batch", "manual"})
