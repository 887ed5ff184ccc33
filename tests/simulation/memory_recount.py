"""What a partition holds, counted anew; and what of it need not be held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scylla_spark.core.engine.lane import BEFORE_ALL, IDLE, Lane
from scylla_spark.core.engine.memory_use import attempt_bytes, note_bytes
from scylla_spark.core.engine.partition import ACTIVE, Partition

if TYPE_CHECKING:
    from tests.simulation.world import World


def held_bytes(partition: Partition) -> int:
    """Returns how many bytes a partition holds, by the rule that the engine counts by."""
    entries = [e for lane in partition.lanes.values() for e in (*lane.entries.values(), *lane.beyond.values())]
    early = sum(note_bytes(key) + attempt_bytes(tried.known) for key, tried in partition.attempts.items())
    cancels = [*partition.cancelled, *(command.key for command in partition.early_cancels)]
    return sum(entry.cost for entry in entries) + early + sum(map(note_bytes, cancels))


def excess(partition: Partition, world: World) -> list[str]:
    """Lanes that cannot start, and of which more than the head is held although the tables have the rest."""
    if partition.state is not ACTIVE or partition.receiving or not world.stuck_lanes:
        return []
    stuck = [lane for name, lane in partition.lanes.items() if world.is_stuck(name) and lane.state in IDLE]
    return [lane.ordering_id for lane in stuck if _spare(lane) > 1]


def _spare(lane: Lane) -> int:
    """Returns how many tasks at the end of a lane could be let go of; what stands before one that cannot stays with it."""
    entries = [*lane.entries.values(), *lane.beyond.values()]
    last = max((entry.key for entry in entries if not entry.spare), default=BEFORE_ALL)
    return sum(1 for entry in entries if entry.spare and entry.key > last)
