"""What the dispatcher counts, in Prometheus form."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from scylla_spark.core.engine.leases.worker_session import EndedLease
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.task import NOT_STARTED, Invocation, Outcome
from scylla_spark.services.metrics_server import PREFIX

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BOUNDS = (*map(str, _SECONDS), "+Inf")
OTHER = "other"
MOST_VALUES = 200
_MOST_ROWS = 2_000
_LONGEST = 100
STALE_US = 5 * 60 * 1_000_000


class DispatchMetrics:
    """Histograms of one dispatcher; written by the engine's thread only.

    Args:
        payload_labels: top-level payload keys that become labels of the start delay.
    """

    def __init__(self, payload_labels: Sequence[str] = ()) -> None:
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
        delay_us = max(started_us - invocation.planned_us, 0)
        self.stale += delay_us > STALE_US
        labels = (*place, *self._payload(invocation)) if self._labels else place
        self._delay.observe(labels, delay_us / 1e6)

    def _ran(self, invocation: Invocation, outcome: Outcome) -> None:
        labels = invocation.queue, invocation.handler, outcome.outcome
        self._execution.observe(labels, max(outcome.finished_us - outcome.started_us, 0) / 1e6)

    def _payload(self, invocation: Invocation) -> list[str]:
        payload = json.loads(invocation.payload)
        return [str(payload.get(name, "")) for name in self._labels]


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


def _told(value: str, seen: set[str]) -> str:
    if value not in seen and len(seen) >= MOST_VALUES:
        return OTHER
    seen.add(value)
    return value
