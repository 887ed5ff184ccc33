"""The records of the topic `logs`: lines that one attempt of a task has written.

What stands here is for people to read and decides nothing, so a record that cannot be read is skipped and counted, and a line that
is missing is told by a marker line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import to_json
from typing_extensions import TypedDict  # pydantic refuses that of Python 3.11

from scylla_spark.core.records.bounded_text import clean
from scylla_spark.core.records.rejection_reason import Reason, of_defect, of_form, said
from scylla_spark.core.tasks.key import EARLIEST_US, LATEST_US, TaskKey

VERSION: Final = 1
STREAMS: Final = ("stdout", "stderr", "logging", "scheduler")
MARKER: Final = "scheduler"
"""The stream of markers: what we say of an attempt's output ourselves."""
MAX_RECORD_BYTES: Final = 1024 * 1024
MAX_TEXT_BYTES: Final = 64 * 1024
_MAX_LINES: Final = 20_000
_MAX_EPOCH: Final = 2**62
_MAX_COUNT: Final = 2**31 - 1
CUT: Final = " […]"
"""Mark at the end of a line that was cut."""


class LogLine(NamedTuple):
    """One line of an attempt.

    Attributes:
        seq: number of the line within its attempt, from 1; what is missing in between is told by a marker.
        at_us: when it was written, microseconds since the epoch, by the clock of the machine that ran it.
        stream: stdout, stderr, logging, or scheduler for markers.
        level: debug, info, warning, error or critical; None for what was printed.
        text: without the end of the line.
        fields: JSON object of what a logging record held besides; None: nothing.
    """

    seq: int
    at_us: int
    stream: str
    level: str | None
    text: str
    fields: str | None = None


class LogRecord(NamedTuple):
    """Lines of one attempt, in order.

    Attributes:
        key: of the task.
        attempt: its number.
        epoch: fencing number of the dispatcher that started it; tells two runs of one attempt apart.
        lines: at least one.
    """

    key: TaskKey
    attempt: int
    epoch: int
    lines: tuple[LogLine, ...]


_Instant = Annotated[int, Field(ge=EARLIEST_US, lt=LATEST_US)]
_Identifier = Annotated[str, Field(min_length=1, max_length=1024)]
_Text = Annotated[str, Field(max_length=MAX_TEXT_BYTES)]


@with_config(ConfigDict(strict=True, extra="ignore", allow_inf_nan=False))
class _Record(TypedDict):
    version: Annotated[int, Field(ge=1, le=VERSION)]
    time_us: _Instant
    ordering_id: _Identifier
    uniqueness_key: _Identifier
    attempt: Annotated[int, Field(ge=0, le=_MAX_COUNT)]
    epoch: Annotated[int, Field(ge=0, le=_MAX_EPOCH)]
    lines: Annotated[
        list[
            tuple[
                Annotated[int, Field(ge=1, le=_MAX_COUNT)],
                _Instant,
                Literal["stdout", "stderr", "logging", "scheduler"],
                Literal["debug", "info", "warning", "error", "critical"] | None,
                _Text,
                _Text | None,
            ]
        ],
        Field(min_length=1, max_length=_MAX_LINES),
    ]


_reader: Final = TypeAdapter(_Record)


def encode(record: LogRecord) -> bytes:
    """The bytes of a record; texts must be fit for UTF-8 (see `bounded`)."""
    key = record.key
    return to_json(
        {
            "version": VERSION,
            "time_us": key.time_us,
            "ordering_id": key.ordering_id,
            "uniqueness_key": key.uniqueness_key,
            "attempt": record.attempt,
            "epoch": record.epoch,
            "lines": record.lines,
        }
    )


def decode(value: bytes | None) -> LogRecord | Reason:
    """The record in a message of the topic, or why it is none. It never raises.

    Args:
        value: bytes of the message.
    """
    if not value:
        return said("empty", "The record has no value.")
    if len(value) > MAX_RECORD_BYTES:
        return said("too_large", f"The record has {len(value)} bytes; at most {MAX_RECORD_BYTES} are read.")
    try:
        read = _reader.validate_json(value)
        key = TaskKey(read["time_us"], read["ordering_id"], read["uniqueness_key"])
        return LogRecord(key, read["attempt"], read["epoch"], tuple(LogLine(*line) for line in read["lines"]))
    except ValidationError as error:
        return of_form(error)
    except (ValueError, RecursionError) as error:
        return of_defect(error)


def bounded(text: str, most: int) -> str:
    """The text as one that every topic and table takes, cut with a mark where it has more bytes than `most` as UTF-8.

    Args:
        text: any.
        most: bytes, at least some dozens.
    """
    text = clean(text[: most + 1])
    if len(text) * 4 <= most:
        return text
    data = text.encode()
    return text if len(data) <= most else data[: most - len(CUT.encode())].decode(errors="ignore") + CUT


def marker(seq: int, at_us: int, missing: int) -> LogLine:
    """The line that stands for lines that were not kept.

    Args:
        seq: number of the first of them.
        at_us: of the next line that was kept, or of the end.
        missing: how many they are.
    """
    lines = "1 line is" if missing == 1 else f"{missing} lines are"
    return LogLine(seq, at_us, MARKER, "warning", f"[{lines} left out here]", f'{{"missing":{missing}}}')


def in_order(records: Sequence[LogRecord]) -> list[tuple[int, int, LogLine]]:
    """Attempt, epoch and line of all lines, each once, in order; a marker stands before the line of its number.

    Args:
        records: of one task; a record may stand there twice.
    """
    found = {
        (record.attempt, record.epoch, line.seq, line.stream != MARKER): line
        for record in records
        for line in record.lines
    }
    return [(attempt, epoch, line) for (attempt, epoch, _, _), line in sorted(found.items(), key=lambda item: item[0])]
