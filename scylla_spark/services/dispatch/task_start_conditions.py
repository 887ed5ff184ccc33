"""All that must hold before a task starts, each with whether it does: what `why` says in a sentence, as a table."""

from __future__ import annotations

from typing import Any

from scylla_spark.clock import iso
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.lane import Entry, Lane, LaneState
from scylla_spark.core.engine.partition import Partition, PartitionState
from scylla_spark.core.tasks.state import NO_HANDLER
from scylla_spark.services.dispatch.describe_reading import scan_condition


def conditions(
    engine: Engine, partition: Partition, lane: Lane, entry: Entry, now: int, shortage: str = ""
) -> list[dict[str, Any]]:
    """Every condition, in the order in which they are looked at: `name`, `met` and `detail`.

    Args:
        engine: of this dispatcher, asked in its thread.
        partition: of the task.
        lane: of the task.
        entry: the task.
        now: microseconds since the epoch.
        shortage: why it waits for a Spark worker; empty: it does not.
    """
    gate, held_up = engine.gate(entry.data.queue), engine.held_up(partition)
    limit = engine.rate_limit(entry.data, now)
    head = lane.active or lane.head()
    is_head = head is None or head is entry
    found = [
        _condition("its partition is served", partition.state is PartitionState.ACTIVE, f"{partition.number} is {partition.state}"),
        _condition("it is due", entry.next_us <= now, iso(entry.next_us)),
        scan_condition(partition, entry.key),
        _condition("it is the head of its lane", is_head, "" if is_head or head is None else f"before it: {head.key}"),
        *(_condition(name, met, detail) for name, met, detail in gate.conditions(lane.ordering_id, now)),
        _condition("no rate limit that it shares is waited for", limit is None, "" if limit is None else str(limit)),
        _condition("its partition releases tasks", not held_up, held_up or "it does"),
        _condition("its queue may hold another child", not engine.leaves_children(entry.data), ""),
        _condition("this dispatcher has its handler", engine.executor_of(entry.data) != NO_HANDLER, entry.data.handler or ""),
    ]  # fmt: skip
    waits = bool(shortage) or (lane.state is LaneState.READY and all(one["met"] for one in found))
    who = "a worker to lease it" if gate.limits.pull or entry.data.handler is None else "room in the executor"
    if shortage:
        who = f"a Spark worker: {shortage}"
    return [*found, _condition("somebody can run it", not waits, f"it waits for {who}" if waits else "")]


def _condition(name: str, met: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "met": met, "detail": detail}
