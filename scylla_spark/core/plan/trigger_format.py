"""Definitions of triggers as JSON values: a leaf of one of several kinds, or `all` or `any` of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Required

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from scylla_spark.clock import to_us
from scylla_spark.core.plan.strict_json import STRICT, Micros, Text, validated
from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.cron import cron
from scylla_spark.core.plan.times.fire_times import Every, FireTimes, Rule, dates, every, merged_blackouts
from scylla_spark.core.plan.times.recurrence import recurrence
from scylla_spark.core.plan.triggers.trigger import (
    AnyOf,
    AtTimes,
    Comparison,
    Condition,
    Ended,
    OnAbsence,
    OnBatch,
    OnEvent,
    OnPartitions,
    OnRequest,
    OnRuns,
    OnTable,
    OnTopic,
    Operation,
    Scalar,
    Trigger,
    checked,
    leaves,
)
from scylla_spark.core.records.field_types import Instant
from scylla_spark.core.tasks.key import LATEST_US, instant_us
from scylla_spark.errors import ArgumentError

MAX_NODES_READ: Final = 2_000
_TREE_DEPTH: Final = 60


@with_config(STRICT)
class _Times(TypedDict, total=False):
    kind: Required[Literal["cron", "every", "at", "rrule"]]
    expression: str | list[str]
    gap: Literal["next", "skip"]
    fold: Literal["first", "both"]
    period: Micros
    phase: Micros
    times: Annotated[list[Instant], Field(max_length=10_000)]
    rule: str
    start: str
    tz: Text
    startAt: Instant
    endAt: Instant
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    jitter: Micros
    calendar: Text
    onHoliday: Literal["skip", "next", "previous"]
    blackout: Annotated[list[tuple[Instant, Instant]], Field(max_length=1_000)]


@with_config(STRICT)
class _Condition(TypedDict):
    column: Text
    comparison: Comparison
    value: Scalar


@with_config(STRICT)
class _Table(TypedDict, total=False):
    kind: Required[Literal["table"]]
    table: Required[Text]
    minRows: int
    minCommits: int
    minBytes: int
    operations: list[Operation]
    where: Annotated[list[_Condition], Field(max_length=100)]
    settle: Micros
    atMostEvery: Micros
    atLeastEvery: Micros
    per: Text
    start: Literal["now", "earliest"] | int


@with_config(STRICT)
class _Topic(TypedDict, total=False):
    kind: Required[Literal["topic"]]
    topic: Required[Text]
    records: int
    bytes: int
    atMostEvery: Micros
    atLeastEvery: Micros
    start: Literal["now", "earliest"]


@with_config(STRICT)
class _Partitions(TypedDict, total=False):
    kind: Required[Literal["partitions"]]
    dataset: Required[Text]
    atLeast: int
    rows: int
    bytes: int


@with_config(STRICT)
class _Event(TypedDict, total=False):
    kind: Required[Literal["event"]]
    name: Required[Text]
    where: Annotated[dict[Text, Scalar], Field(max_length=100)]


@with_config(STRICT)
class _Runs(TypedDict, total=False):
    kind: Required[Literal["after"]]
    work: Required[Text]
    on: list[Ended]
    atLeast: int


@with_config(STRICT)
class _Batch(TypedDict):
    kind: Literal["batch"]
    tag: Text
    size: int


@with_config(STRICT)
class _Manual(TypedDict):
    kind: Literal["manual"]


@with_config(STRICT)
class _Absent(TypedDict):
    kind: Literal["absent"]
    of: Annotated[_Table | _Partitions | _Event | _Runs, Field(discriminator="kind")]
    within: Micros


_LEAVES: Final[dict[str, TypeAdapter[Any]]] = {
    **dict.fromkeys(("cron", "every", "at", "rrule"), TypeAdapter(_Times)),
    "table": TypeAdapter(_Table),
    "topic": TypeAdapter(_Topic),
    "partitions": TypeAdapter(_Partitions),
    "event": TypeAdapter(_Event),
    "after": TypeAdapter(_Runs),
    "batch": TypeAdapter(_Batch),
    "absent": TypeAdapter(_Absent),
    "manual": TypeAdapter(_Manual),
}


def read_trigger(value: Any) -> Trigger:
    """The trigger that a JSON value defines: a leaf, or `all` or `any` of others.

    Raises:
        ArgumentError: it defines none, or one that can never fire, or one that is too large.
    """
    check_counted(value)
    trigger = stored_trigger(value)
    check_bounds(trigger)
    return trigger


def stored_trigger(value: Any) -> Trigger:
    """The trigger of a definition that was judged when it was stored: what bounds the judging alone does not hold for it.

    Raises:
        ArgumentError: it defines none.
    """
    return checked(_trigger(value, [MAX_NODES_READ], 0))


def check_bounds(trigger: Trigger) -> None:
    """Refuses times that end before they begin: they could never fire.

    Args:
        trigger: as it was read.

    Raises:
        ArgumentError: a leaf has such times.
    """
    for leaf in leaves(trigger):
        if isinstance(leaf, AtTimes) and leaf.times.start_us > min(leaf.times.end_us, leaf.times.last_us):
            raise ArgumentError(
                "No time lies between the start and the end of the trigger.",
                hint="Give an endAt (end_at in Python) that comes after startAt.",
            )


def check_counted(value: Any) -> None:
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
    return _leaf(validated(adapter, value, f"the trigger {kind!r}"))


def _leaf(found: Mapping[str, Any]) -> Trigger:
    kind = found["kind"]
    if kind in _RULES:
        return _times(found)
    if kind == "table":
        where = tuple(Condition(one["column"], one["comparison"], one["value"]) for one in found.get("where", []))
        return OnTable(
            table=found["table"],
            min_rows=found.get("minRows", 0),
            min_commits=found.get("minCommits", 1),
            min_bytes=found.get("minBytes", 0),
            operations=tuple(found.get("operations", [])),
            where=where,
            settle_us=found.get("settle", 0),
            throttle_us=found.get("atMostEvery", 0),
            overdue_us=found.get("atLeastEvery", 0),
            per=found.get("per", ""),
            start=found.get("start", "now"),
        )
    if kind == "topic":
        return OnTopic(
            topic=found["topic"],
            records=found.get("records", 1),
            bytes=found.get("bytes", 0),
            throttle_us=found.get("atMostEvery", 0),
            overdue_us=found.get("atLeastEvery", 0),
            start=found.get("start", "now"),
        )
    if kind == "partitions":
        return OnPartitions(found["dataset"], found.get("atLeast", 1), found.get("rows", 0), found.get("bytes", 0))
    if kind == "event":
        return OnEvent(found["name"], tuple(sorted(found.get("where", {}).items())))
    if kind == "after":
        return OnRuns(found["work"], frozenset(found.get("on", ["succeeded"])), found.get("atLeast", 1))
    if kind == "batch":
        return OnBatch(found["tag"], found["size"])
    if kind == "manual":
        return OnRequest()
    of = _leaf(found["of"])
    assert isinstance(of, OnTable | OnPartitions | OnEvent | OnRuns)
    return OnAbsence(of, found["within"])


def _times(found: Mapping[str, Any]) -> Trigger:
    tz = found.get("tz", "UTC")
    zone.zone(tz)
    wanted, make = _RULES[found["kind"]]
    missing = [name for name in wanted if name not in found]
    foreign = sorted((found.keys() & _OF_RULES) - set(wanted) - _OPTIONAL.get(found["kind"], set()))
    if missing or foreign:
        wrong = f"lacks {missing[0]}" if missing else f"has no {foreign[0]}"
        raise ArgumentError(f"A trigger {found['kind']!r} {wrong}.", hint=f"It has {', '.join(wanted)}.")
    bounds = _bounds(found)
    breaks = tuple((to_us(begin), min(to_us(end), LATEST_US)) for begin, end in found.get("blackout", []))
    if any(begin >= end for begin, end in breaks):
        raise ArgumentError("A blackout ends before it begins.", hint="Write [begin, end].")
    if found["kind"] == "every" and "phase" not in found and "start_us" in bounds:
        found = {**found, "phase": bounds["start_us"]}
    expressions = found.get("expression") if found["kind"] == "cron" else None
    several = [{**found, "expression": one} for one in expressions] if isinstance(expressions, list) else None
    if several == []:
        raise ArgumentError("A cron trigger names at least one expression.")
    rules = [make(one, tz) for one in several or (found,)]
    if "count" in found:
        bounds["last_us"] = _last_of(rules, found, bounds)
    read = tuple(
        AtTimes(
            FireTimes(
                rule,
                jitter_us=found.get("jitter", 0),
                calendar=found.get("calendar", ""),
                on_holiday=found.get("onHoliday", "skip"),
                tz=tz,
                blackouts=merged_blackouts(breaks),
                **bounds,
            )
        )
        for rule in rules
    )
    return AnyOf(read) if several else read[0]


def _bounds(found: Mapping[str, Any]) -> dict[str, int]:
    """The first and the last instant of a definition, where it names them; an end after the last storable instant is no bound."""
    bounds: dict[str, int] = {}
    if "startAt" in found:
        bounds["start_us"] = instant_us(found["startAt"])
    if "endAt" in found:
        bounds["end_us"] = min(to_us(found["endAt"]), LATEST_US - 1)
    return bounds


def _last_of(rules: Sequence[Rule], found: Mapping[str, Any], bounds: Mapping[str, int]) -> int:
    """The last of so many times from the start on; a time that several rules name counts once."""
    if "start_us" not in bounds:
        raise ArgumentError(
            "A trigger with a count has a start.", hint="Give startAt (start_at in Python), from which is counted."
        )
    count: int = found["count"]
    rule = rules[0]
    if isinstance(rule, Every):
        first = rule.next_after(bounds["start_us"] - 1) or 0
        return min(first + (count - 1) * rule.period_us, LATEST_US - 1)
    if count > _MOST_COUNTED:
        raise ArgumentError(
            f"At most {_MOST_COUNTED} times of a {found['kind']} are counted.", hint="Give endAt instead."
        )
    at_us: int = bounds["start_us"] - 1
    for _ in range(count):
        later = [after for one in rules if (after := one.next_after(at_us)) is not None and after < LATEST_US]
        if not later:
            break
        at_us = min(later)
    return at_us


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
