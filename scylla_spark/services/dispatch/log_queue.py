"""Lines that wait for Kafka: bounded, and whoever adds to it never waits. What finds no room is counted, and told by a marker."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from scylla_spark.core.records.log_record import LogLine, LogRecord, encode, marker
from scylla_spark.services.dispatch.attempt_lines import AttemptName

_MOST_RECORD_BYTES: Final = 256 * 1024
_MOST_LOSERS: Final = 1_000


class Waiting(NamedTuple):
    """A record that is to be sent.

    Attributes:
        name: whose lines they are.
        value: the record.
        lines: how many it holds.
    """

    name: AttemptName
    value: bytes
    lines: int


class LogQueue:
    """Records in the order in which they are to be sent; not thread-safe.

    Args:
        most_bytes: of all records that wait.

    Attributes:
        dropped: lines that found no room.
    """

    def __init__(self, most_bytes: int) -> None:
        self.dropped = 0
        self._most_bytes = most_bytes
        self._bytes = 0
        self._records: deque[Waiting] = deque()
        self._lost: dict[AttemptName, LogLine] = {}  # the marker of each attempt of which lines were dropped

    def __len__(self) -> int:
        return len(self._records)

    def add(self, name: AttemptName, lines: Sequence[LogLine]) -> None:
        """Adds lines of one attempt, in order; too many for one record become several.

        Args:
            name: whose lines they are.
            lines: any number.
        """
        lost = self._lost.get(name)
        begin = 0
        while begin < len(lines):
            end, size = begin, 0
            while end < len(lines) and (end == begin or size < _MOST_RECORD_BYTES):
                size += 64 + 2 * len(lines[end].text) + len(lines[end].fields or "")
                end += 1
            some = lines[begin:end]
            if not self._put(name, some if lost is None else [lost, *some]):
                self._drop(name, some)
            elif lost is not None:
                del self._lost[name]
            lost = self._lost.get(name)
            begin = end

    def take(self) -> Waiting:
        """The next record."""
        record = self._records.popleft()
        self._bytes -= len(record.value)
        return record

    def put_back(self, record: Waiting) -> None:
        """It could not be sent now, and is the next one again."""
        self._records.appendleft(record)
        self._bytes += len(record.value)

    def _put(self, name: AttemptName, lines: Sequence[LogLine]) -> bool:
        if self._bytes >= self._most_bytes:
            return False
        value = encode(LogRecord(name.key, name.attempt, name.epoch, tuple(lines)))
        self._records.append(Waiting(name, value, len(lines)))
        self._bytes += len(value)
        return True

    def _drop(self, name: AttemptName, lines: Sequence[LogLine]) -> None:
        self.dropped += len(lines)
        lost = self._lost.pop(name, None)
        first = lines[0].seq if lost is None else lost.seq
        while len(self._lost) >= _MOST_LOSERS:
            del self._lost[next(iter(self._lost))]
        self._lost[name] = marker(first, lines[-1].at_us, lines[-1].seq - first + 1)
