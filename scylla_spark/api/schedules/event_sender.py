"""Tells the planner of what has happened, over a connection of its own, which needs no tables."""

from __future__ import annotations

import threading
from typing import Any

from scylla_spark.client.connection import Connection
from scylla_spark.io.kafka.plan_requests import PlanRequests


class EventSender:
    """Sends events; thread safe.

    Args:
        connection: to the deployment.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._plan: PlanRequests | None = None

    def tell(self, kind: str, **fields: Any) -> None:
        """Sends a command that nobody answers; see `PlanRequests.tell`."""
        with self._lock:
            if self._plan is None:
                self._plan = PlanRequests(self._connection.located)
        self._plan.tell(kind, **fields)

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            if self._plan is not None:
                self._plan.close()
                self._plan = None
