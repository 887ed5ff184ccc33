"""Entries of the audit log on their way to the table `audit`. They are sent to the topic of the planner once a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

import anyio
import anyio.to_thread

from scylla_spark.api.http.metrics import ApiMetrics
from scylla_spark.core.plan.state.audit_entry import MOST_CHARS, MOST_ENTRIES, AuditEntry
from scylla_spark.core.records.bounded_text import clean
from scylla_spark.errors import ArgumentError, SchedulerError
from scylla_spark.log import get_logger

log = get_logger("api")

_MOST_WAITING: Final = 1_000
_PAUSE_S: Final = 1.0
Tell = Callable[[list[AuditEntry]], None]


class AuditTrail:
    """Entries that are not sent yet, a bounded number; of one event loop. What finds no room is counted, and stands in the log alone.

    Args:
        tell: sends some, and returns once that is acknowledged.
        metrics: counts what is lost.
    """

    def __init__(self, tell: Tell, metrics: ApiMetrics) -> None:
        self._tell = tell
        self._metrics = metrics
        self._waiting: deque[AuditEntry] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = anyio.CapacityLimiter(1)

    def start(self) -> None:
        """Begins to send."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Sends what waits, and ends."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._send()

    def note(self, entry: AuditEntry) -> None:
        """Takes an entry, cut to what fits."""
        entry = AuditEntry._make(clean(one[:MOST_CHARS]) if isinstance(one, str) else one for one in entry)
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(entry)
        else:
            self._metrics.audit_lost.inc()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            await self._send()

    async def _send(self) -> None:
        """Sends all that waits; what nobody acknowledges is sent again later, so that a row may stand twice."""
        while self._waiting:
            some = list(islice(self._waiting, MOST_ENTRIES))
            try:
                await anyio.to_thread.run_sync(self._tell, some, limiter=self._thread)
            except ArgumentError as error:  # no record can hold them
                log.error("who changed what stands in the log alone", why=str(error)[:300], entries=len(some))
                self._metrics.audit_lost.inc(len(some))
            except SchedulerError as error:
                log.warning("who changed what could not be sent yet", why=str(error)[:300], entries=len(some))
                return
            for _ in some:
                self._waiting.popleft()
