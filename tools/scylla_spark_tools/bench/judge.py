"""Judges the facts of a run: what was completed, twice, out of order or at the same time as its neighbour in the lane."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scylla_spark.core.records.fact import Fact, FenceLog, decode, readable
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import STARTED, SUCCEEDED
from scylla_spark.testing import judge as promises
from scylla_spark.testing.history import Run

SLACK_US: Final = 100  # an end is a start plus a duration of another clock, and either is rounded


class Seen(NamedTuple):
    """A record of `outcomes`: its partition, its value, and when it was received (microseconds since the epoch)."""

    partition: int
    value: bytes | None
    received_us: int


@dataclass(slots=True)
class Verdict:
    """What the facts say.

    Attributes:
        completed: tasks with a counting completion that says succeeded.
        failed: tasks that ended otherwise.
        doubled: counting completions of tasks that had one.
        disorder: attempts of a lane that began after one of a greater key.
        overlaps: attempts of a lane that began before the one before had ended, unless one batch call ran both.
        retried: counting facts of attempts that did not end their task.
        first_start_us: earliest start of an attempt; 0 without any.
        last_seen_us: when the last completion was received.
        results: (scheduled time in microseconds, start in microseconds, result text) per completed task.
    """

    completed: int = 0
    failed: int = 0
    doubled: int = 0
    disorder: int = 0
    overlaps: int = 0
    retried: int = 0
    first_start_us: int = 0
    last_seen_us: int = 0
    results: list[tuple[int, int, str | None]] = field(default_factory=list)


def judge(records: Iterable[Seen], since_us: int = 0) -> Verdict:
    """Reads records from the very beginning of every partition, in log order, by the fence rule.

    Args:
        records: of all partitions.
        since_us: tasks scheduled before this do not matter, microseconds since the epoch.
    """
    verdict, logs = Verdict(), dict[int, FenceLog]()
    ended: set[TaskKey] = set()
    runs: list[Run] = []
    for seen in records:
        record = readable(decode(seen.value))
        if record is None or not logs.setdefault(seen.partition, FenceLog()).admit(record):
            continue
        for fact in record.facts:
            if fact.outcome == STARTED or fact.key.time_us < since_us:
                continue
            if fact.started_us:
                runs.append(_run(fact))
            if not fact.terminal:
                verdict.retried += fact.next_us is not None
            elif fact.key in ended:
                verdict.doubled += 1
            else:
                ended.add(fact.key)
                _note_end(verdict, fact, seen.received_us)
    verdict.first_start_us = min((run.start for run in runs), default=0)
    verdict.disorder, verdict.overlaps = len(promises.disordered(runs)), len(promises.overlapping(runs))
    return verdict


def _run(fact: Fact) -> Run:
    """The run that a fact tells of; tasks of one batch call share its times."""
    end, call = fact.finished_us - SLACK_US, str(fact.finished_us)
    return Run(fact.key, fact.attempt, 0, fact.started_us, end, fact.outcome == SUCCEEDED, call=call)


def _note_end(verdict: Verdict, fact: Fact, received_us: int) -> None:
    verdict.last_seen_us = max(verdict.last_seen_us, received_us)
    if fact.outcome != SUCCEEDED:
        verdict.failed += 1
        return
    verdict.completed += 1
    verdict.results.append((fact.key.time_us, fact.started_us, fact.result))
