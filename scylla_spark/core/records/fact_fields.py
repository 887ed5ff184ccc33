"""The fields of records on `outcomes`, with their types and ranges, in each version of the format.

The ranges are those of the tables' columns: what passes here can be stored and read by all. Unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Required

from pydantic import ConfigDict, FailFast, Field, TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic refuses that of Python 3.11

from scylla_spark.core.records.field_types import Tags
from scylla_spark.core.tasks.attempt_note import MAX_PROGRESS_NOTE_CHARS
from scylla_spark.core.tasks.key import EARLIEST_US, LATEST_US

MAX_EPOCH: Final = 2**62
MAX_COUNT: Final = 2**31 - 1
MAX_ADDRESS_CHARS: Final = 2_000
MAX_WORKER_CHARS: Final = 256
MAX_LEASE_CHARS: Final = 64
MAX_ISOLATION_CHARS: Final = 64
NUMBERS: Final = {
    "attempt": MAX_COUNT,
    "started_us": LATEST_US - 1,
    "finished_us": LATEST_US - 1,
    "planned_us": LATEST_US - 1,
    "used": MAX_COUNT,
}
"""Columns of numbers, none of which is null or negative: name → the largest. One of nothing but zeros is left out."""
NULLABLE: Final = ("next_us", "result", "failure", "request_id", "work", "queue", "handler", "tags")
"""Columns that are left out where they hold nothing but nulls."""

_Instant = Annotated[int, Field(ge=EARLIEST_US, lt=LATEST_US)]
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Identifier = Annotated[str, Field(min_length=1, max_length=1024)]
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Address = Annotated[str, Field(max_length=MAX_ADDRESS_CHARS)]
_Outcome = Literal[
    "started", "succeeded", "failed", "aborted", "cancelled", "expired", "duplicate", "timed_out", "yielded", "too_late"
]
_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


@with_config(_STRICT)
class _Envelope(TypedDict, total=False):
    """What every record has in every version, also in those to come; version 1 had no kind."""

    v: Required[Annotated[int, Field(ge=1)]]
    kind: Annotated[str, Field(min_length=1, max_length=100)]
    epoch: Required[Annotated[int, Field(ge=1, le=MAX_EPOCH)]]
    nonce: Required[Annotated[str, Field(min_length=1, max_length=200)]]
    address: Any


@with_config(_STRICT)
class _Failure(TypedDict):
    kind: str
    message: str
    stack: str


@with_config(_STRICT)
class _Work(TypedDict, total=False):
    worker: Annotated[str, Field(min_length=1, max_length=MAX_WORKER_CHARS)] | None
    lease: Annotated[str, Field(min_length=1, max_length=MAX_LEASE_CHARS)] | None
    lease_ms: Annotated[int, Field(ge=0, le=LATEST_US // 1000)]
    since_us: Annotated[int, Field(ge=0, lt=LATEST_US)]
    until_us: Annotated[int, Field(ge=0, lt=LATEST_US)]
    progress: Annotated[float, Field(ge=0, le=1)] | None
    checkpoint: str | None
    metrics: str | None
    isolation: Annotated[str, Field(min_length=1, max_length=MAX_ISOLATION_CHARS)] | None
    outputs: str | None
    progress_note: Annotated[str, Field(min_length=1, max_length=MAX_PROGRESS_NOTE_CHARS)] | None


@with_config(_STRICT)
class _Columns(TypedDict, total=False):
    """Facts by column, each as long as the others; a column of nothing but zeros or nulls is left out."""

    time_us: Required[Annotated[list[_Instant], FailFast()]]
    ordering_id: Required[Annotated[list[_Identifier], FailFast()]]
    uniqueness_key: Required[Annotated[list[_Identifier], FailFast()]]
    attempt: Annotated[list[_Count], FailFast()]
    outcome: Required[Annotated[list[_Outcome], FailFast()]]
    started_us: Annotated[list[_Instant], FailFast()]
    finished_us: Annotated[list[_Instant], FailFast()]
    planned_us: Annotated[list[_Instant], FailFast()]
    used: Annotated[list[_Count], FailFast()]
    next_us: Annotated[list[_Instant | None], FailFast()]
    result: Annotated[list[str | None], FailFast()]
    failure: Annotated[list[_Failure | None], FailFast()]
    request_id: Annotated[list[_Identifier | None], FailFast()]
    work: Annotated[list[_Work | None], FailFast()]
    queue: Annotated[list[_Name | None], FailFast()]
    handler: Annotated[list[_Name | None], FailFast()]
    tags: Annotated[list[Tags | None], FailFast()]


@with_config(_STRICT)
class _Facts(_Envelope):
    facts: Required[_Columns]


@with_config(_STRICT)
class _Fence1(TypedDict):
    address: _Address


_Fact1 = Annotated[
    tuple[
        _Instant,
        _Identifier,
        _Identifier,
        _Count,
        _Outcome,
        _Instant,
        _Instant,
        _Instant,
        _Count,
        _Instant | None,
        str | None,
        Annotated[tuple[str, str, str], Field(strict=False)] | None,
        _Identifier | None,
    ],
    Field(strict=False),
]


@with_config(_STRICT)
class _Record1(TypedDict, total=False):
    """Version 1: the kind is told by which of three fields there is, and facts are told by position."""

    fence: _Fence1
    facts: Annotated[list[_Fact1], FailFast()]
    resign: Literal[True]


read_envelope = TypeAdapter(_Envelope).validator.validate_python
read_facts = TypeAdapter(_Facts).validator.validate_python
read_version_1 = TypeAdapter(_Record1).validator.validate_python
read_address = TypeAdapter(_Address).validator.validate_python
