"""The record format of the `tasks` topic: from bytes to a command or a reason for refusal, and back.

Ingest and dispatch judge every record with the one `validate` of this module, so that they can never disagree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, Required

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic refuses that of Python 3.11

from scylla_spark import failpoint
from scylla_spark.clock import iso, to_us
from scylla_spark.core.records import fast_json, rejection_reason
from scylla_spark.core.records.field_types import Instant, Tags
from scylla_spark.core.tasks.about import About, Description, Label
from scylla_spark.core.tasks.key import EARLIEST_US, LATEST_US, TaskKey, is_storable, place_of
from scylla_spark.core.tasks.task import MAX_PAYLOAD_BYTES, NEVER_US, NOT_GIVEN, Invocation, LastError
from scylla_spark.core.tasks.trace_context import Traceparent
from scylla_spark.defaults import DEFAULT_QUEUE, GRACE, MOST_RETRIES, RETENTION
from scylla_spark.duration import duration_ms
from scylla_spark.name import PATTERN

VERSION: Final = 4
"""The newest version of records. 2: tasks expire. 3: names are unique. 4: a retry policy leaves fields out. A record has the
lowest that says what it means; an older reader refuses what it would take for something else, as `unknown_version`, a row of `rejected`."""
COMMON_VERSION: Final = 1  # what every reader understands: cancels, and tasks that do not expire
_EXPIRING: Final = 2
_UNIQUE: Final = 3
OPEN_NAME: Final = "open"  # of all tasks of a lane with one uniqueness key at most one is open
ENQUEUE: Final = "enqueue"
CANCEL: Final = "cancel"
MISSING: Final = "missing"
"""Field of a record without a column of its own: what a run of a schedule was launched without."""
MAX_RECORD_BYTES: Final = MAX_PAYLOAD_BYTES + 64 * 1024
STAMP_TRUST_US: Final = 3_600_000_000  # a client's stamp further than this from the append time is not believed
SENT_WITHIN_US: Final = (
    3_300_000_000  # what is handed to Kafka no longer than this after its stamp certainly arrives while it is believed
)
TOO_LATE: Final = "too_late"
TOO_OLD: Final = "too_old"

Name = Annotated[str, Field(pattern=f"^{PATTERN}$")]
Identifier = Annotated[str, Field(min_length=1, max_length=1024)]
Millis = Annotated[int, BeforeValidator(duration_ms)]
SomeMillis = Annotated[int, Field(ge=1), BeforeValidator(duration_ms)]


_LIKE_JSON = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


@with_config(_LIKE_JSON)
class _RetryFields(TypedDict, total=False):
    maxRetries: Annotated[int, Field(ge=0, le=MOST_RETRIES)] | None
    base: Millis
    cap: Millis


@with_config(_LIKE_JSON)
class _AboutFields(TypedDict, total=False):
    name: Label | None
    description: Description | None
    enqueuedBy: Label | None
    proof: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None


@with_config(_LIKE_JSON)
class _CommandFields(TypedDict, total=False):
    """The fields as they are called on the wire: a field of another name stays beside them and can never be taken for one of them."""

    orderingId: Required[Identifier]
    scheduledTime: Required[Instant]
    uniquenessKey: Required[Identifier]
    taskData: dict[str, Any] | None
    version: Annotated[int, Field(ge=1, le=VERSION)]
    type: Literal["enqueue", "cancel"]
    handler: Name | None
    queue: Name
    priority: Annotated[int, Field(ge=0, le=255)]
    timeout: Millis | None
    expires: SomeMillis | None
    unique: Literal["open"] | None
    tags: Tags | None
    traceparent: Traceparent | None
    about: _AboutFields | None
    retry: _RetryFields | None
    enqueuedAt: Instant | None
    requestId: Identifier | None
    grace: Millis | None


_FIELDS: Final = frozenset(_CommandFields.__annotations__)
# every record of the log passes here several times: a typed dict takes less than half of a model's time
_read = TypeAdapter(_CommandFields).validator.validate_json


class WireRetry(NamedTuple):
    """A retry policy as it travels: None retries for ever; milliseconds; NOT_GIVEN in place of what it leaves out."""

    max_retries: int | None
    base_ms: int
    cap_ms: int


class Command(NamedTuple):
    """A valid record of the `tasks` topic.

    Attributes:
        kind: "enqueue" or "cancel".
        offset: offset of the record; later commands of a key win.
        payload: JSON text of an object.
        enqueued_us: the client's stamp, or the append time where that is missing or not believable.
        extra: JSON text of fields that have no column of their own, or None.
        request_id: set where a client waits for an answer.
        grace_ms: of a cancel: end what runs, too, and how long it may go on; None: leave it alone.
        expires_ms: of an enqueue: the task ends as expired if it has not begun so long after its scheduled time; None: it never does.
        tags: by which it is found.
        traceparent: of the span in which it was enqueued (W3C Trace Context); None: of none.
        unique: of the first enqueue of a key: the task ends as a duplicate if an earlier one of its lane and uniqueness key is open.
        about: what people read of it; None: nothing.
    """

    kind: str
    key: TaskKey
    offset: int
    handler: str | None = None
    queue: str = DEFAULT_QUEUE
    payload: str = "{}"
    priority: int = 0
    timeout_ms: int | None = None
    retry: WireRetry | None = None
    enqueued_us: int = 0
    extra: str | None = None
    request_id: str | None = None
    grace_ms: int | None = None
    expires_ms: int | None = None
    tags: tuple[str, ...] = ()
    traceparent: str | None = None
    unique: bool = False
    about: About | None = None

    @property
    def expires_us(self) -> int | None:
        """Returns when the task expires unless it has begun, microseconds since the epoch; None: never."""
        return None if self.expires_ms is None else self.key.time_us + self.expires_ms * 1000

    def invocation(
        self,
        number: int,
        attempt: int,
        epoch: int,
        planned_us: int,
        *,
        handler: str,
        timeout_ms: int,
        start_by_us: int = NEVER_US,
        checkpoint: str | None = None,
        last_error: LastError | None = None,
        expires_us: int = NEVER_US,
    ) -> Invocation:
        """An attempt of the task; see `Invocation`.

        Args:
            number: its id.
            attempt: its number, from 1.
            epoch: of the owner that starts it.
            planned_us: when it could start at the earliest, microseconds since the epoch.
            handler: runs it, if the task names none.
            timeout_ms: longest run, if the task does not say.
            start_by_us: boot clock after which it must not start.
            checkpoint: JSON text that an earlier attempt left behind.
            last_error: why the attempt before did not succeed.
            expires_us: when the task expires, microseconds since the epoch.
        """
        fields = (
            number,
            self.key,
            attempt,
            epoch,
            self.handler or handler,
            self.queue,
            self.payload,
            self.priority,
            planned_us,
            self.timeout_ms or timeout_ms,
            start_by_us,
            checkpoint,
            last_error,
            expires_us,
            self.tags,
            self.traceparent,
            () if self.extra is None else _missing_of(self.extra),
        )
        return tuple.__new__(Invocation, fields)  # in half the time of a call of the class


class Rejection(NamedTuple):
    """Why a record was refused: a short stable code, and a sentence for people."""

    offset: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What `validate` needs to know of the deployment; stored with the tables so that all parts use the same.

    Attributes:
        partitions: partition count of `tasks`.
        grace_ms: how far before its enqueueing a task may be scheduled.
        retention_ms: tasks scheduled longer ago than this, measured from the append, are refused.
        default_handler: for records that name none.
    """

    partitions: int
    grace_ms: int = duration_ms(GRACE)
    retention_ms: int = duration_ms(RETENTION)
    default_handler: str | None = None

    def late_before_us(self, enqueued_us: int) -> int:
        """Tasks scheduled before this come too late if they are enqueued then; microseconds since the epoch."""
        return enqueued_us - self.grace_ms * 1000

    def old_before_us(self, appended_us: int) -> int:
        """Tasks scheduled before this are too old if their record is appended then; microseconds since the epoch."""
        return appended_us - self.retention_ms * 1000

    def earliest_us(self, now: int) -> int:
        """The earliest scheduled time that is neither too late nor too old for who enqueues now."""
        return max(self.late_before_us(now), self.old_before_us(now))


