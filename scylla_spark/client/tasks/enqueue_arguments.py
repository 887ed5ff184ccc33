"""Commands from what people pass: keyword arguments of `Scheduler.enqueue` to a command, or to a reason why not."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.core.records.command import ENQUEUE, OPEN_NAME, SENT_WITHIN_US, Command, WireRetry, payload_text
from scylla_spark.core.tasks.key import TaskKey, instant_us
from scylla_spark.core.tasks.tags import given_tags
from scylla_spark.core.tasks.task import Retry
from scylla_spark.core.tasks.trace_context import current_traceparent
from scylla_spark.core.tasks.uuid7 import Uuid7
from scylla_spark.defaults import DEFAULT_QUEUE, NOTIFY_HANDLER, NOTIFY_QUEUE
from scylla_spark.duration import duration_ms, duration_us
from scylla_spark.errors import ArgumentError, ConflictError, shown
from scylla_spark.handlers.registry import registered
from scylla_spark.handlers.value_type import ValueType

_ids: Final = Uuid7()
_RETRY_MARK: Final = "~retry-"
_CALLED_HERE: Final = {
    "start_by": 'expires, a duration from its scheduled time, such as expires="10m"',
}
_ROOM: Final = 900  # characters of an old key that a copy's keeps
_MOST_STEPS: Final = 100  # keys that are looked at for an unused one


def new_key(now: int) -> str:
    """A new uniqueness key or request id; grows with every call in this process."""
    return _ids.next(now)


def command(
    now: int,
    handler: str | Callable[..., Any] | None,
    payload: Any = None,
    *,
    ordering_id: str | None = None,
    uniqueness_key: str | None = None,
    at: datetime | None = None,
    delay: object = None,
    queue: str = DEFAULT_QUEUE,
    priority: int = 0,
    retry: Retry | None = None,
    timeout: object = None,
    expires: object = None,
    tags: Iterable[str] | None = None,
    traceparent: str | None = None,
    unique: str | None = None,
    **unknown: object,
) -> Command:
    """The command that `Scheduler.enqueue` sends; its arguments, and the moment.

    Args:
        now: the moment of the call, microseconds since the epoch.
        handler: name, or a registered function; None leaves it to `ingest.default_handler`.
        payload: a JSON object; of a function that declares a type of payload, a value of that. Default: empty.
        ordering_id: lane; default: one of its own.
        uniqueness_key: makes the key unique in its lane; default: a new one.
        at: scheduled time, aware; default: now, or now + `delay`.
        delay: until it is due: text such as "5m", seconds or a timedelta.
        queue: name of the queue whose limits hold.
        priority: 0 … 255; greater goes first among tasks that are due.
        retry: policy of this task; what it leaves out is as its handler, its queue or the deployment says, as without one.
        timeout: longest run of an attempt, as `delay`; default: its handler's.
        expires: it ends as expired if it has not begun so long after its scheduled time, as `delay`; default: it never does.
        tags: at most 16 short texts by which it is found; default: none.
        traceparent: trace and span that it belongs to, as W3C Trace Context writes them; default: those of OpenTelemetry here.
        unique: "open": it ends as a duplicate if an earlier task of its lane and uniqueness key is open; default: it does not.
        **unknown: what else was passed, and is refused.

    Raises:
        TypeError: something is called as no argument is.
        ArgumentError: an argument has a type or form that cannot be written; the rules are applied later, by the sender.
    """
    _check_known(unknown)
    _check_not_ours(handler, queue)
    named = new_key(now) if uniqueness_key is None else _text("uniqueness_key", uniqueness_key)
    lane = named if ordering_id is None else _text("ordering_id", ordering_id)
    if callable(handler):
        known = registered(handler)
        handler, declared = known.info.name, known.signature.payload
        payload = payload if declared is None else declared.plain({} if payload is None else payload)
    try:
        body = payload_text(payload)
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentError(
            f"The payload cannot be sent: {error}.", hint="Pass a dict of JSON values.", reason="payload"
        ) from None
    if retry is not None and not isinstance(retry, Retry):
        raise ArgumentError(f"retry is {retry!r}.", hint="Pass Retry(max_retries=…).", reason="wrong_value")
    terms = WireRetry(*retry.terms) if retry is not None else None
    timeout_ms = None if timeout is None else _some_ms("timeout", timeout)
    key = TaskKey(moment(now, at, delay), lane, named)
    expires_ms = None if expires is None else duration_ms(expires)
    return Command(
        ENQUEUE, key, 0, handler, queue, body, priority, timeout_ms, terms, now, expires_ms=expires_ms, tags=given_tags(tags),
        traceparent=traceparent or current_traceparent(), unique=asks_for_unique(unique, uniqueness_key),
    )  # fmt: skip


_FIELDS: Final = tuple(name for name in inspect.signature(command).parameters if name not in ("now", "unknown"))


def asks_for_unique(unique: object, uniqueness_key: object) -> bool:
    """Whether the name of a task is to be unique among open tasks, by the argument `unique`.

    Raises:
        ArgumentError: it is neither "open" nor None, or there is no name that another task could bear.
    """
    if unique is None:
        return False
    if unique != OPEN_NAME:
        raise ArgumentError(f"unique is {shown(unique)}.", hint='Pass "open", or leave it out.', reason="wrong_value")
    if uniqueness_key is None:
        raise ArgumentError(
            "A unique task needs a uniqueness_key.", hint="Without one a new key is made up, which nobody has.", reason="missing_field",
        )  # fmt: skip
    return True


def _check_known(unknown: Mapping[str, object]) -> None:
    """Refuses arguments that there are not; of those of other schedulers it says what they are called here."""
    for name in unknown:
        if name in _CALLED_HERE:
            raise ArgumentError(f"A task has no {name}.", hint=f"Pass {_CALLED_HERE[name]}.", reason="wrong_value")
        raise TypeError(f"enqueue() got an unexpected keyword argument {name!r}")


def _check_not_ours(handler: object, queue: str) -> None:
    """Refuses what only the planner may send.

    Raises:
        ArgumentError: it is that.
    """
    if handler == NOTIFY_HANDLER or queue == NOTIFY_QUEUE:
        what = f"Handler {NOTIFY_HANDLER!r}" if handler == NOTIFY_HANDLER else f"Queue {NOTIFY_QUEUE!r}"
        raise ArgumentError(
            f"{what} is for messages of notification rules, which the planner sends.",
            hint="Put a notification rule.",
            reason="wrong_value",
        )


def returned_by(handler: object) -> ValueType | None:
    """The type of the results of a handler that is given as a function; None: it is a name, or declares none."""
    return registered(handler).signature.result if callable(handler) else None


def moment(now: int, at: datetime | None, delay: object) -> int:
    """Microseconds since the epoch of `at`, of now + `delay`, or of now.

    Args:
        now: microseconds since the epoch.
        at: an aware datetime, or None.
        delay: as `Scheduler.enqueue` takes it, or None.

    Raises:
        ArgumentError: both are given, or `at` has no time zone.
    """
    if at is not None and delay is not None:
        raise ArgumentError("Both `at` and `delay` are given.", hint="Pass one of them.", reason="wrong_value")
    if at is not None:
        return instant_us(at)
    return now + (duration_us(delay) if delay is not None else 0)


def deadline_of(timeout: object) -> int:
    """When a timeout (a duration, or None for ever) that begins now will be over, on `clock.boot_us`."""
    return 1 << 62 if timeout is None else boot_us() + duration_us(timeout)


def moved(old: Command, time_us: int, now: int) -> Command:
    """The same task at another time, under its own name, so that whatever is unique stays so; its field `moveOf` names the old one.

    Args:
        old: the task as it stands.
        time_us: its new scheduled time, microseconds since the epoch.
        now: when that was asked for.

    Raises:
        ArgumentError: that is the time it already has.
    """
    if time_us == old.key.time_us:
        raise ArgumentError(f"{old.key} already has that time.", hint="Choose another.", reason="wrong_value")
    extra = json.dumps(json.loads(old.extra or "{}") | {"moveOf": str(old.key)})
    key = old.key._replace(time_us=time_us)
    return old._replace(kind=ENQUEUE, key=key, enqueued_us=now, request_id=None, extra=extra)


def under_unused_key(copy: Command, is_known: Callable[[TaskKey], bool]) -> Command:
    """A copy whose key nobody has used: as it is, or the fewest microseconds later.

    A cancel holds for its key for ever and a second record of a key replaces the first, so a task that came back to a time that its
    name has had would never run, or would replace another one.

    Args:
        copy: to be enqueued.
        is_known: whether a key was ever enqueued or cancelled.

    Raises:
        ConflictError: very many keys in a row were used.
    """
    for time_us in range(copy.key.time_us, copy.key.time_us + _MOST_STEPS):
        key = copy.key._replace(time_us=time_us)
        if not is_known(key):
            return copy._replace(key=key)
    raise ConflictError(
        f"{copy.key} was used before, and so were the {_MOST_STEPS - 1} microseconds behind it.",
        hint="Choose another time. Nothing was sent.",
    )


def stamped_anew(copy: Command, now: int) -> Command:
    """A copy that is sent long after it was made: with a stamp that is believed, and due now where its time has passed.

    Args:
        copy: as it was made.
        now: when it is sent, microseconds since the epoch.
    """
    if now - copy.enqueued_us <= SENT_WITHIN_US:
        return copy
    return copy._replace(key=copy.key._replace(time_us=max(copy.key.time_us, now)), enqueued_us=now)


def again(old: Command, now: int, extra: str) -> Command:
    """The same task once more, due now, under a uniqueness key that begins like the old one.

    Args:
        old: the task as it stands.
        now: when that was asked for, and its scheduled time, microseconds since the epoch.
        extra: JSON object of further fields of the record.
    """
    base = old.key.uniqueness_key.partition(_RETRY_MARK)[0][:_ROOM]
    key = old.key._replace(time_us=now, uniqueness_key=f"{base}{_RETRY_MARK}{new_key(now)}")
    return old._replace(kind=ENQUEUE, key=key, enqueued_us=now, request_id=None, extra=extra)


def retried(old: Command, now: int) -> Command:
    """The same task once more, as `again`; its field `retryOf` names the old one."""
    fields = json.loads(old.extra or "{}") | {"retryOf": str(old.key)}
    return again(old, now, json.dumps(fields))


def restored(old: Command, now: int) -> Command:
    """A cancelled task once more, at its own time, or now where that has passed; its field `restoreOf` names the old one.

    A cancel holds for its key for ever, so the copy has another uniqueness key, as with `again`.
    """
    fields = json.loads(old.extra or "{}") | {"restoreOf": str(old.key)}
    copy = again(old, now, json.dumps(fields))
    return copy._replace(key=copy.key._replace(time_us=max(old.key.time_us, now)))


def keywords(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task of `Scheduler.enqueue_many` as keyword arguments.

    Raises:
        ArgumentError: it is no mapping, names no handler, or holds something else.
    """
    if not isinstance(task, Mapping):
        raise ArgumentError(f"A task is a mapping, not a {type(task).__name__}.", reason="wrong_value")
    if unknown := [name for name in task if name not in _FIELDS]:
        raise ArgumentError(
            f"A task has no field {unknown}.", hint=f"Fields: {', '.join(_FIELDS)}.", reason="wrong_value"
        )
    if "handler" not in task:
        raise ArgumentError(
            "A task needs the field `handler`.", hint="None: the default handler, or a lease.", reason="missing_field"
        )
    return dict(task)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ArgumentError(
            f"{what} is {value!r}, a {type(value).__name__}.",
            hint="Pass text, such as str(value).",
            reason="wrong_value",
        )
    if not value:
        raise ArgumentError(
            f"{what} is empty: it has at least 1 character.", hint="Or leave it out.", reason="wrong_value"
        )
    return value


def _some_ms(what: str, value: object) -> int:
    """Milliseconds of a duration that is one.

    Raises:
        ArgumentError: it is none, or rounds to zero.
    """
    ms = duration_ms(value)
    if ms < 1:
        raise ArgumentError(f"{what} is {shown(value)}.", hint="Leave it out for the default.", reason="wrong_value")
    return ms
