"""Constraints: what must hold before a job that has fired is launched; else it waits, or is dropped.

All instants and durations are integer microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal, NamedTuple

from scylla_spark.core.plan.load import FRESH_US, STALE_US, Load
from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.zone import DAY_US
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError

Otherwise = Literal["wait", "abort"]

MOST: Final = 1_000_000
MOST_RATE: Final = 1_000  # so many launches are remembered
_MINUTES: Final = 24 * 60


class Asked(NamedTuple):
    """The state of the check of a job.

    Attributes:
        key: the task that is to answer; None: there is none.
        again_us: when to ask again; 0: at once.
        failures: tasks in a row that gave no answer.
        number: of the last task.
    """

    key: TaskKey | None = None
    again_us: int = 0
    failures: int = 0
    number: int = 0

    @classmethod
    def of(cls, found: Sequence[Any]) -> Asked:
        """From a list of its fields."""
        key, *rest = found
        return cls(TaskKey(*key) if key is not None else None, *rest)


class TagUse(NamedTuple):
    """The runs that schedules with a tag have launched.

    Attributes:
        active: runs that were launched under the tag and have not ended.
        launches_us: when such runs were launched lately, oldest first; runs by hand are left out.
    """

    active: int = 0
    launches_us: Sequence[int] = ()


class Situation(NamedTuple):
    """What constraints look at.

    Attributes:
        first_event_us: when the first event of the job came.
        active: runs of the same work that were launched and have not ended, by whomever: running, leased, waiting for a retry.
        last_success_us: when the last successful run of the work ended; None: there was none.
        launches_us: when this schedule was launched lately, the oldest first.
        tags: tag that a constraint names → what the schedules with it have launched.
        load: the newest figures of the dispatchers; None: the planner alone knows them.
        asked: the state of the check of the job.
    """

    first_event_us: int
    active: int = 0
    last_success_us: int | None = None
    launches_us: Sequence[int] = ()
    tags: Mapping[str, TagUse] = {}
    load: Load | None = None
    asked: Asked = Asked()


class Judgement(NamedTuple):
    """What a constraint says now.

    Attributes:
        met: it holds.
        why: what it compares, with the values; for people.
        again_us: when time alone may change the answer; None: only something that happens does.
        unjudged: it holds only because it could not be judged.
        asks: it does not hold, and its check may be asked now.
    """

    met: bool
    why: str
    again_us: int | None = None
    unjudged: bool = False
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most so many runs are active at once, this one included: of the work, or of all schedules with a tag."""

    name: ClassVar[str] = "max_running"
    most: int
    otherwise: Otherwise = "abort"
    tag: str = ""

    def judge(self, situation: Situation, now: int) -> Judgement:
        """Whether there is room for another run."""
        active = situation.tags.get(self.tag, TagUse()).active if self.tag else situation.active
        return Judgement(active < self.most, f"{active} of at most {self.most} runs{_tagged(self.tag)} are active")


@dataclass(frozen=True, slots=True)
class Delay:
    """So long must have passed since the first event. It can only be waited for."""

    name: ClassVar[str] = "delay"
    delay_us: int
    otherwise: Otherwise = "wait"

    def judge(self, situation: Situation, now: int) -> Judgement:
        """Whether the time is over."""
        until_us = situation.first_event_us + self.delay_us
        passed_s = (now - situation.first_event_us) / 1e6
        return Judgement(
            now >= until_us, f"{passed_s:g} s of {self.delay_us / 1e6:g} s have passed since the first event", until_us
        )


