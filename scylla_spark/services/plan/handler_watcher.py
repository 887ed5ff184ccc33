"""Asks dispatchers which handlers they have, where runs of schedules wait for long; in threads of its own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.planner import Planner
from scylla_spark.errors import SchedulerError
from scylla_spark.log import get_logger
from scylla_spark.services.daemon_threads import DaemonThreads
from scylla_spark.services.plan.dispatchers import asked, owners

log = get_logger("plan")

_EVERY_US: Final = 10_000_000


class HandlerWatcher:
    """Tells the planner which of the handlers that runs wait for no dispatcher has.

    Args:
        settings: how to reach Kafka, whose fences name the dispatchers.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: SimpleQueue[frozenset[str]] = SimpleQueue()
        self._threads = DaemonThreads("handler-look")
        self._look_at_us = 0

    def stop(self) -> None:
        """Ends looking; a look that hangs is left to itself."""
        self._threads.stop()

    def exchange(self, planner: Planner, now: int) -> None:
        """Tells the planner what was found, and begins to look where it wants that; called by the planner's thread."""
        try:
            while True:
                planner.missing_handlers(self._found.get_nowait(), now)
        except Empty:
            pass
        if boot_us() >= self._look_at_us:
            self._look_at_us = boot_us() + _EVERY_US
            if wanted := planner.handlers_in_question(now):
                self._threads.do(partial(self._look, wanted))

    def _look(self, wanted: set[str]) -> None:
        try:
            told = self._told()
        except (SchedulerError, OSError) as error:
            log.warning("dispatchers cannot be asked for their handlers", why=str(error)[:300])
            return
        if told is not None and (missing := wanted - told):
            self._found.put(frozenset(missing))

    def _told(self) -> set[str] | None:
        """The handlers of all dispatchers; None: one does not answer, or there is none, so that nothing is known to be missing."""
        found = owners(self._settings)
        if not all(found):
            return None
        answers = [_handlers(address) for address in sorted(set(found))]
        return None if None in answers else {name for names in answers for name in names or ()}


def _handlers(address: str) -> set[str] | None:
    """The names that a dispatcher answers with; None: its answer cannot be read."""
    try:
        return set(_names(asked(address, "/handlers")["handlers"]))
    except (KeyError, TypeError):
        return None


def _names(rows: Iterable[object]) -> Iterable[str]:
    return (row["name"] for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str))
