"""`/healthz` and `/readyz` of a process: whether its parts live, and whether they do their duty, with the reason in words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scylla_spark.clock import boot_us
from scylla_spark.errors import UnreachableError
from scylla_spark.services.read_only_http_server import JSON, Reply, Route
from scylla_spark.services.service import Service

_SILENT_US: Final = 15_000_000  # that a look at the services may take
_SHARED_US: Final = 250_000  # an answer may be so old
_OK: Final = Reply(JSON, json.dumps({"status": "ok"}).encode())


class Health:
    """The health of one process, as `Deployment` knows it; thread safe.

    Args:
        roles: of the process, in the order in which they start.
        services: role → service, of those that have begun; it changes while the process starts and stops.

    Attributes:
        failure: what ended a part; None: all parts live.
        stopping: the process drains.
        looked_us: boot clock at which the newest look at the services began; None: nothing looks at them.
    """

    def __init__(self, roles: Sequence[str], services: Mapping[str, Service], now: Callable[[], int] = boot_us) -> None:
        self.failure: BaseException | None = None
        self.stopping = False
        self.looked_us: int | None = None
        self._roles, self._services, self._now = roles, services, now
        self._lock = threading.Lock()
        self._reasons: list[str] = []
        self._asked_us = -_SHARED_US

    def routes(self) -> dict[str, Route]:
        """Both paths; a reason why not is answered with 503."""
        return {"/healthz": Route(lambda _query: self._living()), "/readyz": Route(lambda _query: self._ready())}

    def _living(self) -> Reply:
        if self.failure is not None:
            raise UnreachableError(f"A part of this process has ended: {self.failure}")
        return _OK

    def _ready(self) -> Reply:
        self._living()
        if self.stopping:
            raise UnreachableError("This process drains and stops.")
        if self.looked_us is not None and self._now() - self.looked_us > _SILENT_US:
            seconds = (self._now() - self.looked_us) // 1_000_000
            raise UnreachableError(f"A service, or Spark's JVM, has not answered this process for {seconds} s.")
        with self._lock:  # services are asked rarely, even if many clients ask
            if self._now() - self._asked_us >= _SHARED_US:
                found = [f"{role}: {why}" for role in self._roles if (why := self._trouble(role)) is not None]
                self._reasons, self._asked_us = found, self._now()
            reasons = self._reasons
        if reasons:
            raise UnreachableError(" ".join(reasons))
        return _OK

    def _trouble(self, role: str) -> str | None:
        service = self._services.get(role)
        return "It starts." if service is None else service.trouble()
