"""What the tables hold of tasks, as records that their readers hand to the engine."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from scylla_spark.core.records.command import ENQUEUE, Command, WireRetry
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import LastError
from scylla_spark.schemas import DATA

NEWEST: Final = tuple(one.name for one in DATA if one.name not in ("cancel_offset", "first_offset", "unique_open"))
"""Columns of `tasks` that hold what the newest enqueue said."""
PLAIN: Final = tuple(name for name in NEWEST if name in Command._fields and name not in ("retry", "about"))
"""Those of them that hold a field of `Command` as it is."""
ENQUEUED: Final = (*PLAIN, "unique_open")
"""Columns from which `stored_command` makes a command."""
_FIELDS: Final = {"enqueued_at": "enqueued_us", "data_offset": "offset"}  # column → field of another name
_cells = attrgetter(*(_FIELDS.get(name, name) for name in NEWEST))
_STORED: Final = (
    "kind",
    "key",
    "offset",
    "retry",
    "enqueued_us",
    *PLAIN,
    "unique",
    "",
)  # fields of a command; "": null
_in_order = itemgetter(*(_STORED.index(name if name in _STORED else "") for name in Command._fields))
_TAGS: Final = _STORED.index("tags")
_DEFAULTS: Final = [
    (place, Command._field_defaults[name])
    for place, name in enumerate(_STORED)
    if Command._field_defaults.get(name) is not None
]


def newest_cells(command: Command) -> tuple[Any, ...]:
    """The values of the columns `NEWEST`, with instants in microseconds."""
    cells: tuple[Any, ...] = _cells(command)
    return cells


def stored_command(
    key: TaskKey, offset: int, cells: Iterable[Any], retry: WireRetry | None, enqueued_us: int
) -> Command:
    """The newest enqueue of a task, from a row of `tasks`.

    Args:
        key: of the task.
        offset: of the record.
        cells: the values of the columns `ENQUEUED`; null stands for the default of a field.
        retry: its policy.
        enqueued_us: its stamp, microseconds since the epoch.

    Returns:
        The command without `about`, which only people read.
    """
    row = [ENQUEUE, key, offset, retry, enqueued_us, *cells, None]
    for place, default in _DEFAULTS:
        if row[place] is None:
            row[place] = default
    row[_TAGS] = tuple(row[_TAGS])
    return Command(*_in_order(row))  # by place, since scans make thousands and names take a microsecond


class ScanRow(NamedTuple):
    """One open task as read from the tables.

    Attributes:
        cancelled: a cancel stands, but no completion yet.
        attempt: last recorded attempt; 0 if none.
        used: recorded attempts that count against the retry policy.
        next_us: earliest next start; 0 if none was recorded.
        work: of the last recorded attempt.
        error: why that did not succeed.
        first: offset of the first enqueue of the key, and `command.unique` is what that said; -1: it is the offset of the command.
        place: offset in `outcomes` of the fact that tells of the attempt; -1: there is none.
    """

    command: Command
    cancelled: bool = False
    attempt: int = 0
    used: int = 0
    next_us: int = 0
    work: WorkNote | None = None
    error: LastError | None = None
    first: int = -1
    place: int = -1

    @property
    def known(self) -> Known:
        """Returns what it tells of attempts."""
        if not self.attempt:
            return NOTHING
        return Known(False, self.attempt, self.used, self.next_us, self.work, self.error, self.place)


class Known(NamedTuple):
    """What is known of a key: whether it has ended, and its latest attempt.

    Attributes:
        ended: it has.
        attempt: number of the last recorded attempt; 0 if none.
        used: recorded attempts that count against the retry policy.
        next_us: earliest next start; 0 if none was recorded.
        work: of the last recorded attempt.
        error: why that did not succeed.
        place: offset in `outcomes` of the fact that tells of it; -1: there is none.
    """

    ended: bool = False
    attempt: int = 0
    used: int = 0
    next_us: int = 0
    work: WorkNote | None = None
    error: LastError | None = None
    place: int = -1

    @property
    def settled(self) -> bool:
        """Returns True if the end of the attempt is recorded, not only that it started."""
        return self.next_us > 0


NOTHING: Final = Known()


class Bearer(NamedTuple):
    """An open task of the tables that bears a name somebody asks about.

    Attributes:
        key: identity.
        first: offset of its first enqueue.
        unique: whether that asked for the name to be unique.
        queue: its queue.
        handler: its handler.
        tags: its tags.
    """

    key: TaskKey
    first: int
    unique: bool
    queue: str
    handler: str | None
    tags: tuple[str, ...] = ()
