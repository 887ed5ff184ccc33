"""Figures of the load of queues, as dispatchers report them, for constraints on the load."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

FRESH_US: Final = 10_000_000  # figures are judged up to this age
STALE_US: Final = 60_000_000  # constraints hold without figures that are newer
_MOST_LAUNCHES: Final = 10_000


class QueueLoad(NamedTuple):
    """Figures of one queue, or of the deployment.

    Attributes:
        ready: lanes whose first task is due and has not started.
        running: tasks that run.
        oldest_us: how long the oldest of the ready ones has waited, microseconds.
    """

    ready: int = 0
    running: int = 0
    oldest_us: int = 0

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> QueueLoad:
        """Figures as a dispatcher shows them.

        Args:
            found: JSON object with `ready`, `running` and `oldest_ready_seconds`.

        Raises:
            KeyError: a figure is missing.
            TypeError, ValueError, OverflowError: a figure is no number.
        """
        return cls(int(found["ready"]), int(found["running"]), int(found["oldest_ready_seconds"] * 1e6))

    def plus(self, other: QueueLoad) -> QueueLoad:
        """The figures of both."""
        oldest_us = max(self.oldest_us, other.oldest_us)
        return QueueLoad(self.ready + other.ready, self.running + other.running, oldest_us)


class Load:
    """The newest figures, and the runs that the planner has launched since: those count as ready.

    Args:
        at_us: when dispatchers were asked, or since when figures are wanted and none are known, microseconds since the epoch.
        queues: queue → figures; a queue that is missing has nothing to do. None: nothing is known.
        before: what was known before; its launches after `at_us` are not in the figures.
    """

    def __init__(self, at_us: int, queues: Mapping[str, QueueLoad] | None = None, before: Load | None = None) -> None:
        self.at_us = at_us
        self._queues = queues
        launched = before.launched if before is not None else ()
        self.launched: deque[tuple[int, str]] = deque(
            (one for one in launched if one[0] >= at_us), maxlen=_MOST_LAUNCHES
        )

    @property
    def is_known(self) -> bool:
        """Returns True if there are figures."""
        return self._queues is not None

    def of(self, queue: str) -> QueueLoad:
        """The figures of a queue.

        Args:
            queue: its name; empty: the deployment.
        """
        queues = self._queues or {}
        found = queues.get(queue, QueueLoad())
        if not queue:
            for one in queues.values():
                found = found.plus(one)
        launched = sum(not queue or one == queue for _, one in self.launched)
        return found._replace(ready=found.ready + launched)

    def launch(self, queue: str, now: int) -> None:
        """A run was launched into a queue."""
        self.launched.append((now, queue))
