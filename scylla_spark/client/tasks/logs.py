"""What the attempts of a task have written: the tables first, then the topic beyond them, and on demand what is written from now on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from scylla_spark.client.connection import Connection
from scylla_spark.clock import boot_us, from_us
from scylla_spark.core.records.log_record import MARKER, LogLine, LogRecord, in_order
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.io.kafka.task_lines_reader import LogLines

_POLL_MS: Final = 250
_ASK_US: Final = 1_000_000
_QUIET_US: Final = 1_000_000  # after the end of a task its last lines come within this


class TaskLine(NamedTuple):
    """One line that an attempt has written.

    Attributes:
        attempt: its number.
        epoch: fencing number of the dispatcher that started it; tells two runs of one attempt apart.
        seq: number of the line within the attempt, from 1.
        at: when, by the clock of the machine that ran it; aware UTC.
        stream: stdout, stderr or logging; scheduler: a marker for lines that were left out.
        level: debug, info, warning, error or critical; None: it was printed.
        text: without the end of the line.
        fields: logger and `extra` of a logging record.
    """

    attempt: int
    epoch: int
    seq: int
    at: datetime
    stream: str
    level: str | None
    text: str
    fields: dict[str, Any] | None


class LineFilter(NamedTuple):
    """Which lines of a task are wanted.

    Attributes:
        attempt: of this one; None: of all.
        after: only lines behind this place (see `place_of`).
    """

    attempt: int | None = None
    after: tuple[int, int, int, bool] = (0, 0, 0, False)


def place_of(line: TaskLine) -> tuple[int, int, int, bool]:
    """Where a line stands among those of its task: attempt, epoch, number, and whether it is no marker, which stands before its number."""
    return line.attempt, line.epoch, line.seq, line.stream != MARKER


class _Told:
    """Which lines were given out: of each run of an attempt all up to one."""

    def __init__(self, wanted: LineFilter) -> None:
        self._wanted = wanted
        self._last: dict[tuple[int, int], tuple[int, bool]] = {}

    def news(self, records: Iterable[LogRecord]) -> Iterator[TaskLine]:
        """The lines that were not given out before, in order."""
        for attempt, epoch, line in in_order(list(records)):
            told = _told(attempt, epoch, line)
            place = place_of(told)
            if place > self._wanted.after and place[2:] > self._last.get((attempt, epoch), (0, False)):
                self._last[attempt, epoch] = place[2], place[3]
                yield told

    def wants(self, attempt: int) -> bool:
        """Returns True if lines of an attempt are wanted."""
        return self._wanted.attempt in (None, attempt) and attempt >= self._wanted.after[0]


def lines_of(connection: Connection, key: TaskKey, wanted: LineFilter) -> Iterator[TaskLine]:
    """All lines of a task that there are now, in order of attempt and line; one attempt is in memory at a time.

    Args:
        connection: to the deployment.
        key: of the task.
        wanted: which.

    Raises:
        UnreachableError: Kafka does not answer.
    """
    with closing(_beyond_tables(connection, key)) as reader:
        yield from _so_far(connection, key, reader, _Told(wanted))


def followed(
    connection: Connection, key: TaskKey, wanted: LineFilter, ended: Callable[[], bool]
) -> Generator[list[TaskLine], None, None]:
    """All lines of a task, and those to come until it has ended and nothing more comes; some at a time, and now and then none.

    Args:
        connection: to the deployment.
        key: of the task.
        wanted: which.
        ended: whether the task has ended; asked about once a second.

    Raises:
        UnreachableError: Kafka does not answer.
    """
    told = _Told(wanted)
    with closing(_beyond_tables(connection, key)) as reader:
        for line in _so_far(connection, key, reader, told):
            yield [line]
        heard = asked = boot_us()
        over = ended()
        while not over or boot_us() - heard < _QUIET_US:
            records = reader.poll(_POLL_MS)
            yield list(told.news(record for record in records if told.wants(record.attempt)))
            now = boot_us()
            heard = now if records else heard
            if not over and now - asked >= _ASK_US:
                over, asked = ended(), now
                heard = now if over else heard


def _so_far(connection: Connection, key: TaskKey, reader: LogLines, told: _Told) -> Iterator[TaskLine]:
    rest: dict[int, list[LogRecord]] = {}
    for record in reader.rest():
        rest.setdefault(record.attempt, []).append(record)
    stored = connection.readers.logged_attempts(key)
    for attempt in sorted({*stored, *rest}):
        if told.wants(attempt):
            lines = connection.readers.log_lines(key, attempt) if attempt in stored else []
            yield from told.news([*lines, *rest.pop(attempt, ())])


def _beyond_tables(connection: Connection, key: TaskKey) -> LogLines:
    partitions = connection.rules.partitions
    # before the table is read: what ingest moves meanwhile is seen twice, never not at all
    begin = connection.readers.log_positions().get(partition_of(key.ordering_id, partitions), 0)
    return LogLines(connection.of_deployment, key, begin)


def _told(attempt: int, epoch: int, line: LogLine) -> TaskLine:
    fields = None if line.fields is None else _fields(line.fields)
    return TaskLine(attempt, epoch, line.seq, from_us(line.at_us), line.stream, line.level, line.text, fields)


def _fields(text: str) -> dict[str, Any]:
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": text}
