"""What the tables hold of tasks, as records that their readers hand to the engine."""

from __future__ import annotations

from typing import NamedTuple

from scylla_spark.core.attempt_note import WorkNote
from scylla_spark.core.key import TaskKey
from scylla_spark.core.records.command import Command
from scylla_spark.core.task import LastError


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
    """

    command: Command
    cancelled: bool = False
    attempt: int = 0
    used: int = 0
    next_us: int = 0
    work: WorkNote | None = None
    error: LastError | None = None
    first: int = -1


class Known(NamedTuple):
    """What the tables hold of a key: whether it has ended, and its latest attempt (0: none)."""

    ended: bool = False
    attempt: int = 0
    used: int = 0
    next_us: int = 0
    work: WorkNote | None = None
    error: LastError | None = None


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
