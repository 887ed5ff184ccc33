"""What the dispatcher counts, in Prometheus form."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from scylla_spark.core.engine.leases.worker_session import EndedLease
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.tasks.state import lateness_us
from scylla_spark.core.tasks.task import NOT_STARTED, Invocation, Outcome
from scylla_spark.services.metrics_server import PREFIX

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BOUNDS = (*map(str, _SECONDS), "+Inf")
OTHER = "other"
MOST_VALUES = 200
MOST_TAGS = 100  # that match a beginning; those that are listed whole, fifty at most, come on top
_MOST_ROWS = 2_000
_LONGEST = 100
STALE_US = 5 * 60 * 1_000_000


class DispatchMetrics:
    """Histograms of one dispatcher; written by the engine's thread only.

    Args:
        payload_labels: top-level payload keys that become labels of the start delay.
        tags: by which attempts are counted besides, see `TagMetrics`; none: that costs nothing.
        watch: is called with each attempt that ended.
    """

    def __init__(
        self,
        payload_labels: Sequence[str] = (),
        tags: Sequence[str] = (),
        watch: Callable[[Invocation, Outcome], None] | None = None,
    ) -> None:
        self._watch = watch
        self.registry = CollectorRegistry()
        self.stale = 0
        self._labels = tuple(payload_labels)
        self._delay = _Histogram(
            f"{PREFIX}start_delay_seconds",
            "Start of an attempt after its planned time",
            ("queue", "handler", *self._labels),
        )
        self._execution = _Histogram(
            f"{PREFIX}execution_seconds", "Run time of attempts", ("queue", "handler", "outcome")
        )
        self._persist = _Histogram(
            f"{PREFIX}fact_send_seconds", "From the send of a group of facts to its acknowledgement"
        )
        for histogram in (self._delay, self._execution, self._persist):
            self.registry.register(histogram)
        self._tags = TagMetrics(tags) if tags else None
        if self._tags is not None:
            self.registry.register(self._tags)

    def persisted(self, elapsed_us: int) -> None:
        """A group of facts was acknowledged."""
        self._persist.observe((), elapsed_us / 1e6)

    def finished(self, outcomes: Iterable[Outcome], runs: Mapping[int, Run]) -> None:
        """Attempts ended; called before the engine forgets them."""
        for outcome in outcomes:
            run = runs.get(outcome.id)
            if run is None or outcome.outcome == NOT_STARTED:
                continue
            self._started(run.invocation, outcome.started_us)
            self._ran(run.invocation, outcome)

    def leased(self, ended: Iterable[EndedLease]) -> None:
        """Leases ended: attempts as others, that ran at workers."""
        for one in ended:
            if one.given_here:
                self._started(one.invocation, one.outcome.started_us)
            self._ran(one.invocation, one.outcome)

    def _started(self, invocation: Invocation, started_us: int) -> None:
        place = (invocation.queue, invocation.handler)
        delay_us = lateness_us(started_us, invocation.planned_us)
        self.stale += delay_us > STALE_US
        labels = (*place, *self._payload(invocation)) if self._labels else place
        self._delay.observe(labels, delay_us / 1e6)
        if self._tags is not None and invocation.tags:
            self._tags.started(invocation.tags, delay_us / 1e6)

    def _ran(self, invocation: Invocation, outcome: Outcome) -> None:
        if self._watch is not None:
            self._watch(invocation, outcome)
        labels = invocation.queue, invocation.handler, outcome.outcome
        self._execution.observe(labels, max(outcome.finished_us - outcome.started_us, 0) / 1e6)
        if self._tags is not None and invocation.tags:
            self._tags.ended(invocation.tags, outcome.outcome)

    def _payload(self, invocation: Invocation) -> list[str]:
        payload = json.loads(invocation.payload)
        return [str(payload.get(name, "")) for name in self._labels]


class TagMetrics(Collector):
    """Attempts by those tags of their tasks that somebody has asked for; an attempt counts once for each label that it has.

    Tags come from data, so labels that match a beginning are bounded: the first are told apart, what comes later is "other".
    A tag that is listed whole always has a label of its own.

    Args:
        allowed: tags, and beginnings of tags with a * behind them.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._whole = frozenset(one for one in allowed if not one.endswith("*"))
        self._beginnings = tuple(one[:-1] for one in allowed if one.endswith("*"))
        self._matched: set[str] = set()
        self._ends: dict[tuple[str, str], int] = {}
        self._delay = _Histogram(
            f"{PREFIX}tagged_start_delay_seconds", "Start of an attempt after its planned time, by tag", ("tag",)
        )

    def started(self, tags: Iterable[str], seconds: float) -> None:
        """An attempt has started so long after its planned time."""
        for label in self._labels(tags):
            self._delay.observe((label,), seconds)

    def ended(self, tags: Iterable[str], outcome: str) -> None:
        """An attempt has ended."""
        for label in self._labels(tags):
            self._ends[label, outcome] = self._ends.get((label, outcome), 0) + 1

    def _labels(self, tags: Iterable[str]) -> set[str]:
        matching = (tag for tag in tags if tag in self._whole or tag.startswith(self._beginnings))
        return {tag if tag in self._whole else _told(tag, self._matched, MOST_TAGS) for tag in matching}

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        family = CounterMetricFamily(
            f"{PREFIX}tagged_attempts", "Attempts that ended, by tag and outcome", labels=("tag", "outcome")
        )
        for labels, number in list(self._ends.items()):
            family.add_metric(labels, number)
        yield family
        yield from self._delay.collect()

    def describe(self) -> list[Metric]:
        """Nothing is asked before there is something."""
        return []


class _Histogram(Collector):
    """Like prometheus_client's Histogram, but five times cheaper to observe, because the engine's thread calls it for every task.

    Names of queues and handlers and values of payloads come from data: of each label the first values are told apart, and
    of all combinations the first; what comes later is counted under "other".

    Args:
        name: of the metric.
        text: what it measures.
        labels: names of its labels.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._rows: dict[tuple[str, ...], list[float]] = {}  # values up to each bound and above all, then their sum
        self._seen: tuple[set[str], ...] = tuple(set() for _ in labels)

    def observe(self, labels: tuple[str, ...], seconds: float) -> None:
        """Counts one value."""
        row = self._rows.get(labels)
        if row is None:
            row = self._rows.setdefault(self._capped(labels), [0] * len(_BOUNDS) + [0.0])
        row[bisect_left(_SECONDS, seconds)] += 1
        row[-1] += seconds

    def _capped(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels under which a combination is counted that has no row of its own yet."""
        told = tuple(_told(value[:_LONGEST], seen) for value, seen in zip(labels, self._seen, strict=True))
        return told if told in self._rows or len(self._rows) < _MOST_ROWS else (OTHER,) * len(labels)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, row in list(self._rows.items()):
            *counts, total = row[:]
            family.add_metric(labels, list(zip(_BOUNDS, accumulate(counts), strict=True)), total)
        yield family

    def describe(self) -> list[HistogramMetricFamily]:
        return []


def _told(value: str, seen: set[str], most: int = MOST_VALUES) -> str:
    if value not in seen and len(seen) >= most:
        return OTHER
    seen.add(value)
    return value
