"""Definitions of schedules as JSON values, read strictly: whoever sends one, by whatever face, is judged by this reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Required

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from scylla_spark.clock import to_us
from scylla_spark.core.instant import LATEST_US
from scylla_spark.core.plan import constraint as constraints
from scylla_spark.core.plan.constraint import Constraint
from scylla_spark.core.plan.payload_template import Place, Template
from scylla_spark.core.plan.schedule import CatchUp, Overlap, Policies, Schedule, Work
from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.cron import cron
from scylla_spark.core.plan.times.fire_times import Every, FireTimes, Rule, dates, every
from scylla_spark.core.plan.times.recurrence import recurrence
from scylla_spark.core.plan.triggers.trigger import (
    AnyOf,
    AtTimes,
    Comparison,
    Condition,
    Ended,
    OnAbsence,
    OnEvent,
    OnPartitions,
    OnRuns,
    OnTable,
    Operation,
    Scalar,
    Trigger,
    checked,
    leaves,
    nodes,
)
from scylla_spark.core.records.command import SomeMillis, WireRetry
from scylla_spark.defaults import DEFAULT_QUEUE, RETRIES
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError
from scylla_spark.name import PATTERN

MAX_NODES_READ: Final = 2_000
_TREE_DEPTH: Final = 60

Name = Annotated[str, Field(pattern=f"^{PATTERN}$")]
Text = Annotated[str, Field(max_length=1_024)]
Micros = Annotated[int, BeforeValidator(duration_us)]
_STRICT: Final = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@with_config(_STRICT)
class _Times(TypedDict, total=False):
    kind: Required[Literal["cron", "every", "at", "rrule"]]
    expression: str | list[str]
    gap: Literal["next", "skip"]
    fold: Literal["first", "both"]
    period: Micros
    phase: Micros
    times: Annotated[list[AwareDatetime], Field(max_length=10_000)]
    rule: str
    start: str
    tz: Text
    startAt: AwareDatetime
    endAt: AwareDatetime
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    jitter: Micros
    calendar: Text
    onHoliday: Literal["skip", "next", "previous"]
    blackout: Annotated[list[tuple[AwareDatetime, AwareDatetime]], Field(max_length=1_000)]


@with_config(_STRICT)
class _Condition(TypedDict):
    column: Text
    comparison: Comparison
    value: Scalar


@with_config(_STRICT)
class _Table(TypedDict, total=False):
    kind: Required[Literal["table"]]
    table: Required[Text]
    minRows: int
    minCommits: int
    operations: list[Operation]
    where: Annotated[list[_Condition], Field(max_length=100)]
    settle: Micros
    atMostEvery: Micros
    per: Text
    start: Literal["now", "earliest"] | int


@with_config(_STRICT)
class _Partitions(TypedDict, total=False):
    kind: Required[Literal["partitions"]]
    dataset: Required[Text]
    atLeast: int
    rows: int
    bytes: int


@with_config(_STRICT)
class _Event(TypedDict, total=False):
    kind: Required[Literal["event"]]
    name: Required[Text]
    where: Annotated[dict[Text, Scalar], Field(max_length=100)]


@with_config(_STRICT)
class _Runs(TypedDict, total=False):
    kind: Required[Literal["after"]]
    work: Required[Text]
    on: list[Ended]
    atLeast: int


@with_config(_STRICT)
class _Absent(TypedDict):
    kind: Literal["absent"]
    of: Annotated[_Table | _Partitions | _Event, Field(discriminator="kind")]
    within: Micros


@with_config(_STRICT)
class _Constraint(TypedDict, total=False):
    kind: Required[Literal["concurrency", "delay", "last_run", "time_range", "rate"]]
    most: int
    delay: Micros
    within: Micros
    begin: Annotated[str, Field(pattern=r"^\d\d:\d\d$")]
    end: Annotated[str, Field(pattern=r"^\d\d:\d\d$")]
    tz: Text
    per: Micros
    otherwise: Literal["wait", "abort"]


@with_config(_STRICT)
class _Retry(TypedDict, total=False):
    maxRetries: Annotated[int, Field(ge=0, lt=2**31)] | None
    base: Micros
    cap: Micros


@with_config(_STRICT)
class _Schedule(TypedDict, total=False):
    name: Required[Name]
    handler: Required[Name]
    trigger: Required[dict[str, Any]]
    payload: dict[str, Any]
    queue: Name
    priority: Annotated[int, Field(ge=0, le=255)]
    lane: Text
    timeout: Micros
    expires: SomeMillis
    retry: _Retry
    constraints: Annotated[list[_Constraint], Field(max_length=100)]
    overlap: Overlap
    maxRunning: Annotated[int, Field(ge=1, le=1_000_000)]
    catchUp: CatchUp
    catchUpWindow: Micros
    pauseAfterFailures: Annotated[int, Field(ge=0, le=1_000_000)]
    lateAfter: Micros
    endWithin: Micros
    expectEvery: Micros
    jobTimeout: Micros
    paused: bool
    note: Text
    owner: Text
    tags: Annotated[list[Text], Field(max_length=100)]


_LEAVES: Final[dict[str, TypeAdapter[Any]]] = {
    **dict.fromkeys(("cron", "every", "at", "rrule"), TypeAdapter(_Times)),
    "table": TypeAdapter(_Table),
    "partitions": TypeAdapter(_Partitions),
    "event": TypeAdapter(_Event),
    "after": TypeAdapter(_Runs),
    "absent": TypeAdapter(_Absent),
}
_SCHEDULE: Final = TypeAdapter(_Schedule)
_BASE_US, _CAP_US = 20_000_000, 120_000_000

_FIELDS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(("planned", "started", "schedule", "revision", "generation"), frozenset[str]()),
    "absent": frozenset({"of", "since"}),
    "partitions": frozenset({"dataset", "values", "all", "more", "count", "rows", "bytes"}),
    "table": frozenset(
        {"name", "table_id", "from_version", "to_version", "rows", "commits", "bytes", "partition", "alone"}
    ),
    "upstream": frozenset({"schedule", "handler", "key", "outcome", "result", "error", "attempts", "planned"}),
}
"""Fields of what templates may name. Those of events are the events' own."""
_OPEN_FIELDS: Final = frozenset({"values", "result", "error", "partition"})
_OF_ALL: Final = frozenset({"planned", "started", "schedule", "revision", "generation"})
_OF_KIND: Final[dict[type, tuple[str, ...]]] = {
    OnTable: ("table", "tables"),
    OnPartitions: ("partitions", "datasets"),
    OnEvent: ("event", "events"),
    OnRuns: ("upstream", "upstreams"),
    OnAbsence: ("absent",),
}
"""What templates may name: with any trigger, and with one that waits for such a thing."""
_EVERY_NAME: Final = _OF_ALL.union(*_OF_KIND.values())


