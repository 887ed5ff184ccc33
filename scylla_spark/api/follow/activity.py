"""Counts of starts and ends of tasks over time, made from outcomes as they arrive while there are readers."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from scylla_spark.api.follow.recent_records import OutcomeEvent
from scylla_spark.api.follow.records_tail import LogTail
from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.state import lateness_us
from scylla_spark.core.tasks.task import FAILED, STARTED

STEP_US: Final = 15_000_000
STEPS: Final = 60
_IDLE_US: Final = 600_000_000
_FINENESS: Final = 8  # steps of the histogram for each doubling: a percentile is right within nine hundredths


class ActivityStep(NamedTuple):
    """The counts of a span of time.

    Attributes:
        at_us: its begin, microseconds since the epoch.
        started: attempts.
        ended: tasks.
        failed: tasks that ended so.
        p50_ms: start lateness; None: nothing started.
        p99_ms: likewise.
    """

    at_us: int
    started: int
    ended: int
    failed: int
    p50_ms: float | None
    p99_ms: float | None


class _Step:
    """Counts of one step of time."""

    __slots__ = ("delays", "ended", "failed")

    def __init__(self) -> None:
        self.ended = 0
        self.failed = 0
        self.delays: Counter[int] = Counter()


class Activity:
    """The last quarter of an hour; thread safe.

    Args:
        tail: tells what happens.
        own: only tasks of these queues are counted. Facts name the queue where an attempt ended its task: of who does not see all,
            attempts that are followed by another are not counted.
    """

    def __init__(self, tail: LogTail, own: QueueBounds = ALL_QUEUES) -> None:
        self._tail = tail
        self._own = own
        self._lock = threading.Lock()
        self._steps: dict[int, _Step] = {}
        self._listens = False
        self._asked_us = 0
        self._ahead_us = (0, 0)  # how far a clock was ahead of ours, and when that was heard

    def beats(self, now: int) -> list[ActivityStep]:
        """One beat for each step of time, the newest last; it begins to count when it is first asked.

        Args:
            now: microseconds since the epoch.
        """
        self._listen()
        last = now // STEP_US
        with self._lock:
            self._forget(last)
            return [_beat(number, [self._steps.get(number)]) for number in range(last - STEPS + 1, last + 1)]

    def lately(self, now: int, steps: int = 4) -> ActivityStep:
        """All of the last steps as one, the one under way included."""
        last = now // STEP_US
        with self._lock:
            return _beat(last - steps + 1, [self._steps.get(number) for number in range(last - steps + 1, last + 1)])

    def ahead_us(self, now: int) -> int:
        """Returns how far the clock of an executor was ahead of this one within the last minute."""
        ahead, heard = self._ahead_us
        return ahead if now - heard < 60_000_000 else 0

    def _listen(self) -> None:
        self._asked_us = boot_us()
        if not self._listens:
            self._listens = True
            self._tail.listen(self.heard, _passed_over)

    def heard(self, happened: OutcomeEvent) -> None:
        """Counts what has happened; in the tail's thread."""
        now = now_us()
        if boot_us() - self._asked_us > _IDLE_US:
            self._tail.leave(self.heard)
            self._listens = False
            return
        with self._lock:
            for fact in happened.facts:
                self._count(fact, now)
            self._forget(now // STEP_US)

    def _count(self, fact: Fact, now: int) -> None:
        if fact.outcome == STARTED:
            return  # its end will tell when it was to start, and when it did
        if not self._own.has(fact.queue):
            return
        if fact.finished_us - now > max(self._ahead_us[0] if now - self._ahead_us[1] < 60_000_000 else 0, 0):
            self._ahead_us = (fact.finished_us - now, now)
        if fact.started_us and fact.planned_us:
            self._step(fact.started_us, now).delays[_place(lateness_us(fact.started_us, fact.planned_us))] += 1
        if fact.terminal:
            step = self._step(fact.finished_us or now, now)
            step.ended += 1
            step.failed += fact.outcome == FAILED

    def _step(self, us: int, now: int) -> _Step:
        """The step of an instant; clocks that are ahead count as ours."""
        return self._steps.setdefault(min(us, now) // STEP_US, _Step())

    def _forget(self, last: int) -> None:
        for number in [number for number in self._steps if number <= last - STEPS]:
            del self._steps[number]


def _passed_over() -> None:
    """Ignores gaps: records that were not read are not counted."""


def _beat(first: int, steps: Iterable[_Step | None]) -> ActivityStep:
    found = [step for step in steps if step is not None]
    delays: Counter[int] = Counter()
    for step in found:
        delays.update(step.delays)
    total = sum(delays.values())
    return ActivityStep(
        first * STEP_US,
        total,
        sum(step.ended for step in found),
        sum(step.failed for step in found),
        _percentile(delays, total, 0.5),
        _percentile(delays, total, 0.99),
    )


def _place(delay_us: int) -> int:
    return int(_FINENESS * math.log2(delay_us / 1000 + 1))


def _percentile(delays: Counter[int], total: int, share: float) -> float | None:
    """The middle of the step of the histogram in which a percentile lies, in milliseconds."""
    seen = 0
    for place in sorted(delays):
        seen += delays[place]
        if seen >= share * total:
            return float(round(2 ** ((place + 0.5) / _FINENESS) - 1, 2))
    return None
