"""What a dispatcher says of tasks that wait for the tables: they are not loaded, or may not start before a scan."""

from __future__ import annotations

from typing import Any

from scylla_spark.clock import iso
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.partition import Partition, PartitionState
from scylla_spark.core.tasks.key import TaskKey, place_of


def scan_condition(partition: Partition, key: TaskKey) -> dict[str, Any]:
    """Whether the tables have been scanned so far that nothing unknown may come before a task.

    Args:
        partition: of the task.
        key: of the task.
    """
    met = key.time_us <= partition.complete_us
    detail = "" if met else _scanned_so_far(partition)
    return {"name": "the tables have been scanned up to its time", "met": met, "detail": detail}


def why_unscanned(partition: Partition) -> str:
    """Why a task that is due does not start, where the tables have not been scanned up to its time."""
    return f"It is due, but the tables may hold tasks of its lane that go before it: {_scanned_so_far(partition)}."


def describe_unheld(engine: Engine, key: TaskKey) -> dict[str, Any]:
    """Why this dispatcher does not hold a task: `why` in a sentence, and `conditions`.

    Args:
        engine: of this dispatcher, asked in its thread.
        key: of the task.
    """
    partition = engine.partitions.get(place_of(key.ordering_id, engine.limits.partitions))
    if partition is None:
        return {"why": "This dispatcher does not hold its partition.", "conditions": []}
    return {"why": _why_unheld(partition, key), "conditions": _conditions(partition, key)}


def _conditions(partition: Partition, key: TaskKey) -> list[dict[str, Any]]:
    state, horizon = partition.state, partition.horizon_us
    return [
        {"name": "its partition is served", "met": state is PartitionState.ACTIVE, "detail": f"{partition.number} is {state}"},
        {"name": "it comes within the look-ahead", "met": key.time_us <= horizon, "detail": f"which ends at {iso(horizon)}"},
        scan_condition(partition, key),
        {
            "name": "its lane is not left in the tables", "met": not _is_left(partition, key),
            "detail": "lanes are left there while more is open than is loaded at once",
        },
        {"name": "its dispatcher has loaded it", "met": False, "detail": ""},
    ]  # fmt: skip


def _why_unheld(partition: Partition, key: TaskKey) -> str:
    if partition.state is not PartitionState.ACTIVE:
        return f"Its partition {partition.number} is {partition.state} and releases nothing."
    if key.time_us > partition.horizon_us:
        return f"Its dispatcher loads it when it comes within the look-ahead, which ends at {iso(partition.horizon_us)} now."
    if key.time_us > partition.complete_us:
        return f"Its dispatcher reads it from the tables: {_scanned_so_far(partition)}."
    if _is_left(partition, key):
        return "Its dispatcher has left it in the tables, because more is open than it loads at once; it is read when there is room."
    return "Its dispatcher does not hold it: it has ended a moment ago, or its record has not been read yet."


def _is_left(partition: Partition, key: TaskKey) -> bool:
    """Whether its lane, or all of it behind some task, was not loaded."""
    lane = partition.lanes.get(key.ordering_id)
    return partition.left(key) or (lane is not None and lane.frontier is not None and lane.frontier < key)


def _scanned_so_far(partition: Partition) -> str:
    if partition.complete_us < 0:
        return "they have not been scanned yet"
    text = f"they have been scanned up to {iso(partition.complete_us)}"
    if partition.far_before < partition.mark.tasks_offset:
        return text
    behind = partition.far_before + 1 - partition.mark.tasks_offset
    records = "1 record" if behind == 1 else f"{behind} records"
    return f"{text}, and the next scan waits until ingest, which was {records} behind, has written offset {partition.far_before}"
