"""Queues as people write them in Python: `Queue`, judged when it is made; and storing them in parts that fit into records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from scylla_spark.core.queues.definition import ATTRIBUTES, read_queue
from scylla_spark.duration import duration_text
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.client.planner_interface import PlannerLink

MAX_PART_BYTES: Final = 400 * 1024
_Duration = timedelta | str | float


@dataclass(frozen=True)
class Queue:
    """How the tasks of a queue are run or handed out, and how many of them. What is left out, or None, is the default.

    Attributes:
        name: of the queue, as tasks name it.
        mode: "push" (default): handlers of the dispatcher run its tasks; "pull": workers lease them.
        order: when the next task of a lane starts: once the completion before it is recorded ("durable", default), or at once ("replay").
        concurrency: most tasks that run at once, over all dispatchers; default: no limit.
        rate: most starts per second; default: no limit.
        paused: nothing of it starts.
        group_concurrency: most tasks at once of one group of lanes, per dispatcher; default: no limit.
        group_separator: lanes whose ordering ids agree up to the first of these are a group; default ":".
        weights: group → its share where several wait, 1 to 1,000; of others 1. Without any, groups take no turns.
        ageing: tasks become more urgent while they wait.
        lease: how long a lease lasts without a sign of life (duration); default 10 s; 0: delivered once, and gone when handed out.
        max_run: longest that a lease may be extended to (duration) of a task that says no `timeout` of its own; default 1 h.
        max_retries: attempts after the first; None: for ever; "deployment" (default): as that says. Handlers that say it come first.
        retry_base: wait before the second attempt (duration); default: likewise.
        retry_cap: longest wait before an attempt (duration); default: likewise.
        on_exception: what an exception of a handler does: "retry" (default), or "fail": the task has failed for good.
        on_false: what a handler that returns False does: "succeed" (default), or "redeliver": the task comes again after `lease`.
        key_reuse: whether a key may be used again once its task has ended: "never" (default), "when_done".
        retention: how long its history is kept (duration); default: as the deployment says.
        default_handler: of tasks that name none; default: they wait for a lease.
        description: for people.
        isolation: how its tasks are kept apart: as their "handler" says (default), or in a "sandbox" or not at all.

    Raises:
        ArgumentError: it is none; the message names the field.
    """

    name: str
    mode: Literal["push", "pull"] | None = None
    order: Literal["durable", "replay"] | None = None
    concurrency: int | None = None
    rate: float | None = None
    paused: bool | None = None
    group_concurrency: int | None = None
    group_separator: str | None = None
    weights: Mapping[str, int] | None = None
    ageing: bool | None = None
    lease: _Duration | None = None
    max_run: _Duration | None = None
    max_retries: int | Literal["deployment"] | None = "deployment"
    retry_base: _Duration | None = None
    retry_cap: _Duration | None = None
    on_exception: Literal["retry", "fail"] | None = None
    on_false: Literal["succeed", "redeliver"] | None = None
    key_reuse: Literal["never", "when_done"] | None = None
    retention: _Duration | None = None
    default_handler: str | None = None
    description: str | None = None
    isolation: Literal["handler", "sandbox"] | None = None
    definition: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in KEYWORDS if name != "max_retries"}
        found = on_the_wire({name: value for name, value in given.items() if value is not None})
        if self.max_retries != "deployment":
            found["maxRetries"] = self.max_retries
        object.__setattr__(self, "definition", found)
        read_queue(found)

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> Queue:
        """The queue of a JSON definition, as files, `queue show -o json` and the topic `schedules` have it.

        Raises:
            ArgumentError: it is none; the message names the field.
        """
        read_queue(definition)
        return cls(**{_KEYWORD_OF[name]: value for name, value in definition.items()})


_KEYWORD_OF: Final = {name: attribute.removesuffix("_us") for name, attribute in ATTRIBUTES.items()}
_WIRE_OF: Final = {keyword: name for name, keyword in _KEYWORD_OF.items()}
KEYWORDS: Final = tuple(_WIRE_OF)
"""Names of the fields in Python, files and on the command line."""


def on_the_wire(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as they travel, durations as texts.

    Args:
        fields: by their names in Python.

    Raises:
        ArgumentError: there is no such field.
    """
    unknown = [name for name in fields if name not in _WIRE_OF]
    if unknown:
        import difflib

        near = difflib.get_close_matches(unknown[0], KEYWORDS, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Fields: {', '.join(KEYWORDS)}."
        raise ArgumentError(f"{unknown[0]}: a queue has no such field.", hint=hint)
    return {_WIRE_OF[name]: _plain(value) for name, value in fields.items()}


def in_python(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that travel, by their names in Python."""
    return {_KEYWORD_OF[name]: value for name, value in fields.items()}


def put(plan: PlannerLink, queues: Sequence[Queue], author: str) -> dict[str, dict[str, Any]]:
    """Stores queues; name → `became` and `revision`.

    Args:
        plan: asks the planner.
        queues: each replaces the definition of its name.
        author: who changes them.

    Raises:
        ArgumentError: one is refused, or two are of one name.
    """
    names = [queue.name for queue in queues]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"The queue {twice!r} is defined twice.", hint="Say all of it in one.")
    done: dict[str, dict[str, Any]] = {}
    for part in _parts([queue.definition for queue in queues]):
        done |= plan.ask("put_queue", queues=part, author=author or None).done
    return done


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return duration_text(value)
    return dict(value) if isinstance(value, Mapping) else value


def _parts(definitions: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    size = 0
    for definition in definitions:
        length = len(json.dumps(definition, ensure_ascii=False).encode()) + 2
        if part and size + length > MAX_PART_BYTES:
            yield part
            part, size = [], 0
        part.append(definition)
        size += length
    if part:
        yield part
