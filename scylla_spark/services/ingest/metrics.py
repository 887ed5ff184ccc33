"""What ingest counts, in Prometheus form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from scylla_spark.services.metrics_server import PREFIX

_TEXTS: Final = {
    "ingested": "Rows that were merged into the tables or appended to them",
    "rejected": "Records that were refused: rows of `rejected`",
    "set_aside": "Records that could not be judged, for a defect of ours or their size: rows of `rejected`",
}


class IngestMetrics(Collector):
    """Counts of one ingest since its start, per topic.

    Args:
        partitions: of the deployment.
    """

    def __init__(self, partitions: int = 0) -> None:
        self._partitions = partitions
        # 0 is shown, so that `increase` of Prometheus sees the first one
        self.counts = {name: Counter(dict.fromkeys(("tasks", "outcomes"), 0)) for name in _TEXTS}
        self._batches: dict[str, tuple[int, float]] = {}  # topic → how many batches, and their seconds
        self._lag: dict[str, int] = {}

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

    def took(self, topic: str, seconds: float) -> None:
        """A batch of a topic has taken so long, from its begin to its progress."""
        count, total = self._batches.get(topic, (0, 0.0))
        self._batches[topic] = count + 1, total + seconds

    def behind(self, topic: str, ends: Mapping[int, int], positions: Mapping[int, int]) -> None:
        """How far the tables were behind a topic a moment ago.

        Args:
            topic: "tasks" or "outcomes".
            ends: partition → end offset of its log.
            positions: partition → the next offset that the tables want.
        """
        self._lag[topic] = sum(max(end - positions.get(number, 0), 0) for number, end in ends.items())

    def unknown(self) -> None:
        """How far the tables are behind is not known: nothing is told of it, instead of what was true once."""
        self._lag.clear()

    def registry(self) -> CollectorRegistry:
        """A registry of these counts alone, for a process without dispatch."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Metric]:
        """The counts, when Prometheus asks."""
        for name, text in _TEXTS.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["topic"])
            for topic, count in sorted(self.counts[name].items()):
                family.add_metric([topic], count)
            yield family
        batches = SummaryMetricFamily(
            f"{PREFIX}ingest_batch_seconds", "Time of a batch until its progress is written", labels=["topic"]
        )
        for topic, (count, total) in sorted(self._batches.items()):
            batches.add_metric([topic], count, total)
        yield batches
        lag = GaugeMetricFamily(
            f"{PREFIX}ingest_lag_records", "Offsets of the log that the tables do not hold yet", labels=["topic"]
        )
        for topic, records in sorted(self._lag.items()):
            lag.add_metric([topic], records)
        yield lag
        yield GaugeMetricFamily(f"{PREFIX}partitions", "Partitions of the deployment", value=self._partitions)

    def describe(self) -> list[CounterMetricFamily]:
        """Nothing before it is asked."""
        return []
