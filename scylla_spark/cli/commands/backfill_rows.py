"""Backfills on the command line: what is asked for, and how it is shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from datetime import datetime

    from scylla_spark.client.schedules.backfills import Backfill

_VERSION: Final = re.compile(r"-1|[0-9]{1,16}")
_TIMES: Final = ("planned_at",)
_VERSIONS: Final = ("from_version", "to_version", "rows", "commits", "bytes", "planned_at")


def begin_or_end(text: str) -> datetime | int:
    """A version, if the text is a whole number; else an instant.

    Raises:
        ArgumentError: it is neither.
    """
    from scylla_spark.cli.context import instant
    from scylla_spark.clock import from_us

    return int(text) if _VERSION.fullmatch(text) else from_us(instant(text))


def rows_of(found: Backfill) -> list[dict[str, Any]]:
    """The runs of a backfill, in their order: times, or versions."""
    from scylla_spark.clock import iso, to_us

    times = [{"planned_at": iso(to_us(at))} for at in found.planned]
    if not found.versions:
        return times
    return [one._asdict() | time for one, time in zip(found.versions, times, strict=True)]


def columns(found: Backfill) -> tuple[str, ...]:
    """Which columns a table of them has."""
    if not found.versions:
        return _TIMES
    return (*_VERSIONS, "partition") if any(one.partition for one in found.versions) else _VERSIONS
