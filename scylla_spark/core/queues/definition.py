"""The definition of a queue as a JSON value, read strictly: whoever puts one, by whatever face, is judged by this reader."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic.alias_generators import to_camel

from scylla_spark.core.tasks.task import Retry
from scylla_spark.defaults import (
    GROUP_SEPARATOR,
    LEASE,
    LEAST_RATE,
    MAX_RUN,
    MOST_AT_ONCE,
    MOST_GROUP_CHARS,
    MOST_RATE,
    MOST_RETRIES,
    MOST_WEIGHT,
    MOST_WEIGHTED,
)
from scylla_spark.duration import duration_text, duration_us
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.name import PATTERN

MAX_DEFINITION_BYTES: Final = 64 * 1024

Mode = Literal["push", "pull"]
Order = Literal["durable", "replay"]
OnException = Literal["retry", "fail"]
OnFalse = Literal["succeed", "redeliver"]
KeyReuse = Literal["never", "when_done"]
IsolationAsked = Literal["handler", "sandbox"]
Retries = Annotated[int, Field(ge=0, le=MOST_RETRIES)] | Literal["deployment"] | None
"""Attempts after the first; None: for ever; "deployment": as that says. Handlers that say it come first."""

_Name = Annotated[str, Field(pattern=f"^{PATTERN}$")]
_AtOnce = Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]
_Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
_Group = Annotated[str, Field(min_length=1, max_length=MOST_GROUP_CHARS)]
_Weight = Annotated[int, Field(ge=1, le=MOST_WEIGHT)]
_Micros = Annotated[int, BeforeValidator(duration_us)]
_LEASE_US: Final = duration_us(LEASE)
_MAX_RUN_US: Final = duration_us(MAX_RUN)


def _not_deployment(value: Any) -> Any:
    """Who leaves retries to the deployment leaves the field out: one way to say it."""
    if value == "deployment":
        raise ValueError("Input should be a number, null, or left out")
    return value


def _travels(attribute: str) -> str:
    """`max_run_us` → `maxRun`."""
    return to_camel(attribute.removesuffix("_us"))


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, alias_generator=_travels))
@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """How the tasks of a queue are run or handed out, and how many of them.

    The one statement of the fields: `read_queue` takes names, types and bounds from it. Spans travel as texts, and end here with `_us`.

    Attributes:
        name: of the queue.
        mode: "push": handlers of the dispatcher run its tasks; "pull": workers lease them.
        order: when the next task of a lane starts: once the completion before it is recorded ("durable"), or at once ("replay").
        concurrency: most tasks that run at once, over all dispatchers; None: no limit.
        rate: most starts per second; None: no limit.
        paused: nothing of it starts.
        group_concurrency: most tasks at once of one group of lanes, per dispatcher; None: no limit.
        group_separator: lanes whose ordering ids agree up to the first of these are a group.
        weights: group → its share where several wait; of others 1.
        ageing: tasks become more urgent while they wait.
        lease_us: how long a lease lasts without a sign of life, in microseconds; 0: a task is delivered once, and gone when handed out.
        max_run_us: longest that the lease of a task without a timeout may be extended to, in microseconds.
        max_retries: attempts after the first; None: for ever; "deployment": as that says. Handlers that say it come first.
        retry_base_us: wait before the second attempt, in microseconds; None: likewise.
        retry_cap_us: longest wait before an attempt, in microseconds; None: likewise.
        on_exception: what an exception of a handler does: the task is tried again ("retry"), or has failed for good ("fail").
        on_false: what a handler that returns False does: the task has ended ("succeed"), or comes again after the lease ("redeliver").
        key_reuse: whether a key may be used again once its task has ended ("when_done").
        retention_us: how long its history is kept, in microseconds; None: as the deployment says.
        default_handler: of tasks that name none; None: they wait for a lease.
        description: for people.
        isolation: "handler": its tasks are kept apart as their handlers say; "sandbox": they run in a sandbox or not at all.
    """

    name: _Name
    mode: Mode = "push"
    order: Order = "durable"
    concurrency: _AtOnce | None = None
    rate: _Rate | None = None
    paused: bool = False
    group_concurrency: _AtOnce | None = None
    group_separator: _Group = GROUP_SEPARATOR
    weights: Annotated[dict[_Group, _Weight], Field(max_length=MOST_WEIGHTED)] = field(default_factory=dict)
    ageing: bool = False
    lease_us: _Micros = _LEASE_US
    max_run_us: _Micros = _MAX_RUN_US
    max_retries: Annotated[Retries, BeforeValidator(_not_deployment)] = "deployment"
    retry_base_us: _Micros | None = None
    retry_cap_us: _Micros | None = None
    on_exception: OnException = "retry"
    on_false: OnFalse = "succeed"
    key_reuse: KeyReuse = "never"
    retention_us: _Micros | None = None
    default_handler: _Name | None = None
    description: Annotated[str, Field(max_length=1_024)] = ""
    isolation: IsolationAsked = "handler"

    @property
    def redelivers(self) -> bool:
        """Whether a task whose result is false comes again; not of a queue that delivers each once."""
        return self.on_false == "redeliver" and self.lease_us > 0

    def retry(self, otherwise: Retry) -> Retry:
        """What it says of retries, and of the rest what another policy says."""
        count = otherwise.terms[0] if self.max_retries == "deployment" else self.max_retries
        base_ms = otherwise.base_ms if self.retry_base_us is None else self.retry_base_us // 1000
        cap_ms = otherwise.cap_ms if self.retry_cap_us is None else self.retry_cap_us // 1000
        return Retry.from_ms(count, base_ms, cap_ms)


# -- reading ------------------------------------------------------------------------------------------------------------

_read: Final = TypeAdapter(QueueDefinition).validate_json
ATTRIBUTES: Final[Mapping[str, str]] = {_travels(one.name): one.name for one in fields(QueueDefinition)}
"""Name of a field as it travels → attribute of `QueueDefinition`."""
FIELDS: Final = tuple(ATTRIBUTES)
"""Names of all fields, as they travel."""


def read_queue(value: Any) -> QueueDefinition:
    """The queue that a JSON value defines.

    Args:
        value: as `json.loads` gives it.

    Raises:
        ArgumentError: it defines none; the message names the field and what is wrong with it.
    """
    if not isinstance(value, Mapping):
        raise ArgumentError(f"A queue is an object with fields, not {shown(value)}.", hint='Such as {"name": "mail"}.')
    for name in value:
        check_field(name)
    made = _validated(value)
    if made.isolation == "sandbox" and made.mode == "pull":
        raise ArgumentError(
            f"isolation: the queue {shown(made.name)} asks for a sandbox, and its tasks are leased.",
            hint="Workers run tasks wherever they are; only tasks of a queue with mode push are kept in a sandbox.",
        )
    return made


def check_field(name: object) -> None:
    """Whether a queue has a field of that name.

    Raises:
        ArgumentError: it has none; the hint names the nearest that there is.
    """
    if name not in FIELDS:
        near = difflib.get_close_matches(str(name)[:100], FIELDS, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Fields: {', '.join(FIELDS)}."
        raise ArgumentError(f"{shown(name)}: a queue has no such field.", hint=hint)


def queue_text(value: Mapping[str, Any]) -> str:
    """The one text by which a JSON value that `read_queue` takes is stored."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def queue_fields(definition: QueueDefinition) -> dict[str, Any]:
    """All fields of a definition as they travel, defaults included; durations as texts. `maxRetries` is missing where it is unset."""
    found = {name: getattr(definition, attribute) for name, attribute in ATTRIBUTES.items()}
    spans = {name for name, attribute in ATTRIBUTES.items() if attribute.endswith("_us")}
    found |= {name: _span(found[name]) for name in spans}
    found["weights"] = dict(definition.weights)
    if definition.max_retries == "deployment":
        del found["maxRetries"]
    return found


def _span(us: int | None) -> str | None:
    return None if us is None else duration_text(timedelta(microseconds=us))


def _validated(value: Mapping[str, Any]) -> QueueDefinition:
    named = value.get("name")
    what = f"the queue {shown(named)}" if isinstance(named, str) else "the queue"
    try:
        text = json.dumps(value)
        if len(text) > MAX_DEFINITION_BYTES:
            raise ArgumentError(f"{what} has more than {MAX_DEFINITION_BYTES} bytes.", hint="Name fewer groups.")
        return _read(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = str(first["loc"][0]) if first["loc"] else "its texts"
        said = first["msg"].removeprefix("Value error, ").removesuffix(".")
        raise ArgumentError(f"{where}: {said}.", hint=f"Look at {where} of {what}.") from error
    except (RecursionError, OverflowError, TypeError) as error:
        raise ArgumentError(f"{what} is no JSON value, or nested too deep.") from error
