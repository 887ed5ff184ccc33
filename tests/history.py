"""Judges what handlers wrote down: which promises a history of runs breaks. Pure; every check returns the breaches in words.

Handlers append one line when they begin and one when they end. Times are microseconds since the epoch, of one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from scylla_spark.core.key import TaskKey

NEVER = 1 << 62


class Run(NamedTuple):
    """One attempt, as its handler saw it.

    Attributes:
        end: when it ended, or was ended by the death of its process; NEVER while neither is known.
        ok: whether it returned; None: it did not come to its end.
        mark: which of several payloads of the key it was given.
        pool: which pool of processes ran it.
    """

    key: TaskKey
    attempt: int
    epoch: int
    start: int
    end: int = NEVER
    ok: bool | None = None
    mark: str = ""
    pool: int = 0

    def __str__(self) -> str:
        return f"{self.key} attempt {self.attempt} epoch {self.epoch} [{self.start}, {self.end}]"


def runs(lines: Iterable[Mapping[str, Any]], deaths: Sequence[int] = ()) -> list[Run]:
    """Pairs begin and end lines; by start.

    Args:
        lines: as written by the handlers.
        deaths: when a deployment was killed: what had not ended by then ended there.
    """
    found: dict[tuple[Any, ...], Run] = {}
    for line in lines:
        key = TaskKey(*line["key"])
        identity = (key, line["attempt"], line["epoch"], line["pid"])
        if line["event"] == "start":
            end = min((death for death in deaths if death >= line["at"]), default=NEVER)
            found[identity] = Run(
                key, line["attempt"], line["epoch"], line["at"], end, None, line.get("mark", ""), line.get("pool", 0)
            )
        else:
            found[identity] = found[identity]._replace(end=line["at"], ok=line["ok"])
    return sorted(found.values(), key=lambda run: run.start)


def early(history: Iterable[Run]) -> list[str]:
    """Runs that began before their scheduled time."""
    return [f"{run} is early by {run.key.time_us - run.start} us" for run in history if run.start < run.key.time_us]


def overlapping(history: Iterable[Run]) -> list[str]:
    """Runs that began while another run of their lane had not ended."""
    breaches = []
    for lane in _lanes(history).values():
        running = lane[0]
        for run in lane[1:]:
            if run.start < running.end:
                breaches.append(f"{run} began during {running}")
            running = max(running, run, key=lambda other: other.end)
    return breaches


def disordered(history: Iterable[Run]) -> list[str]:
    """Runs of a lane that began after a run of a later key (for tasks enqueued in time)."""
    return [
        f"{later} began after {earlier}"
        for lane in _lanes(history).values()
        for earlier, later in pairwise(lane)
        if later.key < earlier.key
    ]


def misnumbered(history: Iterable[Run]) -> list[str]:
    """Runs whose (epoch, attempt) does not exceed that of the run of the same key before, or whose attempt skips numbers."""
    breaches = []
    for key, attempts in _grouped(history, lambda run: run.key).items():
        expected = 1
        token = (0, 0)
        for run in attempts:
            # an attempt that died unrecorded lends its number to the next, under another epoch
            if run.attempt not in (expected, expected - 1) or (run.epoch, run.attempt) <= token:
                breaches.append(f"{key}: attempt {run.attempt} of epoch {run.epoch} after {token}")
            token, expected = (run.epoch, run.attempt), run.attempt + 1
    return breaches


def doubled(history: Iterable[Run]) -> list[str]:
    """Keys that ran to a good end more than once (legal only where a process was killed in between)."""
    counts = {key: len(group) for key, group in _grouped((r for r in history if r.ok), lambda run: run.key).items()}
    return [f"{key} succeeded {count} times" for key, count in counts.items() if count > 1]


def revived(history: Iterable[Run], completions: Mapping[TaskKey, int]) -> list[str]:
    """Runs that began after the run that the completion of their key speaks of had ended.

    Args:
        history: the runs.
        completions: key → when its completed run ended, or its cancel was granted.
    """
    return [
        f"{run} began after the completion at {completions[run.key]}"
        for run in history
        if run.start > completions.get(run.key, NEVER)
    ]


def lost(accepted: Iterable[TaskKey], completions: Iterable[TaskKey]) -> list[str]:
    """Accepted keys without a completion."""
    ended = set(completions)
    return [str(key) for key in accepted if key not in ended]


def peak(history: Iterable[Run]) -> int:
    """Most runs that were under way at one time."""
    # an end sorts before a start of the same moment
    changes = sorted(change for run in history for change in ((run.start, 1), (run.end, -1)))
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def _lanes(history: Iterable[Run]) -> dict[str, list[Run]]:
    return _grouped(history, lambda run: run.key.ordering_id)


def _grouped(history: Iterable[Run], group: Any) -> dict[Any, list[Run]]:
    groups: dict[Any, list[Run]] = {}
    for run in sorted(history, key=lambda run: run.start):
        groups.setdefault(group(run), []).append(run)
    return groups
