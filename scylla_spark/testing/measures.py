"""What can be measured of a history: how late tasks started, and how many ran at one time."""

from __future__ import annotations

from collections.abc import Iterable

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.state import could_start_us, lateness_us
from scylla_spark.testing.history import NEVER, History, Run


def peak(runs: Iterable[Run]) -> int:
    """Most runs that were under way at one time."""
    # an end sorts before a start of the same moment
    changes = sorted(change for run in runs for change in ((run.start, 1), (run.end, -1)))
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def lateness(history: History) -> list[int]:
    """Returns how long after its time, or its acknowledgement, each acknowledged task first started; sorted, microseconds."""
    first: dict[TaskKey, int] = {}
    for run in history.runs:
        first[run.key] = min(run.start, first.get(run.key, NEVER))
    sent = history.acknowledged()
    return sorted(
        lateness_us(first[key], could_start_us(key.time_us, sent[key].at)) for key in first.keys() & sent.keys()
    )
