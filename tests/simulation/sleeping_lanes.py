"""Whether every loaded lane will be woken: what waits for a time has a timer, what waits for room stands in a queue, …

A lane that sleeps through its time is not lost (the next scan or arrival wakes it), so no other check would see it.
"""

from __future__ import annotations

from collections.abc import Iterator

from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.lane import LOOKUP, READY, RECORDING, RUNNING, STARTING, WAITING, Lane
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.tasks.key import name_of


def sleepers(engine: Engine) -> Iterator[str]:
    """Yields what is wrong, of each lane that nothing will wake."""
    held = [partition for partition in engine.partitions.values() if partition.state is ACTIVE]
    timers = {(id(lane), stamp, at) for at, _, stamp, _, lane in engine._waiting.timers()}
    unscanned = {id(lane) for partition in held for lane in partition.unscanned}
    queued = {(id(lane), stamp) for partition in held for stamp, lane in partition.overflow}
    queued |= {(id(place.lane), place.stamp) for place in engine._ready.places()}
    queued |= {(id(place.lane), place.stamp) for place in engine._pulls.places()}
    for gate in engine._gates.all():
        queued |= {(id(lane), stamp) for group in gate._groups.values() for stamp, _, lane in group.waiting}
    for key, limited in engine._rates._held.items():
        if engine._rates.next_us() <= engine._rates._until_us.get(key, 0):
            queued |= {(id(place.lane), place.stamp) for place in limited}
    for partition, lane in [(found, lane) for found in held for lane in found.lanes.values()]:
        head = lane.head()
        if lane.state is WAITING and head is not None and head.undecided:
            asked = name_of(head.key) in partition.names.pending or not partition.names.settled
            awaited = asked or head.first >= partition.tasks_position  # the tail will ask
        elif lane.state is WAITING and head is not None:
            awaited = id(lane) in unscanned or (id(lane), lane.stamp, head.next_us) in timers
        elif lane.state is READY:
            awaited = lane.active is head is not None and (id(lane), lane.stamp) in queued
        else:
            awaited = _answered(partition, lane)
        if not awaited:
            yield f"lane {lane.ordering_id} is {lane.state}, and nothing will wake it; head {head and head.key}"


def _answered(partition: Partition, lane: Lane) -> bool:
    """Returns True if what a lane without a ready or waiting head waits for is under way."""
    recording = any(key.ordering_id == lane.ordering_id for key, *_ in partition.outbox.unrecorded)
    if lane.state is WAITING:
        return lane.frontier is None or lane.reloading or recording
    if lane.state is RUNNING:
        return lane.out > 0
    if lane.state is LOOKUP:
        return lane.active is not None
    if lane.state in (RECORDING, STARTING):
        return recording
    raise AssertionError(lane.state)
