"""Asks dispatchers how much their queues have to do, as long as a schedule has a constraint on the load; in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.load import Load, QueueLoad
from scylla_spark.core.plan.planner import Planner
from scylla_spark.errors import SchedulerError
from scylla_spark.log import get_logger
from scylla_spark.services.daemon_threads import DaemonThreads
from scylla_spark.services.plan.dispatchers import asked, owners

log = get_logger("plan")

EVERY_US: Final = 5_000_000

Figures = dict[str, QueueLoad]


class LoadWatcher:
    """Gives the planner figures of all partitions that were asked for at one moment, or none.

    Args:
        settings: how to reach Kafka, whose fences name the dispatchers.
        boot: returns the boot clock in microseconds.
    """

    def __init__(self, settings: Settings, boot: Callable[[], int] = boot_us) -> None:
        self._settings = settings
        self._boot = boot
        self._found: SimpleQueue[tuple[int, Figures | None]] = SimpleQueue()
        self._threads = DaemonThreads("load-look")
        self._addresses: frozenset[str] = frozenset()
        self._is_looking = False
        self._look_at_us = 0

    def stop(self) -> None:
        """Ends looking; a look that hangs is left to itself."""
        self._threads.stop()

    def exchange(self, planner: Planner, now: int) -> None:
        """Gives the planner what was found, and begins to look where it wants that; called by the planner's thread."""
        load = planner.load
        try:
            while True:
                at_us, queues = self._found.get_nowait()
                self._is_looking = False
                if load is not None and queues is not None:
                    planner.take_load(Load(at_us, queues, load), now)
        except Empty:
            pass
        if load is not None and not self._is_looking and self._boot() >= self._look_at_us:
            self._look_at_us = self._boot() + EVERY_US
            self._is_looking = True
            self._threads.do(partial(self._look, now))

    def _look(self, now: int) -> None:
        found: Figures | None = None
        try:
            found = self._figures()
        except (SchedulerError, OSError) as error:
            log.warning("dispatchers cannot be asked for their load", why=str(error)[:300])
        finally:
            self._found.put((now, found))

    def _figures(self) -> Figures | None:
        """Asks the dispatchers of before; where these do not have all partitions, finds out who has. None: some have no owner."""
        found = self._sum(self._addresses)
        if found is None:
            self._addresses = frozenset(owners(self._settings)) - {""}
            found = self._sum(self._addresses)
        return found

    def _sum(self, addresses: frozenset[str]) -> Figures | None:
        answers = [asked(address, "/load") for address in sorted(addresses)]
        return figures_of(answers, self._settings.partitions)


def figures_of(answers: list[Any], partitions: int) -> Figures | None:
    """Returns queue → figures of all dispatchers together; None if an answer is none, or a partition is missing.

    Args:
        answers: JSON values of dispatchers.
        partitions: how many the deployment has.
    """
    missing, found = set(range(partitions)), Figures()
    for answer in answers:
        try:
            missing -= set(answer["partitions"])
            for name, figures in answer["queues"].items():
                found[name] = found.get(name, QueueLoad()).plus(QueueLoad.of(figures))
        except (TypeError, KeyError, ValueError, OverflowError, AttributeError):
            return None
    return None if missing else found
