"""What a partition holds, counted anew; and what of it need not be held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scylla_spark.core.lane import IDLE
from scylla_spark.core.partition import ACTIVE, Partition, fact_bytes, note_bytes

if TYPE_CHECKING:
    from tests.simulation.world import World


def held_bytes(partition: Partition) -> int:
    """How many bytes a partition holds, by the rule that the engine counts by."""
    entries = [e for lane in partition.lanes.values() for e in (*lane.entries.values(), *lane.beyond.values())]
    early = sum(note_bytes(key) + fact_bytes(fact) for key, (_, fact) in partition.early_facts.items())
    cancels = [*partition.cancelled, *(command.key for command in partition.early_cancels)]
    return sum(entry.cost for entry in entries) + early + sum(map(note_bytes, cancels))


def excess(partition: Partition, world: World) -> list[str]:
    """Lanes that cannot start, and of which more than the head is held although the tables have the rest."""
    if partition.state is not ACTIVE or partition.receiving or not world.stuck_lanes:
        return []
    return [
        ordering_id
        for ordering_id, lane in partition.lanes.items()
        if world.is_stuck(ordering_id)
        and lane.state in IDLE
        and sum(1 for entry in (*lane.entries.values(), *lane.beyond.values()) if entry.spare) > 2
    ]