def read_schedule(value: Any) -> Schedule:
    """The schedule that a JSON value defines.

    Args:
        value: as `json.loads` gives it.

    Raises:
        ArgumentError: it defines none; the message names the field and what is wrong with it.
    """
    _check_counted(value)
    schedule = stored_schedule(value)
    Template(schedule.work.payload.value, names_of(schedule.trigger))  # refuses what no fire of this trigger knows
    for place in schedule.work.payload.places():
        _check_fields(place)
    _check_delays(schedule)
    return schedule


def stored_schedule(value: Any) -> Schedule:
    """The schedule of a definition that was judged when it was stored: what bounds the judging alone does not hold for it.

    Raises:
        ArgumentError: it defines none.
    """
    found = _validated(_SCHEDULE, value, "the schedule")
    trigger = checked(_trigger(found["trigger"], [MAX_NODES_READ], 0))
    work = Work(
        found["handler"], Template(found.get("payload", {}), _EVERY_NAME), found.get("queue", DEFAULT_QUEUE),
        found.get("priority", 0), found.get("lane", ""), _millis(found.get("timeout")), _retry(found.get("retry")),
        found.get("expires"),
    )  # fmt: skip
    default = Policies()
    policies = Policies(
        found.get("overlap", _overlap_of(trigger)), found.get("maxRunning", default.max_running),
        found.get("catchUp", default.catch_up), found.get("catchUpWindow", default.catch_up_window_us),
        found.get("pauseAfterFailures", 0), found.get("lateAfter", 0), found.get("endWithin", 0),
        found.get("expectEvery", 0), found.get("jobTimeout", default.timeout_us),
    )  # fmt: skip
    held = tuple(constraints.checked(_constraint(one)) for one in found.get("constraints", []))
    return Schedule(
        found["name"], work, trigger, held, policies, found.get("paused", False), found.get("note", ""),
        found.get("owner", ""), tuple(found.get("tags", [])), value,
    )  # fmt: skip


