"""Follow-ups from what a handler passes to `ctx.enqueue` and `ctx.emit`; what nobody would take is refused there and then."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from scylla_spark.clock import now_us
from scylla_spark.core.records.command import encode
from scylla_spark.core.tasks.about import about_of, is_label
from scylla_spark.core.tasks.enqueue_options import enqueue_command, read_task
from scylla_spark.core.tasks.follow_up import EVENT, MAX_NAME_CHARS, TASK, FollowUp, unique_key
from scylla_spark.core.tasks.key import EARLIEST_US, TaskKey
from scylla_spark.core.tasks.local_time import due_us
from scylla_spark.core.tasks.task import FollowUpOptions
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.handlers.registry import named_handler

MAX_FIELDS_BYTES: Final = 16 * 1024
_NOTHING_SENT: Final = "Nothing is sent."
_MOST_NAME_CHARS: Final = 200
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode  # in ASCII, as the planner measures fields


def checked_name(name: object) -> str:
    """A name that a handler gives a task which it enqueues.

    Raises:
        ArgumentError: it is none; names that begin with # are given to tasks without one.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or name.startswith("#"):
        raise ArgumentError(
            f"The name {shown(name)} is none.",
            hint=f"Pass text of at most {MAX_NAME_CHARS} characters that does not begin with #.",
            reason="wrong_value",
        )
    return name


def task(
    parent: TaskKey,
    name: str,
    handler: str | Callable[..., Any] | None,
    payload: Any,
    options: FollowUpOptions,
    trace: str | None = None,
) -> FollowUp:
    """A task that a handler enqueues.

    Args:
        parent: key of the task whose handler it is.
        name: of the follow-up; one that a handler gave, and that may be the name of a task, is the task's, too.
        handler: name, or a registered function; None: the deployment's default handler.
        payload: a JSON object; of a function that declares a type of payload, a value of that.
        options: what else is said of it.
        trace: the span that it belongs to, if the options name none.

    Raises:
        ArgumentError: no deployment would take it.
    """
    handler, payload = named_handler(handler, payload)
    unique = unique_key(parent, name)
    lane = options.get("ordering_id")
    delay_us, at_us = _moment(options)
    key = TaskKey(max(at_us, EARLIEST_US), unique if lane is None else lane, unique)
    about = about_of(None if name.startswith("#") or not is_label(name) else name, options.get("description"), None)
    command = enqueue_command(key, handler, payload, options, trace=trace, about=about)
    try:
        record = encode(command, with_stamp=False).decode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentError(f"The task cannot be sent: {error}.", hint=_NOTHING_SENT, reason="wrong_value") from None
    read_task(record)
    return FollowUp(TASK, name, record, delay_us, at_us)


def event(name: str, event: str, fields: dict[str, Any] | None) -> FollowUp:
    """An event that a handler tells the planner.

    Args:
        name: of the follow-up.
        event: what triggers call it.
        fields: JSON values.

    Raises:
        ArgumentError: it has no such name, or its fields are no JSON object of at most 16 KiB.
    """
    if not isinstance(event, str) or not 0 < len(event) <= _MOST_NAME_CHARS:
        hint = f"A name has 1 to {_MOST_NAME_CHARS} characters."
        raise ArgumentError(f"{shown(event)} is no name of an event.", hint=hint, reason="wrong_value")
    if fields is not None and not isinstance(fields, dict):
        raise ArgumentError(f"fields is a {type(fields).__name__}.", hint="Pass a dict.", reason="wrong_value")
    try:
        text = _encode(fields or {})
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentError(f"The fields cannot be sent: {error}.", hint=_NOTHING_SENT, reason="wrong_value") from None
    if len(text) > MAX_FIELDS_BYTES:
        raise ArgumentError(
            f"The fields have {len(text)} bytes; {MAX_FIELDS_BYTES} are allowed.",
            hint=_NOTHING_SENT,
            reason="too_large",
        )
    return FollowUp(EVENT, name, f'{{"name":{_encode(event)},"fields":{text}}}')


def _moment(options: FollowUpOptions) -> tuple[int, int]:
    """Returns how long after its parent has succeeded a task is due, and before when it is not; microseconds."""
    at, delay = options.get("at"), options.get("delay")
    if at is not None and delay is not None:
        raise ArgumentError("Both `at` and `delay` are given.", hint="Pass one of them.", reason="wrong_value")
    return 0 if delay is None else duration_us(delay), 0 if at is None else due_us(at, now_us())
