"""What clients need of a planner, wherever it is: behind a broker, or in the world of a test."""

from __future__ import annotations

from typing import Any, Protocol

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.commands.plan_answer import Answer
from scylla_spark.core.plan.state.plan_state import PlanState


class PlannerLink(Protocol):
    """Asks a planner."""

    def ask(self, kind: str, **fields: Any) -> Answer:
        """Sends a command, and waits until the planner has obeyed or refused it."""

    def tell(self, kind: str, **fields: Any) -> None:
        """Sends a command that needs no answer."""

    def state(self) -> PlanState:
        """All that the planner knows."""


class Planned(Protocol):
    """What has a planner, and settings with start values of queues."""

    @property
    def plan(self) -> PlannerLink:
        """Asks the planner."""

    @property
    def settings(self) -> Settings:
        """The settings."""