def _overlap_of(trigger: Trigger) -> Overlap:
    """What a schedule does that does not say: times may be skipped, what has come in is never lost."""
    timed = all(isinstance(leaf, AtTimes) for leaf in leaves(trigger))
    return "skip" if timed else "buffer_all"


def read_trigger(value: Any) -> Trigger:
    """The trigger that a JSON value defines: a leaf, or `all` or `any` of others.

    Raises:
        ArgumentError: it defines none, or one that can never fire, or one that is too large.
    """
    _check_counted(value)
    return checked(_trigger(value, [MAX_NODES_READ], 0))


def names_of(trigger: Trigger) -> frozenset[str]:
    """What fires of such a trigger know, for templates."""
    return _OF_ALL.union(*(_OF_KIND.get(type(node), ()) for node, _ in nodes(trigger)))


def _check_delays(schedule: Schedule) -> None:
    """Whether jobs live long enough for their delays.

    Raises:
        ArgumentError: one is dropped before its delay is over.
    """
    timeout_us = schedule.policies.timeout_us
    for one in schedule.constraints:
        if isinstance(one, constraints.Delay) and one.delay_us >= timeout_us:
            raise ArgumentError(
                f"A delay of {one.delay_us / 1e6:g} s is never over: a job is dropped after {timeout_us / 1e6:g} s.",
                hint="Make `job_timeout` (a day, by default) longer than the delay.",
            )


def _check_fields(place: Place) -> None:
    """Whether what a place names can be there: what events, results and partitions hold is theirs, all else is known.

    Raises:
        ArgumentError: there is no such field.
    """
    name, *path = place.path
    known = _FIELDS.get(name)
    if known is None or not path:
        return
    if not known:
        raise ArgumentError(f"{name!r} has no fields, such as {'.'.join(place.path)[:100]!r}.")
    if path[0] not in known or (len(path) > 1 and path[0] not in _OPEN_FIELDS):
        raise ArgumentError(
            f"No fire knows {'.'.join(place.path)[:100]!r}.",
            hint=f"Fields of {name!r} are: {', '.join(sorted(known))}.",
        )


def _check_counted(value: Any) -> None:
    """Each time that is counted is looked for while a definition is read, so all counts of one together have a bound.

    Raises:
        ArgumentError: they exceed it.
    """
    counted, todo = 0, [value]
    while todo:
        one = todo.pop()
        if isinstance(one, Mapping):
            todo += [one.get("trigger"), one.get("of")]
            counted += _counted(one)
        elif isinstance(one, list):
            todo += one
    if counted > _MOST_COUNTED_IN_ALL:
        raise ArgumentError(
            f"The counts of a trigger's times add up to {counted}; at most {_MOST_COUNTED_IN_ALL} are counted.",
            hint="Give endAt (end_at in Python) instead of count.",
        )


def _counted(one: Mapping[Any, Any]) -> int:
    count, expressions, kind = one.get("count"), one.get("expression"), one.get("kind")
    if kind not in ("cron", "rrule") or not isinstance(count, int):
        return 0
    return max(count, 0) * (len(expressions) if isinstance(expressions, list) else 1)


