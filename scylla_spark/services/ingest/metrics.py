"""What ingest counts, in Prometheus form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from scylla_spark.services.metrics_server import PREFIX

_TEXTS: Final = {
    "ingested": "Rows that were merged into the tables or appended to them",
    "rejected": "Records that were refused: rows of `rejected`",
    "set_aside": "Records that could not be judged, for a defect of ours or their size: rows of `rejected`",
}


class IngestMetrics(Collector):
    """Counts of one ingest since its start, per topic."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in _TEXTS}

    def written(self, topic: str, *, ingested: int, rejected: int, set_aside: int) -> None:
        """A batch of a topic was written.

        Args:
            topic: "tasks", "outcomes" or "logs".
            ingested: records that were accepted.
            rejected: records that break a rule.
            set_aside: records that could not be judged.
        """
        for name, count in (("ingested", ingested), ("rejected", rejected), ("set_aside", set_aside)):
            self.counts[name][topic] += count

    def registry(self) -> CollectorRegistry:
        """A registry of these counts alone, for a process without dispatch."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts, when Prometheus asks."""
        for name, text in _TEXTS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["topic"])
            for topic, count in sorted(self.counts[name].items()):
                family.add_metric([topic], count)
            yield family

    def describe(self) -> list[CounterMetricFamily]:
        """Nothing before it is asked."""
        return []