@dataclass(frozen=True, slots=True)
class LastRun:
    """No run is active, and none that ended within this time succeeded."""

    name: ClassVar[str] = "last_run"
    within_us: int
    otherwise: Otherwise = "abort"

    def judge(self, situation: Situation, now: int) -> Judgement:
        """Whether the last run is long enough ago."""
        if situation.active:
            return Judgement(False, f"{situation.active} runs are active")
        if situation.last_success_us is None:
            return Judgement(True, "no run has succeeded yet")
        until_us = situation.last_success_us + self.within_us
        ago_s = (now - situation.last_success_us) / 1e6
        why = f"the last success ended {ago_s:g} s ago; it must be {self.within_us / 1e6:g} s"
        return Judgement(now >= until_us, why, until_us)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The local time lies in [begin, end), which may go over midnight.

    Attributes:
        begin: minutes since local midnight …
        end: … excluded.
        tz: IANA name.
    """

    name: ClassVar[str] = "time_range"
    begin: int
    end: int
    tz: str = "UTC"
    otherwise: Otherwise = "wait"

    def judge(self, situation: Situation, now: int) -> Judgement:
        """Whether the clock on the wall shows a time of the range."""
        return self.at(now)

    def at(self, now: int) -> Judgement:
        """The same; it depends on the time alone."""
        offset = zone.offset_us(self.tz, now)
        here = zone.local(now, offset)
        minute = here.hour * 60 + here.minute
        inside = self._holds(minute)
        why = f"it is {_clock(minute)} in {self.tz}; allowed is {_clock(self.begin)} to {_clock(self.end)}"
        return Judgement(inside, why, None if inside else self._next_begin(now, offset))

    def _holds(self, minute: int) -> bool:
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end

    def _next_begin(self, now: int, offset: int) -> int:
        """Returns when the range begins, or a clock is set before, which may bring it nearer."""
        here = zone.local(now, offset)
        begin = here.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(minutes=self.begin)
        at_us = zone.instant(begin if begin > here else begin + timedelta(days=1), offset)
        step = zone.step_between(self.tz, now, at_us)
        return at_us if step is None else step.at_us


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many launches within any stretch of this length: of the schedule, or of all schedules with a tag."""

    name: ClassVar[str] = "rate"
    most: int
    per_us: int
    otherwise: Otherwise = "wait"
    tag: str = ""

    def judge(self, situation: Situation, now: int) -> Judgement:
        """Whether another launch fits."""
        most = min(self.most, MOST_RATE)  # of a definition that was stored when more were allowed
        launches_us = situation.tags.get(self.tag, TagUse()).launches_us if self.tag else situation.launches_us
        recent = [at for at in launches_us if at > now - self.per_us]
        why = f"{len(recent)} of at most {most} launches{_tagged(self.tag)} in {self.per_us / 1e6:g} s"
        if len(recent) < most:
            return Judgement(True, why)
        return Judgement(False, why, recent[-most] + self.per_us)


@dataclass(frozen=True, slots=True)
class MaxLoad:
    """A queue, or the deployment, has no more to do than this, by figures of its dispatchers.

    Attributes:
        ready: lanes whose first task is due and has not started; None: any number.
        running: tasks that run; None: any number.
        oldest_us: how long the oldest ready task has waited, microseconds; None: any time.
        queue: empty: the deployment.
    """

    name: ClassVar[str] = "load"
    ready: int | None = None
    running: int | None = None
    oldest_us: int | None = None
    queue: str = ""
    otherwise: Otherwise = "wait"

    def judge(self, situation: Situation, now: int) -> Judgement:
        """Compares the newest figures; old ones are waited for, and after a minute without any the constraint holds."""
        load = situation.load
        if load is None:
            return Judgement(
                False, f"it waits until {self._place} has at most {self._limits()}, by figures of the planner"
            )
        age_us, stale_us = now - load.at_us, load.at_us + STALE_US
        if age_us >= STALE_US:
            why = f"the load of {self._place} was not judged: there are no figures of the last {age_us // 1_000_000} s"
            return Judgement(True, why, unjudged=True)
        if age_us > FRESH_US or not load.is_known:
            why = f"the newest figures of the load of {self._place} are {age_us // 1_000_000} s old"
            return Judgement(
                False, why if load.is_known else f"there are no figures of the load of {self._place} yet", stale_us
            )
        figures = load.of(self.queue)
        met = (
            (self.ready is None or figures.ready <= self.ready)
            and (self.running is None or figures.running <= self.running)
            and (self.oldest_us is None or figures.oldest_us <= self.oldest_us)
        )
        why = (
            f"{self._place} has {figures.ready} ready tasks, {figures.running} that run, and the oldest ready one has waited "
            f"{figures.oldest_us / 1e6:g} s; at most are {self._limits()}"
        )
        return Judgement(met, why, None if met else stale_us)

    @property
    def _place(self) -> str:
        return f"the queue {self.queue!r}" if self.queue else "the deployment"

    def _limits(self) -> str:
        limits = [
            *([f"{self.ready} ready"] if self.ready is not None else []),
            *([f"{self.running} running"] if self.running is not None else []),
            *([f"{self.oldest_us / 1e6:g} s of waiting"] if self.oldest_us is not None else []),
        ]
        return ", ".join(limits)


@dataclass(frozen=True, slots=True)
class Check:
    """A handler of the user answers that the job may be launched. It is asked once all other constraints hold.

    Attributes:
        handler: its name.
        timeout_us: longest run of the handler, microseconds.
    """

    name: ClassVar[str] = "check"
    handler: str
    timeout_us: int = 30_000_000
    otherwise: Otherwise = "wait"

    def judge(self, situation: Situation, now: int) -> Judgement:
        """Never holds by itself: the answer lets the job be launched."""
        asked = situation.asked
        if asked.key is not None:
            return Judgement(False, f"the check {self.handler!r} has not answered yet; its task: {asked.key}")
        failed = f"; it has failed {asked.failures} times in a row" if asked.failures else ""
        if now < asked.again_us:
            return Judgement(False, f"the check {self.handler!r} is asked again later{failed}", asked.again_us)
        return Judgement(False, f"the check {self.handler!r} is asked{failed}", asks=True)