def _trigger(value: Any, left: list[int], depth: int) -> Trigger:
    left[0] -= 1
    if left[0] < 0 or depth > _TREE_DEPTH:
        raise ArgumentError("The trigger is too large.", hint="Split the schedule in two.")
    if not isinstance(value, Mapping):
        raise ArgumentError(
            "A trigger is an object with a kind.", hint=f"Kinds: {', '.join((*_LEAVES, 'all', 'any'))}."
        )
    kind = value.get("kind")
    if kind in ("all", "any"):
        unknown = sorted(map(str, value.keys() - {"kind", "of", "atLeast"}))
        branches = value.get("of")
        if unknown or not isinstance(branches, list):
            raise ArgumentError(f"A trigger {kind!r} has a list `of` triggers, and nothing else but `atLeast`.")
        read = tuple(_trigger(branch, left, depth + 1) for branch in branches)
        return AnyOf(read, len(read) if kind == "all" else value.get("atLeast", 1))
    adapter = _LEAVES.get(kind) if isinstance(kind, str) else None
    if adapter is None:
        raise ArgumentError(
            f"There is no trigger {str(kind)[:100]!r}.", hint=f"Kinds: {', '.join((*_LEAVES, 'all', 'any'))}."
        )
    return _leaf(_validated(adapter, value, f"the trigger {kind!r}"))


def _leaf(found: Mapping[str, Any]) -> Trigger:
    kind = found["kind"]
    if kind in _RULES:
        return _times(found)
    if kind == "table":
        where = tuple(Condition(one["column"], one["comparison"], one["value"]) for one in found.get("where", []))
        return OnTable(
            found["table"], found.get("minRows", 0), found.get("minCommits", 1), tuple(found.get("operations", [])),
            where, found.get("settle", 0), found.get("atMostEvery", 0), found.get("per", ""), found.get("start", "now"),
        )  # fmt: skip
    if kind == "partitions":
        return OnPartitions(found["dataset"], found.get("atLeast", 1), found.get("rows", 0), found.get("bytes", 0))
    if kind == "event":
        return OnEvent(found["name"], tuple(sorted(found.get("where", {}).items())))
    if kind == "after":
        return OnRuns(found["work"], frozenset(found.get("on", ["succeeded"])), found.get("atLeast", 1))
    of = _leaf(found["of"])
    assert isinstance(of, OnTable | OnPartitions | OnEvent)
    return OnAbsence(of, found["within"])


def _times(found: Mapping[str, Any]) -> Trigger:
    tz = found.get("tz", "UTC")
    zone.zone(tz)
    expressions = found.get("expression")
    if found["kind"] == "cron" and isinstance(expressions, list):
        if not expressions:
            raise ArgumentError("A cron trigger names at least one expression.")
        return AnyOf(tuple(_times({**found, "expression": one}) for one in expressions))
    wanted, make = _RULES[found["kind"]]
    missing = [name for name in wanted if name not in found]
    foreign = sorted((found.keys() & _OF_RULES) - set(wanted) - _OPTIONAL.get(found["kind"], set()))
    if missing or foreign:
        wrong = f"lacks {missing[0]}" if missing else f"has no {foreign[0]}"
        raise ArgumentError(f"A trigger {found['kind']!r} {wrong}.", hint=f"It has {', '.join(wanted)}.")
    bounds = {name: to_us(found[key]) for name, key in (("start_us", "startAt"), ("end_us", "endAt")) if key in found}
    breaks = tuple((to_us(begin), to_us(end)) for begin, end in found.get("blackout", []))
    if any(begin >= end for begin, end in breaks):
        raise ArgumentError("A blackout ends before it begins.", hint="Write [begin, end].")
    if found["kind"] == "every" and "phase" not in found and "start_us" in bounds:
        found = {**found, "phase": bounds["start_us"]}
    rule = make(found, tz)
    if "count" in found:
        bounds["end_us"] = min(_last_of(rule, found, bounds), bounds.get("end_us", LATEST_US - 1))
    return AtTimes(
        FireTimes(
            rule,
            jitter_us=found.get("jitter", 0),
            calendar=found.get("calendar", ""),
            on_holiday=found.get("onHoliday", "skip"),
            tz=tz,
            blackouts=breaks,
            **bounds,
        )
    )


