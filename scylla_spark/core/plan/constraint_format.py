"""Definitions of constraints as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Required

from pydantic import Field, with_config
from typing_extensions import TypedDict

from scylla_spark.core.plan import constraint as constraints
from scylla_spark.core.plan.constraint import Constraint
from scylla_spark.core.plan.strict_json import STRICT, Micros, Name, Text
from scylla_spark.errors import ArgumentError

Count = Annotated[int, Field(ge=0, le=10**9)]


@with_config(STRICT)
class ConstraintShape(TypedDict, total=False):
    """What a constraint may look like; `read_constraint` says which fields belong to which kind."""

    kind: Required[Literal["concurrency", "delay", "last_run", "time_range", "rate", "load", "check"]]
    most: int
    delay: Micros
    within: Micros
    begin: Annotated[str, Field(pattern=r"^\d\d:\d\d$")]
    end: Annotated[str, Field(pattern=r"^\d\d:\d\d$")]
    tz: Text
    per: Micros
    tag: Annotated[Text, Field(min_length=1)]
    handler: Name
    timeout: Micros
    ready: Count
    running: Count
    oldest: Micros
    queue: Name
    otherwise: Literal["wait", "abort"]


def read_constraint(found: Mapping[str, Any]) -> Constraint:
    """The constraint that a value defines.

    Args:
        found: of the shape.

    Raises:
        ArgumentError: it has fields of another kind, or lacks some, or can never hold.
    """
    kind = found["kind"]
    wanted, make = _CONSTRAINTS[kind]
    given = found.keys() - {"kind", "otherwise"}
    if given - _OPTIONAL.get(kind, set()) != set(wanted):
        takes = ", ".join([*wanted, *sorted(_OPTIONAL.get(kind, ()))])
        raise ArgumentError(f"A constraint {kind!r} has {takes}.", hint=f"It has {', '.join(sorted(given))}.")
    more = {name: found[name] for name in ("otherwise", "tag") if name in found}
    return constraints.checked(make(found, more))


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
    "check": (
        ["handler"],
        lambda one, more: constraints.Check(
            one["handler"], **({"timeout_us": one["timeout"]} if "timeout" in one else {}), **more
        ),
    ),
    "load": (
        [],
        lambda one, more: constraints.MaxLoad(
            one.get("ready"), one.get("running"), one.get("oldest"), one.get("queue", ""), **more
        ),
    ),
}


_OPTIONAL: Final[dict[str, set[str]]] = {
    "concurrency": {"tag"},
    "rate": {"tag"},
    "time_range": {"tz"},
    "check": {"timeout"},
    "load": {"ready", "running", "oldest", "queue"},
}


def _minute(clock: str) -> int:
    hours, _, minutes = clock.partition(":")
    return int(hours) * 60 + int(minutes)
