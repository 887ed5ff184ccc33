"""Commands from what people pass: keyword arguments of `Scheduler.enqueue` to a command, or to a reason why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Unpack

from scylla_spark.clock import boot_us
from scylla_spark.core.records.command import ENQUEUE, OPEN_NAME, SENT_WITHIN_US, Command
from scylla_spark.core.tasks.about import about_of
from scylla_spark.core.tasks.enqueue_options import EnqueueOptions, enqueue_command
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.local_time import due_us
from scylla_spark.core.tasks.trace_context import current_trace
from scylla_spark.core.tasks.uuid7 import Uuid7
from scylla_spark.defaults import NOTIFY_HANDLER, NOTIFY_QUEUE
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError, ConflictError, shown
from scylla_spark.handlers.registry import named_handler, registered
from scylla_spark.handlers.value_type import ValueType

_ids: Final = Uuid7()
_RETRY_MARK: Final = "~retry-"
_CALLED_HERE: Final = {
    "start_by": 'expires, a duration from its scheduled time, such as expires="10m"',
}
_SAID: Final = frozenset({"name", "description", "enqueued_by"})
_ROOM: Final = 900  # characters of an old key that a copy's keeps
_MOST_STEPS: Final = 100  # keys that are looked at for an unused one


def new_key(now: int) -> str:
    """A new uniqueness key or request id; grows with every call in this process."""
    return _ids.next(now)


def command(
    now: int, handler: str | Callable[..., Any] | None, payload: Any = None, **options: Unpack[EnqueueOptions]
) -> Command:
    """The command that `Scheduler.enqueue` sends; its arguments, and the moment.

    Args:
        now: the moment of the call, microseconds since the epoch.
        handler: name, or a registered function; None leaves it to `ingest.default_handler`.
        payload: a JSON object; of a function that declares a type of payload, a value of that. Default: empty.
        **options: see `EnqueueOptions`.

    Raises:
        TypeError: there is no option of such a name.
        ArgumentError: an argument has a type or form that cannot be written; the rules are applied later, by the sender.
    """
    _check_known(options)
    _check_not_ours(handler, options.get("queue"))
    name, lane = options.get("uniqueness_key"), options.get("ordering_id")
    unique = asks_for_unique(options.get("unique"), name)
    named = new_key(now) if name is None else _text("uniqueness_key", name)
    lane = named if lane is None else _text("ordering_id", lane)
    handler, payload = named_handler(handler, payload)
    key = TaskKey(moment(now, options.get("at"), options.get("delay")), lane, named)
    about = None
    if not _SAID.isdisjoint(options):
        about = about_of(options.get("name"), options.get("description"), options.get("enqueued_by"))
    return enqueue_command(
        key, handler, payload, options, enqueued_us=now, unique=unique, trace=current_trace(), about=about
    )


_FIELDS: Final = ("handler", "payload", *EnqueueOptions.__annotations__)


def asks_for_unique(unique: object, uniqueness_key: object) -> bool:
    """Returns True if the name of a task is to be unique among open tasks, by the argument `unique`.

    Raises:
        ArgumentError: it is neither "open" nor None, or there is no name that another task could bear.
    """
    if unique is None:
        return False
    if unique != OPEN_NAME:
        raise ArgumentError(f"unique is {shown(unique)}.", hint='Pass "open", or leave it out.', reason="wrong_value")
    if uniqueness_key is None:
        raise ArgumentError(
            "A unique task needs a uniqueness_key.",
            hint="Without one a new key is made up, which nobody has.",
            reason="missing_field",
        )
    return True


def _check_known(options: Mapping[str, object]) -> None:
    """Refuses arguments that there are not; of those of other schedulers it says what they are called here."""
    for name in options.keys() - EnqueueOptions.__annotations__.keys():
        if name in _CALLED_HERE:
            raise ArgumentError(f"A task has no {name}.", hint=f"Pass {_CALLED_HERE[name]}.", reason="wrong_value")
        raise TypeError(f"enqueue() got an unexpected keyword argument {name!r}")


def _check_not_ours(handler: object, queue: object) -> None:
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


def moment(now: int, at: datetime | str | None, delay: object) -> int:
    """Microseconds since the epoch of `at`, of now + `delay`, or of now.

    Args:
        now: microseconds since the epoch.
        at: as `due_us` takes it, or None.
        delay: as `Scheduler.enqueue` takes it, or None.

    Raises:
        ArgumentError: both are given, or `at` is no time with a zone.
    """
    if at is not None and delay is not None:
        raise ArgumentError("Both `at` and `delay` are given.", hint="Pass one of them.", reason="wrong_value")
    if at is not None:
        return due_us(at, now)
    return now + (duration_us(delay) if delay is not None else 0)


def deadline_of(timeout: object) -> int:
    """Returns when a timeout (a duration, or None for ever) that begins now will be over, on `clock.boot_us`."""
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