def _last_of(rule: Rule, found: Mapping[str, Any], bounds: Mapping[str, int]) -> int:
    """The last of so many times from the start on."""
    if "start_us" not in bounds:
        raise ArgumentError(
            "A trigger with a count has a start.", hint="Give startAt (start_at in Python), from which is counted."
        )
    count: int = found["count"]
    if isinstance(rule, Every):
        first = rule.next_after(bounds["start_us"] - 1) or 0
        return min(first + (count - 1) * rule.period_us, LATEST_US - 1)
    if count > _MOST_COUNTED:
        raise ArgumentError(
            f"At most {_MOST_COUNTED} times of a {found['kind']} are counted.", hint="Give endAt instead."
        )
    at_us: int | None = bounds["start_us"] - 1
    for _ in range(count):
        after = rule.next_after(at_us) if at_us is not None else None
        if after is None or after >= LATEST_US:
            break
        at_us = after
    return at_us or 0


_MOST_COUNTED: Final = 1_000
_MOST_COUNTED_IN_ALL: Final = 2_000

_RULES: Final[dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any], str], Any]]]] = {
    "cron": (
        ("expression",),
        lambda one, tz: cron(one["expression"], tz, one.get("gap", "next"), one.get("fold", "first")),
    ),
    "every": (("period",), lambda one, _tz: every(one["period"], one.get("phase", 0))),
    "at": (("times",), lambda one, _tz: dates(tuple(map(to_us, one["times"])))),
    "rrule": (("rule", "start"), lambda one, tz: recurrence(one["rule"], one["start"], tz)),
}
_OF_RULES: Final = frozenset({"expression", "gap", "fold", "period", "phase", "times", "rule", "start"})
_OPTIONAL: Final[dict[str, set[str]]] = {"cron": {"gap", "fold"}, "every": {"phase"}}


def _constraint(found: Mapping[str, Any]) -> Constraint:
    kind = found["kind"]
    wanted, make = _CONSTRAINTS[kind]
    given = found.keys() - {"kind", "otherwise"}
    if given - {"tz"} != set(wanted) or ("tz" in given and kind != "time_range"):
        raise ArgumentError(
            f"A constraint {kind!r} has {', '.join(wanted)}.", hint=f"It has {', '.join(sorted(given))}."
        )
    more = {"otherwise": found["otherwise"]} if "otherwise" in found else {}
    return make(found, more)


_CONSTRAINTS: Final[dict[str, tuple[Sequence[str], Callable[[Mapping[str, Any], dict[str, Any]], Constraint]]]] = {
    "concurrency": (["most"], lambda one, more: constraints.Concurrency(one["most"], **more)),
    "delay": (["delay"], lambda one, more: constraints.Delay(one["delay"], **more)),
    "last_run": (["within"], lambda one, more: constraints.LastRun(one["within"], **more)),
    "time_range": (
        ["begin", "end"],
        lambda one, more: constraints.TimeRange(
            _minute(one["begin"]), _minute(one["end"]), one.get("tz", "UTC"), **more
        ),
    ),
    "rate": (["most", "per"], lambda one, more: constraints.Rate(one["most"], one["per"], **more)),
}


def _minute(clock: str) -> int:
    hours, _, minutes = clock.partition(":")
    return int(hours) * 60 + int(minutes)


def _retry(found: Mapping[str, Any] | None) -> WireRetry | None:
    if found is None:
        return None
    base, cap = found.get("base", _BASE_US), found.get("cap", _CAP_US)
    return WireRetry(found.get("maxRetries", RETRIES), base // 1000, cap // 1000)


def _millis(micros: int | None) -> int | None:
    return None if micros is None else micros // 1000


def _validated(adapter: TypeAdapter[Any], value: Any, what: str) -> Any:
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ArgumentError(
            f"{where or what}: {first['msg']}.", hint=f"Look at {where or 'its fields'} of {what}."
        ) from error
    except (RecursionError, OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(f"{what} is no JSON value, or nested too deep.") from error
