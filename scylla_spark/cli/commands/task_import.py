"""Files of tasks for `task import`: jsonl, csv and parquet rows as keyword arguments of `Scheduler.enqueue`."""

from __future__ import annotations

import csv
import io
import json
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.clock import from_us, now_us
from scylla_spark.core.tasks.enqueue_options import EnqueueOptions
from scylla_spark.core.tasks.local_time import due_us
from scylla_spark.errors import ArgumentError, SchedulerError

if TYPE_CHECKING:
    from scylla_spark.client.scheduler import Scheduler
    from scylla_spark.client.tasks.enqueue_result import Refused
    from scylla_spark.core.tasks.task import Retry

_NAMES: Final = {
    "orderingId": "ordering_id", "uniquenessKey": "uniqueness_key", "scheduledTime": "at", "scheduled_time": "at", "taskData": "payload",
    "task_data": "payload", "enqueuedBy": "enqueued_by",
}  # fmt: skip
_KNOWN: Final = frozenset({"about", "handler", "payload", *EnqueueOptions.__annotations__})
_SAYS_NOTHING: Final = frozenset(
    {"version", "type", "enqueuedAt", "enqueued_at", "requestId", "grace"}
)  # fields of the wire format
_MOST_OF_A_FIELD: Final = 16 * 1024 * 1024  # a payload is judged later
_OF_RETRY: Final = {"maxRetries": "max_retries"}


def tasks(file: str, form: str | None, handler: str | None) -> list[dict[str, Any]]:
    """The rows of a file as keyword arguments of `enqueue`.

    Args:
        file: path, or "-" for stdin.
        form: jsonl, csv or parquet; None: by the name's ending, jsonl for stdin.
        handler: for rows that name none; None: the default handler runs them, or a worker leases them.

    Raises:
        ArgumentError: the file cannot be read or a row cannot be understood; the message names the row.
    """
    chosen = form or ("jsonl" if file == "-" else Path(file).suffix.lstrip("."))
    read = {"jsonl": _jsonl, "json": _jsonl, "ndjson": _jsonl, "csv": _csv, "parquet": _parquet}.get(chosen)
    if read is None:
        raise ArgumentError(f"{file}: the format {chosen!r} is not known.", hint="Pass --format jsonl, csv or parquet.")
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ArgumentError(f"{file} cannot be read: {error.strerror}.") from None
    found: list[dict[str, Any]] = []
    rows = iter(read(raw))
    for number in count(1):
        try:
            if (row := next(rows, None)) is None:
                return found
            found.append(_keywords(row, handler))
        except (ValueError, TypeError, RecursionError, csv.Error, SchedulerError) as error:
            raise ArgumentError(f"{file}, row {number}: {str(error) or 'it is nested too deep.'}") from None
    return found


def check(scheduler: Scheduler, rows: Iterable[Mapping[str, Any]]) -> list[Refused]:
    """Those that would be refused; sends nothing."""
    from scylla_spark.client.tasks import enqueue_arguments
    from scylla_spark.client.tasks.enqueue_result import Refused
    from scylla_spark.clock import now_us

    refused = []
    for index, row in enumerate(rows):
        try:
            scheduler.connection.sender.record(enqueue_arguments.command(now_us(), **enqueue_arguments.keywords(row)))
        except ArgumentError as error:
            refused.append(Refused(index, str(error.fields.get("reason", "wrong_value")), str(error)))
    return refused


def _keywords(row: object, handler: str | None) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise ArgumentError("it is not an object.")
    values: dict[str, Any] = {
        _NAMES.get(str(name), str(name)): value for name, value in row.items() if value is not None and value != ""
    }
    if values.get("type", "enqueue") != "enqueue":
        raise ArgumentError(
            f"it is no task but a {values['type']!r}.", hint="`scylla-spark task cancel` cancels tasks."
        )
    values = {name: value for name, value in values.items() if name not in _SAYS_NOTHING}
    if unknown := values.keys() - _KNOWN:
        raise ArgumentError(
            f"there is no field {', '.join(sorted(unknown))}.", hint=f"Fields: {', '.join(sorted(_KNOWN))}."
        )
    values.setdefault("handler", handler)
    values = _said(values.pop("about", None)) | values
    if "retry" in values:
        values["retry"] = _retry(values["retry"])
    if isinstance(values.get("payload"), str):
        values["payload"] = json.loads(values["payload"])
    if isinstance(values.get("at"), str):
        values["at"] = from_us(due_us(values["at"], now_us()))
    if isinstance(values.get("tags"), str):
        values["tags"] = [tag.strip() for tag in values["tags"].split(",")]
    if isinstance(values.get("priority"), str):
        values["priority"] = int(values["priority"])
    return values


def _said(about: object) -> dict[str, Any]:
    """What a record says of a task for people, as arguments of `enqueue`; a proof is of no use under another key."""
    found = json.loads(about) if isinstance(about, str) else about or {}
    if not isinstance(found, Mapping):
        raise ArgumentError("about is no object.", hint='Write {"name": "…", "description": "…"}.')
    return {_NAMES.get(str(name), str(name)): text for name, text in found.items() if name != "proof"}


def _retry(value: object) -> Retry:
    """A retry policy by the names of the wire format or of `Retry`; what it leaves out is at its default, and null retries are for ever."""
    from scylla_spark.core.tasks.task import Retry

    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise ArgumentError("retry is no object.", hint='Write {"maxRetries": 5, "base": "20s", "cap": "2m"}.')
    named = {_OF_RETRY.get(str(name), str(name)): item for name, item in found.items()}
    if unknown := named.keys() - {"max_retries", "base", "cap"}:
        raise ArgumentError(f"retry has no field {', '.join(sorted(unknown))}.", hint="Fields: maxRetries, base, cap.")
    return Retry(**{name: item for name, item in named.items() if item is not None or name == "max_retries"})


def _jsonl(raw: bytes) -> Iterable[object]:
    for number, line in enumerate(raw.removeprefix(BOM_UTF8).split(b"\n"), 1):  # texts may hold other ends of lines
        if line.strip():
            try:
                yield json.loads(line.decode())
            except ValueError as error:
                raise ArgumentError(f"Line {number} is not JSON: {error}.") from None


def _csv(raw: bytes) -> Iterable[object]:
    csv.field_size_limit(_MOST_OF_A_FIELD)
    try:
        return csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
    except UnicodeDecodeError as error:
        raise ArgumentError(f"The file is not UTF-8: {error}.", hint="Save it as UTF-8.") from None


def _parquet(raw: bytes) -> Iterable[object]:
    import polars as pl

    return pl.read_parquet(io.BytesIO(raw)).iter_rows(named=True)
