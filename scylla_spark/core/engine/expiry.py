"""Expiring: the head of a lane that has not begun in time ends, whatever it waits for, and its lane goes on."""

from __future__ import annotations

from scylla_spark import failpoint
from scylla_spark.core.engine import action
from scylla_spark.core.engine.cancels import Cancels
from scylla_spark.core.engine.expiry_timers import ExpiryTimers
from scylla_spark.core.engine.lane import LOOKUP, RECORDING
from scylla_spark.core.engine.own_defects import Defects
from scylla_spark.core.engine.state import EngineState


class Expiry:
    """Ends what has expired while it waited for room, for a worker, or for its queue to be resumed.

    A task that waits behind others of its lane ends when its turn comes: lanes end in key order.

    Args:
        state: of the engine.
        timers: of the ready lanes.
        cancels: ends tasks that are not to start.
        defects: of ours, that a task meets.
    """

    def __init__(self, state: EngineState, timers: ExpiryTimers, cancels: Cancels, defects: Defects) -> None:
        self._state = state
        self._timers = timers
        self._cancels = cancels
        self._defects = defects

    def end_due(self, now: int) -> None:
        """Ends the heads that have expired; of one that may have ended before, the tables are asked first."""
        for partition, lane, head in self._timers.due(now):
            lane.stamp += 1  # it waits for no executor and no worker any more
            if not head.verified and not partition.is_fresh(head.key):
                lane.state = LOOKUP
                self._state.ask(action.Lookup(partition.tenure, [head.key]))
                continue
            lane.state = RECORDING
            try:
                if failpoint.armed:
                    failpoint.reach("engine.expire", head.key.uniqueness_key)
                self._cancels.end_unrun(partition, head, now)
            except Exception as error:
                self._defects.set_aside(partition, head.key, error, now)
