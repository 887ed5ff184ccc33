"""The metrics of the API for Prometheus: requests by operation and status, their durations, and requests in progress."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scylla_spark.services.metrics_server import PREFIX

_BOUNDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ApiMetrics:
    """Counts of one process.

    Attributes:
        registry: what Prometheus is shown.
        audit_lost: counts entries of the audit trail that found no room.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}api_requests", "Requests by operation and status", ["operation", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            f"{PREFIX}api_request_seconds",
            "How long requests took, waits included",
            ["operation"],
            buckets=_BOUNDS,
            registry=self.registry,
        )
        self.audit_lost = Counter(
            f"{PREFIX}api_audit_lost", "Changes that stand in the log, but not in `audit`", registry=self.registry
        )
        self._under_way = Gauge(f"{PREFIX}api_requests_under_way", "Requests being answered", registry=self.registry)

    def begun(self) -> None:
        """A request came."""
        self._under_way.inc()

    def ended(self, operation: str, status: int, seconds: float) -> None:
        """A request was answered.

        Args:
            operation: its id in openapi.json; empty: there is no such path.
            status: of the answer.
            seconds: how long it took.
        """
        self._under_way.dec()
        self._requests.labels(operation or "none", str(status)).inc()
        self._seconds.labels(operation or "none").observe(seconds)
