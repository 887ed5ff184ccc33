"""Schedules as people write them in Python: `Schedule`, `Trigger`, `Constraint`. Each is a JSON definition, judged when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from scylla_spark.clock import iso
from scylla_spark.core.plan.schedule_format import read_schedule
from scylla_spark.core.plan.times.recurrence import default_start
from scylla_spark.core.plan.trigger_format import read_trigger
from scylla_spark.core.tasks.key import instant_us
from scylla_spark.core.tasks.tags import check_collection
from scylla_spark.core.tasks.task import NOT_GIVEN, Retry
from scylla_spark.duration import duration_text
from scylla_spark.errors import ArgumentError

_Duration = timedelta | str | float
_Ends = Literal["succeeded", "failed", "cancelled"]


class Trigger:
    """What a schedule waits for. `a & b` waits for both, `a | b` for either; each branch stays latched until the launch.

    Args:
        definition: as it travels; the class methods make it.

    Raises:
        ArgumentError: it can never fire, or is none.
    """

    __slots__ = ("definition",)

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self.definition: dict[str, Any] = _without_none(definition)
        read_trigger(self.definition)

    def __repr__(self) -> str:
        return f"Trigger({self.definition})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trigger) and self.definition == other.definition

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Trigger) -> Trigger:
        return Trigger({"kind": "all", "of": [*self._parts("all"), *other._parts("all")]})

    def __or__(self, other: Trigger) -> Trigger:
        return Trigger({"kind": "any", "of": [*self._parts("any"), *other._parts("any")]})

    def _parts(self, kind: str) -> list[dict[str, Any]]:
        flat = self.definition["kind"] == kind and self.definition.keys() == {"kind", "of"}
        return list(self.definition["of"]) if flat else [self.definition]

    # -- time -----------------------------------------------------------------------------------------------------------

    @classmethod
    def cron(
        cls, expression: str, tz: str = "UTC", *, gap: str | None = None, fold: str | None = None, **options: Any
    ) -> Trigger:
        """Fires at the local times that an expression of five or six fields names; several are set apart by "|".

        Args:
            expression: as Debian's cron reads it; with six fields the second comes first.
            tz: IANA name.
            gap: what becomes of a local time that a clock skips: "next" (default) or "skip".
            fold: what becomes of one that comes twice: "first" (default) or "both".
            **options: bounds, calendar, jitter: see `every`.
        """
        expressions = [part.strip() for part in expression.split("|")]
        found: Any = expressions if len(expressions) > 1 else expressions[0]
        return cls({"kind": "cron", "expression": found, "tz": tz, "gap": gap, "fold": fold} | _options(options))

    @classmethod
    def every(cls, period: _Duration, *, phase: _Duration | None = None, **options: Any) -> Trigger:
        """Fires at a fixed distance, on a grid that begins at the epoch (or at `start_at`), so that no restart moves it.

        Args:
            period: distance (duration), a second at least.
            phase: of the first instant, from the epoch.
            **options: `start_at`, `end_at` (aware datetimes), `count` (how many from `start_at`), `jitter` (duration), `calendar`
                with `on_holiday` ("skip", "next", "previous"), `blackout` (list of pairs of datetimes), `tz` of the calendar.
        """
        found = {"kind": "every", "period": _span(period), "phase": None if phase is None else _span(phase)}
        return cls(found | _options(options))

    @classmethod
    def at(cls, *times: datetime, **options: Any) -> Trigger:
        """Fires at single instants (aware datetimes)."""
        return cls({"kind": "at", "times": [_instant(time) for time in times]} | _options(options))

    @classmethod
    def rrule(cls, rule: str, start: str | None = None, tz: str = "UTC", **options: Any) -> Trigger:
        """Fires as a rule of RFC 5545 says.

        Args:
            rule: such as "FREQ=MONTHLY;BYDAY=-1FR".
            start: its first possible local time, ISO form without an offset. Default: 1970-01-01T00:00:00, from which an INTERVAL counts,
                and from which the rule takes what it leaves out: the time of day, and without BY… parts the day (a Thursday).
            tz: IANA name.
            **options: bounds, calendar, jitter: see `every`.

        Raises:
            ArgumentError: it is no rule, or one with COUNT and without a start.
        """
        start = default_start(rule) if start is None else start
        return cls({"kind": "rrule", "rule": rule, "start": start, "tz": tz} | _options(options))

    # -- what happens ---------------------------------------------------------------------------------------------------

    @classmethod
    def event(cls, name: str, where: Mapping[str, Any] | None = None) -> Trigger:
        """Fires on an event of that name that was emitted, if its fields have these values."""
        return cls({"kind": "event", "name": name, "where": dict(where) if where else None})

    @classmethod
    def partitions(
        cls, dataset: str, at_least: int = 1, *, rows: int | None = None, size: int | None = None
    ) -> Trigger:
        """Fires when so much of a dataset was told of since the last launch.

        Args:
            dataset: its name, as notifications call it.
            at_least: so many partitions.
            rows: … and rows.
            size: … and bytes.
        """
        return cls({"kind": "partitions", "dataset": dataset, "atLeast": at_least, "rows": rows, "bytes": size})

    @classmethod
    def after(
        cls, work: str, on: Iterable[_Ends] | Literal["started"] = ("succeeded",), at_least: int | None = None
    ) -> Trigger:
        """Fires when a run of a schedule, or any task of a handler, has ended so, or has begun.

        Args:
            work: name of the schedule or handler.
            on: which ends count; or "started", alone: begins do, each run once, however often it is tried.
            at_least: so many of them, since the last launch. Default: one.
        """
        return cls(
            {"kind": "after", "work": work, "on": [on] if isinstance(on, str) else sorted(on), "atLeast": at_least}
        )

    @classmethod
    def batch(cls, tag: str, size: int) -> Trigger:
        """Fires when so many tasks that carry a tag have ended, each once and however it did; then counting begins anew.

        Templates know how they did: `{{ batch.failed }}`, and `succeeded`, `cancelled`, `ended`.

        Args:
            tag: as tasks are enqueued with.
            size: how many tasks the batch has.
        """
        return cls({"kind": "batch", "tag": tag, "size": size})

    @classmethod
    def table(
        cls, table: str, *, min_rows: int | None = None, min_commits: int | None = None,
        min_bytes: int | None = None, operations: Sequence[str] | None = None,
        where: Iterable[tuple[str, str, Any]] | None = None, settle: _Duration | None = None,
        at_most_every: _Duration | None = None, at_least_every: _Duration | None = None,
        per: str | None = None, start: str | int | None = None,
    ) -> Trigger:  # fmt: skip
        """Fires when a Delta table has grown; each run owns the versions after those of the run before, up to its own.

        Args:
            table: folder or URI, or a name that setting `plan.tables` knows.
            min_rows: at least so many new rows.
            min_commits: at least so many commits.
            min_bytes: the new files of these commits have at least so many bytes, as the log says. Not with `where`.
            operations: which commits count, such as ["append", "merge"]; default: all that change data.
            where: which rows count: (column, comparison, value).
            settle: the table must have been quiet for so long (duration).
            at_most_every: not more often than this (duration).
            at_least_every: so long after the last run, less than that is enough, if anything counts (duration).
            per: column of partitions, each of which fires for itself.
            start: "now" (default), "earliest", or the last version that does not count.
        """
        conditions = [{"column": column, "comparison": how, "value": value} for column, how, value in where or ()]
        return cls({
            "kind": "table", "table": table, "minRows": min_rows, "minCommits": min_commits,
            "minBytes": min_bytes, "operations": list(operations) if operations else None, "where": conditions or None,
            "settle": _span(settle),
            "atMostEvery": _span(at_most_every), "atLeastEvery": _span(at_least_every), "per": per, "start": start,
        })  # fmt: skip

    @classmethod
    def topic(
        cls, topic: str, *, records: int | None = None, bytes: int | None = None,
        at_most_every: _Duration | None = None, at_least_every: _Duration | None = None, start: str | None = None,
    ) -> Trigger:  # fmt: skip
        """Fires when a Kafka topic has grown; each run owns the records after those of the run before, in all partitions.

        Templates know the offsets: `{{ topic.partitions }}` maps each partition to its first and its last offset.

        Args:
            topic: its name, on the brokers of this deployment.
            records: at least so many new records, counted by offsets. Default: one.
            bytes: their batches take at least so many bytes in the topic, as they are compressed there.
            at_most_every: not more often than this (duration).
            at_least_every: so long after the last run, a single record is enough (duration).
            start: "now" (default), or "earliest": records that are there already count.
        """
        return cls({
            "kind": "topic", "topic": topic, "records": records, "bytes": bytes,
            "atMostEvery": _span(at_most_every), "atLeastEvery": _span(at_least_every), "start": start,
        })  # fmt: skip

    @classmethod
    def absent(cls, of: Trigger, within: _Duration) -> Trigger:
        """Fires once when nothing came of a table, dataset or event for so long, or no run ended so; again only after it came.

        Args:
            of: `table`, `partitions`, `event` or `after`, whose occurrences are missing.
            within: for so long (duration), a second at least.
        """
        return cls({"kind": "absent", "of": of.definition, "within": _span(within)})

    @classmethod
    def manual(cls) -> Trigger:
        """Never fires. The schedule is a template: each run is asked for, by `run`, with a payload of its own if need be."""
        return cls({"kind": "manual"})

    # -- logic ----------------------------------------------------------------------------------------------------------

    @classmethod
    def any_of(cls, at_least: int, *triggers: Trigger) -> Trigger:
        """Fires when so many of some triggers have fired since the last launch."""
        return cls({"kind": "any", "of": [trigger.definition for trigger in triggers], "atLeast": at_least})


class Constraint:
    """What must hold before a job whose trigger holds is launched; else it waits, or is dropped.

    Args:
        definition: as it travels; the class methods make it.
    """

    __slots__ = ("definition",)

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self.definition: dict[str, Any] = _without_none(definition)

    def __repr__(self) -> str:
        return f"Constraint({self.definition})"

    @classmethod
    def max_running(cls, most: int, otherwise: str = "abort", *, tag: str | None = None) -> Constraint:
        """At most so many runs are active; tasks that somebody enqueues are not counted.

        Args:
            most: so many, this one included.
            otherwise: "abort" to drop the job, or "wait".
            tag: counts the runs of all schedules with this tag, whatever their handler. Default: the runs of the handler, of whichever
                schedule.
        """
        return cls({"kind": "concurrency", "most": most, "otherwise": otherwise, "tag": tag})

    @classmethod
    def delay(cls, delay: _Duration) -> Constraint:
        """So long (duration) must have passed since the first event of the job."""
        return cls({"kind": "delay", "delay": _span(delay)})

    @classmethod
    def last_run(cls, within: _Duration, otherwise: str = "abort") -> Constraint:
        """No run of the handler is active, and none succeeded within this time (duration); tasks that somebody enqueues do not count."""
        return cls({"kind": "last_run", "within": _span(within), "otherwise": otherwise})

    @classmethod
    def time_range(cls, begin: str, end: str, tz: str = "UTC", otherwise: str = "wait") -> Constraint:
        """The local time lies in a range, which may go over midnight.

        Args:
            begin: "HH:MM" …
            end: … and where it ends, itself excluded.
            tz: IANA name.
            otherwise: "wait", or "abort" to drop the job.
        """
        return cls({"kind": "time_range", "begin": begin, "end": end, "tz": tz, "otherwise": otherwise})

    @classmethod
    def load(
        cls,
        *,
        ready: int | None = None,
        running: int | None = None,
        oldest: _Duration | None = None,
        queue: str | None = None,
        otherwise: str = "wait",
    ) -> Constraint:
        """A queue, or the deployment, has no more to do than this.

        The planner asks the dispatchers every 5 s. If they have not answered for a minute, the constraint holds.

        Args:
            ready: at most so many lanes have a task that is due and has not started …
            running: … at most so many tasks run …
            oldest: … and no ready task has waited longer (duration).
            queue: whose figures. Default: those of the deployment.
            otherwise: "wait", or "abort" to drop the job.
        """
        longest = None if oldest is None else _span(oldest)
        limits = {"ready": ready, "running": running, "oldest": longest, "queue": queue}
        return cls({"kind": "load", **limits, "otherwise": otherwise})

    @classmethod
    def check(cls, handler: str, *, timeout: _Duration | None = None) -> Constraint:
        """A handler of yours answers that the job may be launched; it is asked once all other constraints hold.

        Its result is "satisfied", "never" (the job is dropped) or {"wait": duration} (it is asked again then). Three tasks in a row
        that fail, time out or answer something else count as "never".

        Args:
            handler: name of the handler; its tasks go into the queue of the schedule, with no second attempt.
            timeout: longest run of the handler (duration). Default: 30 s. After a failure it is asked again after as long.
        """
        span = None if timeout is None else _span(timeout)
        return cls({"kind": "check", "handler": handler, "timeout": span})

    @classmethod
    def rate(cls, most: int, per: _Duration, otherwise: str = "wait", *, tag: str | None = None) -> Constraint:
        """Launches are not more frequent than this.

        Args:
            most: so many …
            per: … within any stretch of this length (duration).
            otherwise: "wait", or "abort" to drop the job.
            tag: counts the launches of all schedules with this tag. Default: those of the schedule.
        """
        return cls({"kind": "rate", "most": most, "per": _span(per), "otherwise": otherwise, "tag": tag})


@dataclass(frozen=True)
class Schedule:
    """What is to run, when, and what becomes of fires that find another run active or come late.

    Attributes:
        name: unique.
        handler: what a fire runs.
        trigger: what it waits for.
        payload: template of the payload, with places such as `{{ planned | date("%Y-%m-%d") }}`.
        constraints: what must hold before a launch.
        overlap: what a fire does that finds a run active: "skip", "buffer_one", "buffer_all", "cancel_other", "allow_all". Default:
            "skip" for times, and "buffer_all" for what comes in, since that must not be lost.
        max_running: with "skip": how many may be active.
        catch_up: which of the times that were missed while nobody planned are run: "latest", "all", "none".
        catch_up_window: older ones are skipped (duration).
        queue: of the tasks.
        priority: of the tasks, 0 to 255.
        lane: ordering id of all runs; default: as `overlap` wants it.
        timeout: longest run of an attempt (duration).
        expires: a run that has not begun so long after its planned time ends as expired, or is not launched (duration).
        retry: when a failed run is tried again.
        pause_after_failures: so many failed runs in a row pause the schedule.
        late_after: a run that starts later than this is told of (duration).
        end_within: a run that has not ended by then is told of (duration).
        expect_every: a schedule that has not succeeded for so long is told of (duration).
        job_timeout: how long a job may wait for its trigger or its constraints (duration).
        on_job_timeout: what becomes of it then: "cancel" drops it, "run" launches it with what there is, and `ctx.missing` of the
            handler has the conditions that did not hold.
        on_pause: what becomes of what comes during a pause: "drop", "keep" (the resume makes one run of it) or "backlog" (one run of
            each, at most 1,000, one after the other).
        paused: it fires nothing until it is resumed.
        note: for people.
        owner: whom to ask; `put_schedules(prune=OWNER)` removes what else that owner has.
        tags: for lists.

    Raises:
        ArgumentError: it is none; the message names the field.
    """

    name: str
    handler: str
    trigger: Trigger
    payload: Mapping[str, Any] | None = None
    constraints: Sequence[Constraint] = ()
    overlap: str | None = None
    max_running: int | None = None
    catch_up: str | None = None
    catch_up_window: _Duration | None = None
    queue: str | None = None
    priority: int | None = None
    lane: str | None = None
    timeout: _Duration | None = None
    expires: _Duration | None = None
    retry: Retry | None = None
    pause_after_failures: int | None = None
    late_after: _Duration | None = None
    end_within: _Duration | None = None
    expect_every: _Duration | None = None
    job_timeout: _Duration | None = None
    on_job_timeout: str | None = None
    on_pause: str | None = None
    paused: bool | None = None
    note: str | None = None
    owner: str | None = None
    tags: Sequence[str] = ()
    definition: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_collection(self.tags)
        self._set_definition()
        read_schedule(self.definition)

    def _set_definition(self) -> None:
        retry = self.retry
        found: dict[str, Any] = {
            "name": self.name, "handler": self.handler, "trigger": self.trigger.definition,
            "payload": dict(self.payload) if self.payload is not None else None,
            "constraints": [constraint.definition for constraint in self.constraints] or None, "overlap": self.overlap,
            "maxRunning": self.max_running, "catchUp": self.catch_up, "catchUpWindow": _span(self.catch_up_window),
            "queue": self.queue, "priority": self.priority, "lane": self.lane, "timeout": _span(self.timeout),
            "expires": _span(self.expires),
            "pauseAfterFailures": self.pause_after_failures, "lateAfter": _span(self.late_after),
            "endWithin": _span(self.end_within), "expectEvery": _span(self.expect_every), "jobTimeout": _span(self.job_timeout),
            "onJobTimeout": self.on_job_timeout, "onPause": self.on_pause,
            "paused": self.paused, "note": self.note, "owner": self.owner, "tags": list(self.tags) or None,
            "retry": None if retry is None else _retry(retry),
        }  # fmt: skip
        object.__setattr__(self, "definition", _without_none(found))

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> Schedule:
        """The schedule of a JSON definition, as files, `schedule show -o json` and the topic `schedules` have it.

        Raises:
            ArgumentError: it is none; the message names the field.
        """
        read_schedule(dict(definition))
        plain = {_ATTRIBUTES.get(name, name): value for name, value in definition.items()}
        retry = plain.get("retry")
        fields = plain | {
            "trigger": _judged_trigger(plain["trigger"]),
            "constraints": [Constraint(one) for one in plain.get("constraints", ())],
            "retry": None if retry is None else Retry(**{_ATTRIBUTES.get(name, name): retry[name] for name in retry}),
        }  # fmt: skip
        made = object.__new__(cls)  # it is judged already, and a file may hold thousands
        for one in dataclass_fields(cls):
            if one.init:
                object.__setattr__(made, one.name, fields.get(one.name, one.default))
        made._set_definition()
        return made


def _judged_trigger(definition: Mapping[str, Any]) -> Trigger:
    """A trigger whose definition was judged as a part of its schedule."""
    made = object.__new__(Trigger)
    made.definition = _without_none(definition)
    return made


_ATTRIBUTES: Final = {
    "maxRunning": "max_running", "catchUp": "catch_up", "catchUpWindow": "catch_up_window", "lateAfter": "late_after",
    "pauseAfterFailures": "pause_after_failures", "endWithin": "end_within", "expectEvery": "expect_every",
    "jobTimeout": "job_timeout", "onJobTimeout": "on_job_timeout", "onPause": "on_pause",
    "maxRetries": "max_retries",
}  # fmt: skip
_TIMES: Final = {"start_at": "startAt", "end_at": "endAt"}
_PLAIN: Final = {"calendar": "calendar", "on_holiday": "onHoliday", "tz": "tz", "count": "count"}


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(given.keys() - _TIMES.keys() - _PLAIN.keys() - {"jitter", "blackout"})
    if unknown:
        raise ArgumentError(
            f"A trigger by time has no {unknown[0]!r}.",
            hint=f"It has {', '.join(sorted([*_TIMES, *_PLAIN, 'jitter', 'blackout']))}.",
        )
    found: dict[str, Any] = {_TIMES[name]: _instant(given[name]) for name in _TIMES if given.get(name) is not None}
    found |= {_PLAIN[name]: given[name] for name in _PLAIN if given.get(name) is not None}
    if given.get("jitter") is not None:
        found["jitter"] = _span(given["jitter"])
    if given.get("blackout"):
        found["blackout"] = [[_instant(begin), _instant(end)] for begin, end in given["blackout"]]
    return found


def _span(value: _Duration | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return duration_text(value if isinstance(value, timedelta) else timedelta(seconds=value))


def _instant(value: datetime) -> str:
    return iso(instant_us(value))


def _retry(retry: Retry) -> dict[str, Any]:
    """Returns what a policy says, without what it leaves out."""
    count, *waits = retry.terms
    found: dict[str, Any] = {} if count == NOT_GIVEN else {"maxRetries": count}
    return found | {name: f"{ms}ms" for name, ms in zip(("base", "cap"), waits, strict=True) if ms != NOT_GIVEN}


def _without_none(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}
