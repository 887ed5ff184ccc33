"""The record format of the topic `schedules`: definitions, what is asked of them, and events. Read strictly and totally.

A record is one JSON object. What is wrong with it is told to whoever asked (`id`), and stands in `rejected`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal, NamedTuple, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from scylla_spark.core.plan.state.audit_entry import MOST_ENTRIES, AuditFields
from scylla_spark.core.plan.state.schedule_entry import MOST_RUNS
from scylla_spark.core.plan.strict_json import Name, Text
from scylla_spark.core.plan.triggers.trigger import Scalar
from scylla_spark.core.records import rejection_reason
from scylla_spark.core.records.bounded_text import clean
from scylla_spark.core.tasks.key import LATEST_US

VERSION: Final = 4
"""1 has no `fromNow`, 2 no `versions`, 3 no `bounds`. An older planner refuses such a record; it would ignore the field."""
MAX_RECORD_BYTES: Final = 512 * 1024
MOST_DAYS: Final = 10_000
MOST_NAMES: Final = 10_000
MAX_VALUES_BYTES: Final = 16 * 1024
MOST_COUNTED: Final = 2**53
"""Counts stay below it: every JSON reader has them exactly."""
MOST_LEVELS: Final = (
    50  # of values inside each other; the planner's log nests them deeper, and its readers have a limit too
)

_Identifier = Annotated[str, Field(min_length=1, max_length=200)]
_Count = Annotated[int, Field(ge=0, lt=MOST_COUNTED)]
_Instant = Annotated[int, Field(ge=0, lt=LATEST_US)]
_Day = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class _Partition(TypedDict, total=False):
    values: dict[Text, Scalar]
    count: Annotated[int, Field(ge=1, lt=MOST_COUNTED)]
    rows: _Count
    bytes: _Count


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class _Versions(TypedDict, total=False):
    fromVersion: Required[Annotated[int, Field(ge=-1, lt=MOST_COUNTED)]]
    toVersion: Required[_Count]
    rows: Required[_Count]
    commits: Required[_Count]
    bytes: Required[_Count]
    part: Text
    at: Required[_Instant]


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class _Bounds(TypedDict, total=False):
    beginnings: Annotated[list[Text], Field(max_length=MOST_NAMES)]
    names: Annotated[list[Text], Field(max_length=MOST_NAMES)]


@with_config(ConfigDict(strict=True, extra="allow", allow_inf_nan=False))
class _Named(TypedDict, total=False):
    name: Required[Name]


@with_config(ConfigDict(strict=True, extra="ignore", allow_inf_nan=False))
class _Fields(TypedDict, total=False):
    version: Annotated[int, Field(ge=1, le=VERSION)]
    type: Required[
        Literal[
            "put",
            "delete",
            "pause",
            "resume",
            "run",
            "backfill",
            "event",
            "partitions",
            "calendar",
            "put_queue",
            "delete_queue",
            "put_token",
            "delete_token",
            "put_rule",
            "delete_rule",
            "test_rule",
            "audit",
            "pause_backfill",
            "resume_backfill",
            "cancel_backfill",
        ]
    ]
    id: _Identifier
    author: Text
    note: Text
    schedules: Annotated[list[dict[str, Any]], Field(max_length=MOST_NAMES)]
    ifAbsent: bool
    prune: Text
    dryRun: bool
    names: Annotated[list[Name], Field(min_length=1, max_length=MOST_NAMES)]
    tag: Text
    bounds: _Bounds
    until: _Instant
    fromNow: bool
    changedFrom: _Instant
    changedUntil: _Instant
    name: Text
    payload: dict[str, Any]
    fields: Annotated[dict[Text, Any], Field(max_length=1_000)]
    partitions: Annotated[list[_Partition], Field(min_length=1, max_length=10_000)]
    begin: _Instant
    end: _Instant
    order: Literal["oldest", "newest"]
    priority: Annotated[int, Field(ge=0, le=255)]
    maxRunning: Annotated[int, Field(ge=1, le=100)]
    backfill: _Count
    tableId: Text
    versions: Annotated[list[_Versions], Field(min_length=1, max_length=MOST_RUNS)]
    leaveOut: Annotated[list[_Instant], Field(max_length=10_000)]
    days: Annotated[list[_Day], Field(max_length=MOST_DAYS)]
    notes: Annotated[dict[_Day, Text], Field(max_length=MOST_DAYS)]
    queues: Annotated[list[_Named], Field(min_length=1, max_length=MOST_NAMES)]
    tokens: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_NAMES)]
    rules: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_NAMES)]
    entries: Annotated[list[AuditFields], Field(min_length=1, max_length=MOST_ENTRIES)]
    patch: bool
    unset: Annotated[list[Text], Field(max_length=100)]
    expect: Annotated[dict[Name, _Count], Field(max_length=MOST_NAMES)]


_NEEDS: Final = {
    "put": ("schedules",), "run": ("name",), "event": ("name",), "partitions": ("name", "partitions"), "calendar": ("name", "days"),
    "backfill": ("name",), "put_queue": ("queues",), "delete_queue": ("names",), "put_token": ("tokens",),
    "delete_token": ("names",), "put_rule": ("rules",), "delete_rule": ("names",), "test_rule": ("name",),
    "audit": ("entries",), "pause_backfill": ("name", "backfill"), "resume_backfill": ("name", "backfill"),
    "cancel_backfill": ("name", "backfill"),
}  # fmt: skip
_SELECT: Final = frozenset({"delete", "pause", "resume"})
_read = TypeAdapter(_Fields).validator.validate_json


class PlanCommand(NamedTuple):
    """A valid record of `schedules`.

    Attributes:
        type: what is asked.
        id: of the request, if somebody waits for an answer.
        author: who asks.
        fields: the others, as they are called on the wire.
    """

    type: str
    id: str | None
    author: str
    fields: dict[str, Any]


class Refused(NamedTuple):
    """Why a record of `schedules` is none: a short stable code, and a sentence for people; and who asked, if that could be read."""

    reason: str
    detail: str
    id: str | None = None


def read_command(value: bytes | None) -> PlanCommand | Refused:
    """Judges one record; never raises, whatever the bytes are."""
    try:
        return _command(value)
    except ValidationError as error:
        return Refused(*rejection_reason.of_form(error), _id_of(value))
    except MemoryError:
        raise
    except Exception as error:
        return Refused(*rejection_reason.of_defect(error), _id_of(value))


def _command(value: bytes | None) -> PlanCommand | Refused:
    if not value:
        return Refused("empty", "The record has no value.")
    if len(value) > MAX_RECORD_BYTES:
        return Refused("too_large", f"The record has {len(value)} bytes; {MAX_RECORD_BYTES} are read.")
    found: dict[str, Any] = dict(_read(value))
    kind = found.pop("type")
    missing = [name for name in _NEEDS.get(kind, ()) if name not in found]
    if kind in _SELECT and not found.keys() & {"names", "tag", "changedFrom"}:
        missing = ["names"]
    if kind == "backfill":
        missing += [name for name in (("tableId",) if "versions" in found else ("begin", "end")) if name not in found]
    asked_by = found.pop("id", None)
    if missing:
        return Refused("missing_field", f"{missing[0]}: Field required for {kind!r}.", asked_by)
    trouble = next((trouble for values in _values_of(kind, found) if (trouble := _trouble(values)) is not None), None)
    if trouble is not None:
        return Refused(*trouble, asked_by)
    return PlanCommand(kind, asked_by, found.pop("author", ""), found)


def _values_of(kind: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what a command says of something that happened: the planner keeps it until a job has ended, and templates may name it."""
    if kind == "event":
        return [found.get("fields", {})]
    return [one.get("values", {}) for one in found["partitions"]] if kind == "partitions" else []


