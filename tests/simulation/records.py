"""Units of time, and records of both logs as their consumers give them."""

from __future__ import annotations

from typing import NamedTuple

from scylla_spark.core.records.command import Command

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


class TaskRecord(NamedTuple):
    """A record of `tasks`, and what it says; None if it is refused."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    command: Command | None


class RawRecord(NamedTuple):
    """A record of `outcomes`."""

    offset: int
    timestamp: int
    value: bytes
