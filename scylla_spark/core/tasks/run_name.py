"""The uniqueness keys of the runs of schedules: NAME/PLANNED/NUMBER, such as nightly/2026-12-01T01:00:00Z/17."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

from scylla_spark.clock import from_us, to_us

AFTER_NAME: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3}(?:[0-9]{3})?)?Z/[1-9][0-9]{0,17}"
)
"""What stands after the name and a slash, as a regular expression that Python and Rust read alike."""
_RUN: Final = re.compile(rf"(.+)/({AFTER_NAME})", re.DOTALL)


class RunName(NamedTuple):
    """Which schedule a task is a run of, by its uniqueness key; who enqueues a task by hand may spell its key likewise.

    Attributes:
        schedule: its name.
        planned_us: the time that the run was planned for, microseconds since the epoch.
    """

    schedule: str
    planned_us: int


def planned_at(uniqueness_key: str) -> datetime | None:
    """The planned time of a run, aware UTC; None: the key is none of a run."""
    found = run_name(uniqueness_key)
    return None if found is None else from_us(found.planned_us)


def run_name(uniqueness_key: str) -> RunName | None:
    """What a uniqueness key says of a run; None: it is none of a run."""
    found = _RUN.fullmatch(uniqueness_key)
    if found is None:
        return None
    try:
        return RunName(found[1], to_us(datetime.fromisoformat(found[2].rpartition("/")[0])))
    except (ValueError, OverflowError):
        return None
