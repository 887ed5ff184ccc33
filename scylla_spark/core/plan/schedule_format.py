"""Definitions of schedules as JSON values, read strictly: whoever sends one, by whatever face, is judged by this reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Required

from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from scylla_spark.core.plan.constraint import MOST_RATE, Check, Delay, Rate
from scylla_spark.core.plan.constraint_format import ConstraintShape, read_constraint
from scylla_spark.core.plan.payload_template import Template
from scylla_spark.core.plan.schedule import CatchUp, OnJobTimeout, OnPause, Overlap, Policies, Schedule, Work
from scylla_spark.core.plan.strict_json import STRICT, Micros, Name, Text, validated
from scylla_spark.core.plan.template_names import EVERY_NAME, check_fields, names_of
from scylla_spark.core.plan.trigger_format import check_bounds, check_counted, stored_trigger
from scylla_spark.core.plan.triggers.trigger import AtTimes, Trigger, leaves
from scylla_spark.core.records.command import SomeMillis, WireRetry
from scylla_spark.core.tasks.task import NOT_GIVEN
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.errors import ArgumentError


@with_config(STRICT)
class _Retry(TypedDict, total=False):
    maxRetries: Annotated[int, Field(ge=0, lt=2**31)] | None
    base: Micros
    cap: Micros


@with_config(STRICT)
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
    constraints: Annotated[list[ConstraintShape], Field(max_length=100)]
    overlap: Overlap
    maxRunning: Annotated[int, Field(ge=1, le=1_000_000)]
    catchUp: CatchUp
    catchUpWindow: Micros
    pauseAfterFailures: Annotated[int, Field(ge=0, le=1_000_000)]
    lateAfter: Micros
    endWithin: Micros
    expectEvery: Micros
    jobTimeout: Micros
    onJobTimeout: OnJobTimeout
    onPause: OnPause
    paused: bool
    note: Text
    owner: Text
    tags: Annotated[list[Text], Field(max_length=100)]


_WORDS: Final = frozenset({"note", "owner", "tags", "lateAfter", "endWithin", "expectEvery", "pauseAfterFailures"})
_SCHEDULE: Final = TypeAdapter(_Schedule)
_LEAST_TIMEOUT_US: Final = 1_000


def read_schedule(value: Any) -> Schedule:
    """The schedule that a JSON value defines.

    Args:
        value: as `json.loads` gives it.

    Raises:
        ArgumentError: it defines none; the message names the field and what is wrong with it.
    """
    check_counted(value)
    schedule = stored_schedule(value)
    Template(schedule.work.payload.value, names_of(schedule.trigger))  # refuses what no fire of this trigger knows
    for place in schedule.work.payload.places():
        check_fields(place)
    check_bounds(schedule.trigger)
    if schedule.policies.timeout_us < _LEAST_TIMEOUT_US:
        raise ArgumentError(
            f"With a jobTimeout of {schedule.policies.timeout_us / 1000:g} ms every job would be dropped before it runs.",
            hint="Give at least 1 ms, or leave it out: it is a day by default.",
        )
    _check_delays(schedule)
    _check_rates(schedule)
    if sum(isinstance(one, Check) for one in schedule.constraints) > 1:
        raise ArgumentError("A schedule has one check at most.", hint="Let one handler answer for all of it.")
    return schedule


def stored_schedule(value: Any) -> Schedule:
    """The schedule of a definition that was judged when it was stored: what bounds the judging alone does not hold for it.

    Raises:
        ArgumentError: it defines none.
    """
    found = validated(_SCHEDULE, value, "the schedule")
    trigger = stored_trigger(found["trigger"])
    work = Work(
        found["handler"],
        Template(found.get("payload", {}), EVERY_NAME),
        found.get("queue", DEFAULT_QUEUE),
        found.get("priority", 0),
        found.get("lane", ""),
        _millis(found.get("timeout")),
        _retry(found.get("retry")),
        found.get("expires"),
    )
    default = Policies()
    policies = Policies(
        found.get("overlap", _overlap_of(trigger)),
        found.get("maxRunning", default.max_running),
        found.get("catchUp", default.catch_up),
        found.get("catchUpWindow", default.catch_up_window_us),
        found.get("pauseAfterFailures", 0),
        found.get("lateAfter", 0),
        found.get("endWithin", 0),
        found.get("expectEvery", 0),
        found.get("jobTimeout", default.timeout_us),
        found.get("onJobTimeout", default.on_timeout),
        found.get("onPause", default.on_pause),
    )
    held = tuple(read_constraint(one) for one in found.get("constraints", []))
    return Schedule(
        found["name"],
        work,
        trigger,
        held,
        policies,
        found.get("paused", False),
        found.get("note", ""),
        found.get("owner", ""),
        tuple(found.get("tags", [])),
        value,
    )


def is_same_work(one: str, other: str) -> bool:
    """Returns True if two stored definitions run the same at the same times: they differ in words, and in what is promised, at most."""
    first, second = ({k: v for k, v in json.loads(text).items() if k not in _WORDS} for text in (one, other))
    return first == second


def _overlap_of(trigger: Trigger) -> Overlap:
    """Returns what a schedule does that does not say: times may be skipped, what has come in is never lost."""
    timed = all(isinstance(leaf, AtTimes) for leaf in leaves(trigger))
    return "skip" if timed else "buffer_all"


def _check_delays(schedule: Schedule) -> None:
    """Whether jobs live long enough for their delays.

    Raises:
        ArgumentError: one is dropped before its delay is over.
    """
    timeout_us = schedule.policies.timeout_us
    for one in schedule.constraints:
        if isinstance(one, Delay) and one.delay_us >= timeout_us:
            raise ArgumentError(
                f"A delay of {one.delay_us / 1e6:g} s is never over: a job is dropped after {timeout_us / 1e6:g} s.",
                hint="Make `job_timeout` (a day, by default) longer than the delay.",
            )


def _check_rates(schedule: Schedule) -> None:
    """Whether so many launches are remembered as a rate asks for.

    Raises:
        ArgumentError: they are not.
    """
    for one in schedule.constraints:
        if isinstance(one, Rate) and one.most > MOST_RATE:
            raise ArgumentError(
                f"A rate of {one.most:,} launches is more than the {MOST_RATE:,} that are counted.",
                hint='Ask for fewer in a shorter span, such as rate(1_000, "40m") for 1,500 an hour, or limit the queue: `rate` of it.',
            )


def _retry(found: Mapping[str, Any] | None) -> WireRetry | None:
    if found is None:
        return None
    base, cap = (NOT_GIVEN if (us := found.get(name)) is None else us // 1000 for name in ("base", "cap"))
    return WireRetry(found.get("maxRetries", NOT_GIVEN), base, cap)


def _millis(micros: int | None) -> int | None:
    return None if micros is None else micros // 1000