def _trouble(values: dict[str, Any]) -> rejection_reason.Reason | None:
    """Returns why values cannot be kept, if they cannot."""
    if _is_deeper(values, MOST_LEVELS):
        return rejection_reason.said("too_large", f"Values have at most {MOST_LEVELS} levels.")
    try:
        size = len(json.dumps(values, allow_nan=False))
    except ValueError:
        return rejection_reason.said("not_finite", "Values are finite numbers: not NaN, not Infinity.")
    if size > MAX_VALUES_BYTES:
        return rejection_reason.said(
            "too_large", f"The fields of an event, or values of a partition, have at most {MAX_VALUES_BYTES} bytes."
        )
    return None


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(one, levels - 1) for one in inner)


def _id_of(value: bytes | None) -> str | None:
    """Returns who asked, where only other fields are wrong."""
    try:
        found = json.loads(value or b"{}")
        asked_by = found.get("id") if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        return None
    told = isinstance(asked_by, str) and 0 < len(asked_by) <= 200 and clean(asked_by) == asked_by
    return asked_by if told else None


def encode_command(kind: str, **fields: Any) -> bytes:
    """The record of a command; fields that are None are left out.

    Args:
        kind: what is asked, such as "put".
        **fields: as they are called on the wire.
    """
    newest = {"bounds": 4, "versions": 3, "fromNow": 2}
    version = max(
        (newest[name] for name in newest if fields.get(name)), default=1
    )  # an older planner obeys what it can
    record = {"version": version, "type": kind} | {name: value for name, value in fields.items() if value is not None}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
