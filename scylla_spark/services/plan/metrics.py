"""What the planner counts, in Prometheus form."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scylla_spark.core.plan.state.plan_log import Group
from scylla_spark.core.plan.state.plan_state import LAUNCHED
from scylla_spark.core.plan.state.stored_token import StoredToken
from scylla_spark.services.metrics_server import PREFIX

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class PlanMetrics:
    """Counters of one planner; written by its thread only."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._active = Gauge(f"{PREFIX}planner_active", "1 while this process plans", registry=self.registry)
        self._schedules = Gauge(f"{PREFIX}schedules", "Schedules that are stored", registry=self.registry)
        self._expires = Gauge(
            f"{PREFIX}token_expires_timestamp_seconds",
            "When a token for the API expires, seconds since the epoch; revoked ones are left out",
            ("name", "id"), registry=self.registry,
        )  # fmt: skip
        self._fires = Counter(f"{PREFIX}fires", "Decisions, by what was decided", ("verdict",), registry=self.registry)
        self._defects = Counter(
            f"{PREFIX}planner_defects", "Steps of the planner that our own code failed at", registry=self.registry
        )
        self._late = Histogram(
            f"{PREFIX}launch_delay_seconds", "Decision to launch after the planned time; 0 if ahead of it", registry=self.registry,
            buckets=_SECONDS,
        )  # fmt: skip

    def is_active(self, active: bool, schedules: int) -> None:
        """Whether this process plans, and how many schedules it knows."""
        self._active.set(active)
        self._schedules.set(schedules)

    def tokens(self, tokens: Mapping[str, StoredToken]) -> None:
        """Replaces the tokens whose end is shown.

        Args:
            tokens: id → token.
        """
        self._expires.clear()
        for id, token in tokens.items():
            if token.expires_us is not None and not token.revoked:
                self._expires.labels(token.name, id).set(token.expires_us / 1e6)

    def met_defect(self) -> None:
        """Our own code failed at a step."""
        self._defects.inc()

    def counted(self, group: Group, now: int) -> None:
        """A group was read back."""
        for change in group.changes:
            if change[0] == "fire":
                self._fires.labels(change[2]["verdict"]).inc()
                if change[2]["verdict"] == LAUNCHED:
                    self._late.observe(max(now - change[2]["planned_us"], 0) / 1e6)
