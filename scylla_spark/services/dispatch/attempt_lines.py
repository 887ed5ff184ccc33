"""What one child hands over becomes lines of attempts: read strictly, bounded, without secrets, and with markers for what is missing.

A child runs user code, which may write into the memory between us what it likes. So a frame that our code does not write is passed, and
code that takes trouble to lie can only write lines.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scylla_spark.core.access.redaction import Redaction
from scylla_spark.core.leases.messages import LEVELS
from scylla_spark.core.records import fast_json
from scylla_spark.core.records.log_record import CUT, MARKER, STREAMS, LogLine, bounded, marker
from scylla_spark.core.tasks.key import TaskKey, is_storable

_FRAME_BYTES: Final = 64  # of a line beside its texts: numbers, stream, level
_MOST_CALLS: Final = 20_000  # of one child that are open at once
_MOST_FIELDS_CHARS: Final = 8 * 1024
_MOST_SEQ: Final = 2**31 - 1
_MOST_EPOCH: Final = 2**62


class AttemptName(NamedTuple):
    """Whose lines they are."""

    key: TaskKey
    attempt: int
    epoch: int


class LeasedRows(NamedTuple):
    """Lines that a leased worker tells of, as they have come: nobody has looked at them.

    Attributes:
        rows: each with the fields of a `core.leases.messages.LeasedLine`, if it is one.
        size: of them together, about, in bytes.
    """

    rows: list[Any]
    size: int


class _Call:
    """A call whose lines are being read.

    Attributes:
        name: whose lines they are.
        next_seq: number of the next line, if none is missing.
        room: bytes that it may still have.
        at_us: of its last line.
    """

    __slots__ = ("at_us", "name", "next_seq", "room")

    def __init__(self, name: AttemptName, next_seq: int, room: int) -> None:
        self.name, self.next_seq, self.room = name, next_seq, room
        self.at_us = 0


class AttemptLines:
    """Reads the frames of one child; see `handlers.log_writer` for their form.

    Args:
        redaction: takes secrets out.
        most_line: bytes of a text.
        most_attempt: bytes of an attempt; what goes beyond is left out.

    Attributes:
        missing: how many lines were found to be missing so far.
    """

    def __init__(self, redaction: Redaction, *, most_line: int, most_attempt: int) -> None:
        self.missing = 0
        self._redaction = redaction
        self._most_line = most_line
        self._most_attempt = most_attempt
        self._calls: dict[int, _Call] = {}

    def read(self, frame: bytes) -> tuple[AttemptName, list[LogLine]] | None:
        """The lines that a frame stands for, markers among them; None if it stands for none."""
        try:
            values = fast_json.load(frame)
        except (ValueError, RecursionError):
            return None
        if type(values) is not list or len(values) < 3 or not _is_count(values[1]):
            return None
        kind, number, *rest = values
        if kind == "begin" and len(rest) == 6:
            self._begin(number, rest)
            return None
        call = self._calls.get(number)
        if call is None:
            return None
        if kind == "end" and len(rest) == 1 and _is_count(rest[0]):
            del self._calls[number]
            return call.name, self._gap(call, rest[0] + 1, call.at_us)
        line = self._line(rest) if kind == "line" and len(rest) == 6 else None
        return None if line is None else (call.name, self._add(call, line, len(frame)))

    def of_attempt(self, name: AttemptName, rows: list[Any]) -> list[LogLine]:
        """The lines of an attempt that a leased worker tells of; what it has told before is passed over.

        Args:
            name: of the attempt.
            rows: each with the fields of a `LeasedLine`; any other is passed over.
        """
        found: list[LogLine] = []
        number = hash(name) & _MOST_SEQ
        for row in rows:
            line = self._line(row) if type(row) is list and len(row) == 6 else None
            if line is not None:
                self._begin(number, [*name.key, name.attempt, name.epoch, line.seq - 1])
                found += self._add(self._calls[number], line, _size(line))
        return found

    def _begin(self, number: int, values: list[Any]) -> None:
        time_us, lane, unique, attempt, epoch, before = values
        if not (type(time_us) is int and is_storable(time_us) and _is_name(lane) and _is_name(unique)):
            return
        if not (_is_count(attempt) and _is_count(before) and type(epoch) is int and 0 <= epoch <= _MOST_EPOCH):
            return
        name = AttemptName(TaskKey(time_us, lane, unique), attempt, epoch)
        known = self._calls.get(number)
        if known is not None and known.name == name:
            return  # it is told again in case the first was lost
        while len(self._calls) >= _MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[number] = _Call(name, before + 1, self._most_attempt)

    def _line(self, values: list[Any]) -> LogLine | None:
        seq, at_us, stream, level, text, fields = values
        if not (_is_count(seq) and seq > 0 and type(at_us) is int and is_storable(at_us) and type(text) is str):
            return None
        if stream not in STREAMS or stream == MARKER or not (level is None or level in LEVELS):
            return None
        kept = None
        if type(fields) is str and len(fields) <= _MOST_FIELDS_CHARS:
            kept = self._redaction.fields(fields)
        said = self._redaction.text(bounded(text, self._most_line), cut_mark=CUT)
        return LogLine(seq, at_us, stream, level, said, kept)

    def _add(self, call: _Call, line: LogLine, size: int) -> list[LogLine]:
        if line.seq < call.next_seq:
            return []
        call.room -= size
        if call.room < 0:
            return []
        found = [*self._gap(call, line.seq, line.at_us), line]
        call.next_seq, call.at_us = line.seq + 1, line.at_us
        return found

    def _gap(self, call: _Call, until: int, at_us: int) -> list[LogLine]:
        """A marker for the lines that are missing before a number."""
        missing = until - call.next_seq
        if missing <= 0:
            return []
        self.missing += missing
        found = marker(call.next_seq, at_us, missing)
        call.next_seq = until
        return [found]


def _size(line: LogLine) -> int:
    """About as many bytes as the frame in which a child hands over such a line, which none is without."""
    return _FRAME_BYTES + len(line.text.encode()) + len((line.fields or "").encode())


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_SEQ


def _is_name(value: object) -> bool:
    return type(value) is str and 1 <= len(value) <= 1024 and _is_unicode(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
