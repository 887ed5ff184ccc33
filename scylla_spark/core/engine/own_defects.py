"""Defects of ours: what one record meets ends that task, and everything else goes on."""

from __future__ import annotations

from scylla_spark.core.engine.fact_recorder import Recorder
from scylla_spark.core.engine.lane import OPEN, RECORDING, RUNNING, WAITING
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.records.rejection_reason import of_defect
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import NOTHING
from scylla_spark.core.tasks.task import FAILED, Failure


class Defects:
    """Sets aside what cannot be handled because our own code fails on it.

    Args:
        state: of the engine.
        waiting: where the lane goes on.
        recorder: writes the end of the task.
    """

    def __init__(self, state: EngineState, waiting: Waiting, recorder: Recorder) -> None:
        self._state = state
        self._waiting = waiting
        self._recorder = recorder
        self._met: list[tuple[TaskKey, Exception]] = []

    def take(self) -> list[tuple[TaskKey, Exception]]:
        """Returns what was met since the last time, for the shell to tell."""
        met, self._met = self._met, []
        return met

    def note(self, key: TaskKey, error: Exception) -> None:
        """Counts a defect, and keeps it until the shell tells of it.

        Raises:
            MemoryError: that is what was met. No task is to blame for it, and this process cannot go on.
        """
        if isinstance(error, MemoryError):
            raise error
        self._state.counts["defects"] += 1
        self._met.append((key, error))

    def set_aside(self, partition: Partition, key: TaskKey, error: Exception, now: int) -> None:
        """A defect of ours met this task: it ends as failed, with the stack, and everything else goes on.

        Raises:
            MemoryError: as for `note`.
        """
        self.note(key, error)
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        if entry is not None and entry.stage is not OPEN:
            return  # what runs ends by itself
        tried = partition.attempts.get(key)
        known = entry.known if entry is not None else tried.known if tried is not None else NOTHING
        if lane is not None and entry is not None:
            lane.remove(key)
            lane.state = RUNNING if lane.out else RECORDING if lane.held else WAITING
        partition.ending.add(key)
        kind, stack = of_defect(error)
        failure = Failure(kind, f"{type(error).__name__}: {error}"[:1000], stack)
        self._recorder.record(
            partition, Fact(key, known.attempt, FAILED, finished_us=now, used=known.used, failure=failure), now
        )
        if lane is not None:
            self._waiting.settle(partition, lane, now)
