"""Units of time, and records of both logs as their consumers give them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from scylla_spark.core.records.command import Command, validate
from scylla_spark.core.records.fact import decode

SECOND = 1_000_000


class TaskRecord(NamedTuple):
    """A record of `tasks`, and what it says; None if it is refused. A mark of a transaction takes an offset, and is no record."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    command: Command | None
    is_mark: bool = False


class RawRecord(NamedTuple):
    """A record of `outcomes`."""

    offset: int
    timestamp: int
    value: bytes


_LATELY = 512  # records that somebody may still read

read_task = lru_cache(_LATELY)(validate)
"""What a record of `tasks` says; clients, and each owner that its partition has, ask of the same bytes."""

read_outcome = lru_cache(_LATELY)(decode)
"""What a record of `outcomes` says."""
