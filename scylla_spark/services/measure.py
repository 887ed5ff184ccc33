"""What the dispatcher counts, in Prometheus form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram

from scylla_spark.core.lanes import Run
from scylla_spark.core.task import NOT_STARTED, Invocation, Outcome

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_STALE_US = 5 * 60 * 1_000_000


class Measures:
    """Histograms of one dispatcher; written by the engine's thread only.

    Args:
        payload_labels: top-level payload keys that become labels of the start delay.
    """

    def __init__(self, payload_labels: Sequence[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self.stale = 0
        self._labels = tuple(payload_labels)
        self._children: dict[tuple[object, ...], Histogram] = {}
        names = ("queue", "handler", *self._labels)
        self._delay = Histogram(
            "scylla_start_delay_seconds",
            "Start of an attempt after its planned time",
            names,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._execution = Histogram(
            "scylla_execution_seconds",
            "Run time of attempts",
            ("queue", "handler", "outcome"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._persist = Histogram(
            "scylla_fact_send_seconds",
            "From the send of a group of facts to its acknowledgement",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def persisted(self, elapsed_us: int) -> None:
        """A group of facts was acknowledged."""
        self._persist.observe(elapsed_us / 1e6)

    def finished(self, outcomes: Iterable[Outcome], runs: Mapping[int, Run]) -> None:
        """Attempts ended; called before the engine forgets them."""
        for outcome in outcomes:
            run = runs.get(outcome.id)
            if run is None or outcome.outcome == NOT_STARTED:
                continue
            invocation = run.invocation
            delay_us = max(outcome.started_us - invocation.planned_us, 0)
            self.stale += delay_us > _STALE_US
            self._child(self._delay, invocation.queue, invocation.handler, *self._payload(invocation)).observe(
                delay_us / 1e6
            )
            elapsed = (outcome.finished_us - outcome.started_us) / 1e6
            self._child(self._execution, invocation.queue, invocation.handler, outcome.outcome).observe(elapsed)

    def _child(self, histogram: Histogram, *values: str) -> Histogram:
        """The histogram of these label values; asking prometheus_client anew for every task costs more than the observation."""
        key = (id(histogram), *values)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = histogram.labels(*values)
        return child

    def _payload(self, invocation: Invocation) -> list[str]:
        if not self._labels:
            return []
        payload = json.loads(invocation.payload)
        return [str(payload.get(name, ""))[:100] for name in self._labels]