Constraint = Concurrency | Delay | LastRun | TimeRange | Rate | MaxLoad | Check


class Decision(NamedTuple):
    """What all constraints of a job say together.

    Attributes:
        launch: all hold.
        drop: one does not hold that is not waited for.
        again_us: when to ask again, if nothing happens before; None: only then.
        unmet: what does not hold, in words.
        names: of these constraints, as definitions call them.
        unjudged: what holds only because it could not be judged, in words.
        room_us: tag whose rate does not hold → when it does next; all that waits for it is then looked at in order.
        asks: all hold but a check, which may be asked now.
    """

    launch: bool
    drop: bool
    again_us: int | None
    unmet: tuple[str, ...]
    names: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    room_us: Mapping[str, int] = {}
    asks: bool = False


def decide(constraints: Iterable[Constraint], situation: Situation, now: int) -> Decision:
    """Judges a job that has fired.

    Args:
        constraints: of its schedule; none: it is launched.
        situation: as it is now.
        now: microseconds since the epoch.
    """
    judged = [(constraint, constraint.judge(situation, now)) for constraint in constraints]
    unmet = [(constraint, judgement) for constraint, judgement in judged if not judgement.met]
    drop = any(constraint.otherwise == "abort" for constraint, _ in unmet)
    later = [(one, judgement.again_us) for one, judgement in unmet if judgement.again_us is not None]
    room_us = {one.tag: again_us for one, again_us in later if isinstance(one, Rate) and one.tag}
    again = [again_us for one, again_us in later if not (isinstance(one, Rate) and one.tag)]
    return Decision(
        launch=not unmet,
        drop=drop,
        again_us=max(again, default=None),
        unmet=tuple(judgement.why for _, judgement in unmet),
        names=tuple(constraint.name for constraint, _ in unmet),
        unjudged=tuple(judgement.why for _, judgement in judged if judgement.unjudged),
        room_us=room_us,
        asks=len(unmet) == 1 and unmet[0][1].asks,
    )


def tags_counted(constraints: Iterable[Constraint]) -> set[str]:
    """Returns the tags whose runs or launches are counted by some constraints."""
    return {one.tag for one in constraints if isinstance(one, Concurrency | Rate) and one.tag}


def checked(constraint: Constraint) -> Constraint:
    """The constraint, if it can be met at all.

    Raises:
        ArgumentError: a limit is below one, a duration is not positive, begin and end are the same, or the zone does not exist.
    """
    if constraint.otherwise not in ("wait", "abort"):
        raise ArgumentError(f"There is no otherwise={constraint.otherwise!r}.", hint='It is "wait" or "abort".')
    match constraint:
        case Concurrency(most) if not 1 <= most <= MOST:
            raise ArgumentError(f"At most {most} runs at once: nothing would ever run.", hint=f"1 to {MOST}.")
        case Rate(most, per) if not 1 <= most <= MOST or not _is_span(per):
            raise ArgumentError("A rate is at least one launch per span of a millisecond to a century.")
        case Delay(delay) if not _is_span(delay):
            raise ArgumentError("A delay lies between a millisecond and a century.")
        case Delay(_, "abort"):
            raise ArgumentError("A delay can only be waited for.", hint='Leave otherwise="wait".')
        case LastRun(within) if not _is_span(within):
            raise ArgumentError("The time since the last run lies between a millisecond and a century.")
        case Check(_, timeout) if not _is_span(timeout):
            raise ArgumentError("The timeout of a check lies between a millisecond and a century.")
        case Check(_, _, "abort"):
            raise ArgumentError("A check can only be waited for.", hint='Its handler answers "never" to drop the job.')
        case MaxLoad(None, None, None):
            raise ArgumentError("A constraint on the load limits nothing.", hint="Give ready, running or oldest.")
        case MaxLoad(ready, running, oldest) if any(one is not None and one < 0 for one in (ready, running, oldest)):
            raise ArgumentError("A limit of the load is below zero.", hint="Give zero or more.")
        case TimeRange(begin, end, tz):
            zone.zone(tz)
            if begin == end or not (0 <= begin < _MINUTES and 0 <= end <= _MINUTES):
                raise ArgumentError(
                    f"The range {_clock(begin)} to {_clock(end)} is empty or outside of a day.",
                    hint="Begin and end differ and lie between 00:00 and 24:00.",
                )
    return constraint


def _tagged(tag: str) -> str:
    return f" of the tag {tag!r}" if tag else ""


def _is_span(span_us: int) -> bool:
    return 1_000 <= span_us <= 36_525 * DAY_US


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