class _Refused(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def validate(
    partition: int, offset: int, append_us: int, key: bytes | None, value: bytes | None, rules: Rules
) -> Command | Rejection:
    """Judges one record; never raises, whatever the bytes are: a defect of ours is a reason of its own.

    Args:
        partition: partition the record was read from.
        offset: its offset.
        append_us: the broker's append time, microseconds since the epoch.
        key: Kafka key as read.
        value: Kafka value as read.
        rules: the deployment's rules.

    Returns:
        The command, or the reason why there is none.
    """
    try:
        if failpoint.armed:
            failpoint.reach("judge.command")
        return _command(partition, offset, append_us, key, value, rules)
    except _Refused as refusal:
        return Rejection(offset, *rejection_reason.said(refusal.reason, refusal.detail))
    except ValidationError as error:
        return Rejection(offset, *rejection_reason.of_form(error))
    except MemoryError:
        raise  # it says nothing of this record
    except Exception as error:
        return Rejection(offset, *rejection_reason.of_defect(error))


def _command(
    partition: int, offset: int, append_us: int, key: bytes | None, value: bytes | None, rules: Rules
) -> Command:
    if not value:
        raise _Refused("empty", "The record has no value.")
    if len(value) > MAX_RECORD_BYTES:
        raise _Refused("too_large", f"The record has {len(value)} bytes; {MAX_RECORD_BYTES} are allowed.")
    record: _CommandFields = _read(value)
    ordering_id = record["orderingId"]
    _check_place(partition, key, ordering_id, rules)
    time_us = to_us(record["scheduledTime"])
    stamped = record.get("enqueuedAt")
    stamp = to_us(stamped) if stamped is not None else append_us
    if not (EARLIEST_US <= time_us < LATEST_US and EARLIEST_US <= stamp < LATEST_US):
        raise _Refused("time_out_of_range", _out_of_range(record))
    enqueued_us = stamp if abs(stamp - append_us) <= STAMP_TRUST_US else append_us
    kind, data, retry = record.get("type", ENQUEUE), record.get("taskData"), record.get("retry")
    if kind == ENQUEUE:
        _check_time(time_us, enqueued_us, append_us, rules)
        if data is None:
            raise _Refused("missing_field", "taskData: Field required.")
    enqueues = kind == ENQUEUE
    about = record.get("about") if enqueues else None
    tags = record.get("tags") if enqueues else None
    unknown = (
        None if record.keys() <= _FIELDS else {name: value for name, value in record.items() if name not in _FIELDS}
    )
    return Command(  # by place, since names take half a microsecond
        kind,
        TaskKey(time_us, ordering_id, record["uniquenessKey"]),
        offset,
        record.get("handler") or rules.default_handler,
        record.get("queue", DEFAULT_QUEUE),
        _text("taskData", data or {}),
        record.get("priority", 0),
        record.get("timeout"),
        _terms(retry) if retry is not None else None,
        enqueued_us,
        _text("unknown fields", unknown) if unknown else None,
        record.get("requestId"),
        record.get("grace") if not enqueues else None,
        record.get("expires") if enqueues else None,
        tuple(dict.fromkeys(tags)) if tags else (),
        record.get("traceparent") if enqueues else None,
        enqueues and record.get("unique") == OPEN_NAME,
        _about(about) if about else None,
    )


def _about(said: _AboutFields) -> About | None:
    about = About.masked(said.get("name"), said.get("description"), said.get("enqueuedBy"), said.get("proof"))
    return about if any(about) else None


def _terms(retry: _RetryFields) -> WireRetry:
    return WireRetry(retry.get("maxRetries", NOT_GIVEN), retry.get("base", NOT_GIVEN), retry.get("cap", NOT_GIVEN))


def _out_of_range(record: _CommandFields) -> str:
    moments = {"scheduledTime": record["scheduledTime"], "enqueuedAt": record.get("enqueuedAt")}
    wild = [f"{field} {at.isoformat()}" for field, at in moments.items() if at and not is_storable(to_us(at))]
    return f"{' and '.join(wild) or 'The append time'} is before 1970 or after 2261."


def _check_place(partition: int, key: bytes | None, ordering_id: str, rules: Rules) -> None:
    if key is not None and key != ordering_id.encode():
        raise _Refused("wrong_key", "The Kafka key is not the orderingId.")
    right = place_of(ordering_id, rules.partitions)
    if partition != right:
        raise _Refused("wrong_partition", f"orderingId {ordering_id!r} belongs to partition {right}, not {partition}.")


def _check_time(time_us: int, enqueued_us: int, append_us: int, rules: Rules) -> None:
    if time_us < rules.late_before_us(enqueued_us):
        raise _Refused(
            TOO_LATE,
            f"scheduledTime {iso(time_us)} is more than {rules.grace_ms} ms before the enqueueing at {iso(enqueued_us)}.",
        )
    if time_us < rules.old_before_us(append_us):
        raise _Refused(TOO_OLD, f"scheduledTime {iso(time_us)} is older than the retention.")


def _text(what: str, value: object) -> str:
    try:
        text = fast_json.text(value)
    except ValueError as error:
        raise _Refused("not_finite", f"{what}: {error}.") from None
    if len(text) > MAX_PAYLOAD_BYTES or (not text.isascii() and len(text.encode()) > MAX_PAYLOAD_BYTES):
        size = f"{len(text.encode())} bytes, and at most {MAX_PAYLOAD_BYTES} bytes are allowed"
        raise _Refused("payload_too_large", f"{what} has {size}. Store large data elsewhere, and send its path or URI.")
    return text


def encode(command: Command, *, with_stamp: bool = True) -> bytes:
    """The record's value for a command, as UTF-8 JSON; its Kafka key is the ordering id."""
    record: dict[str, Any] = {
        "orderingId": command.key.ordering_id,
        "scheduledTime": iso(command.key.time_us),
        "uniquenessKey": command.key.uniqueness_key,
        "version": version_of(
            expires=command.expires_ms is not None, unique=command.unique, partial=NOT_GIVEN in (command.retry or ())
        ),
        "type": command.kind,
        "queue": command.queue,
    }
    if with_stamp:
        record["enqueuedAt"] = iso(command.enqueued_us)
    optional: dict[str, Any] = {
        "handler": command.handler,
        "priority": command.priority or None,
        "requestId": command.request_id,
        "tags": command.tags or None,
        "traceparent": command.traceparent,
        "unique": OPEN_NAME if command.unique else None,
    }
    optional["timeout"] = None if command.timeout_ms is None else f"{command.timeout_ms}ms"
    optional["expires"] = None if command.expires_ms is None else f"{command.expires_ms}ms"
    optional["grace"] = None if command.grace_ms is None else f"{command.grace_ms}ms"
    if command.retry is not None:
        count, *waits = command.retry
        said: dict[str, Any] = {} if count == NOT_GIVEN else {"maxRetries": count}
        said |= {name: f"{ms}ms" for name, ms in zip(("base", "cap"), waits, strict=True) if ms != NOT_GIVEN}
        optional["retry"] = said
    if command.about is not None:
        said_of_it = zip(("name", "description", "enqueuedBy", "proof"), command.about, strict=True)
        optional["about"] = {name: text for name, text in said_of_it if text is not None}
    record |= {name: value for name, value in optional.items() if value is not None}
    head = fast_json.text(record)
    if command.kind == CANCEL:
        return head.encode()
    return f'{head[:-1]},"taskData":{command.payload}}}'.encode()


def with_extra(value: bytes, extra: str | None) -> bytes:
    """The record with the fields of `extra`, the text of a JSON object; `encode` does not write them."""
    return value if extra is None or extra == "{}" else value[:-1] + b"," + extra[1:].encode()


def _missing_of(extra: str) -> tuple[str, ...]:
    """Returns what a run of a schedule was launched without, as the fields without a column say; any client may have written them."""
    found = json.loads(extra).get(MISSING) if f'"{MISSING}"' in extra else None
    return tuple(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else ()


def version_of(*, expires: bool, unique: bool, partial: bool = False) -> int:
    """The version of a record: the lowest that says what it means.

    Args:
        expires: the task expires.
        unique: its name is to be unique.
        partial: its retry policy leaves fields out, which its handler, its queue and the deployment fill in.
    """
    if partial:
        return VERSION
    if unique:
        return _UNIQUE
    return _EXPIRING if expires else COMMON_VERSION


def payload_text(payload: Mapping[str, Any] | None) -> str:
    """JSON text of a payload.

    Raises:
        ValueError: it holds a value that JSON cannot express, or is larger than 256 KiB.
        TypeError: it is no mapping, or holds an object of another type.
    """
    if payload is not None and not isinstance(payload, Mapping):
        raise TypeError(f"the payload is a {type(payload).__name__}; pass a dict")
    try:
        return _text("payload", dict(payload or {}))
    except _Refused as refusal:
        raise ValueError(refusal.detail) from None
