"""From rows of the due scan to what the engine takes: tasks per partition, where lanes were cut, which were left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from scylla_spark.core.command import ENQUEUE, Command, WireRetry
from scylla_spark.core.key import TaskKey
from scylla_spark.core.stored import ScanRow
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.fingerprint import fingerprint

_COLUMNS = (
    "partition_id", "time_us", "ordering_id", "uniqueness_key", "handler", "queue", "priority", "payload", "timeout_ms", "extra",
    "max_retries", "base_ms", "cap_ms", "enqueued_us", "offset", "cancelled", "attempt", "used", "next_us", "more",
)  # fmt: skip


class Slice(NamedTuple):
    """What a scan found of one partition.

    Attributes:
        rows: open tasks, of each lane in key order.
        cuts: ordering id → last key read, for lanes of which the tables hold more.
        unloaded: fingerprints of the ordering ids of lanes of which nothing was read.
    """

    rows: list[ScanRow]
    cuts: dict[str, TaskKey]
    unloaded: set[int]


def slices(table: Any) -> dict[int, Slice]:
    """Partition → what was found of it.

    Args:
        table: pyarrow.Table of the columns of `transforms.due.due`, or of `first_of_queues`.
    """
    found: dict[int, Slice] = {}
    if "kept" in table.column_names:
        kept = table.column("kept")
        for partition, ordering_id in lists(table.filter(_not(kept)).select(["partition_id", "ordering_id"])):
            found.setdefault(partition, Slice([], {}, set())).unloaded.add(fingerprint(ordering_id))
        table = table.filter(kept)
    for (
        partition, time_us, ordering_id, uniqueness_key, handler, queue, priority, payload, timeout_ms, extra,
        max_retries, base_ms, cap_ms, enqueued_us, offset, cancelled, attempt, used, next_us, more,
    ) in lists(table.select(list(_COLUMNS))):  # fmt: skip
        key = TaskKey(time_us, ordering_id, uniqueness_key)
        retry = WireRetry(max_retries, base_ms, cap_ms) if base_ms is not None else None
        command = Command(
            ENQUEUE, key, offset, handler, queue or DEFAULT_QUEUE, payload or "{}", priority or 0, timeout_ms, retry,
            enqueued_us or 0, extra,
        )  # fmt: skip
        part = found.get(partition)
        if part is None:
            part = found[partition] = Slice([], {}, set())
        part.rows.append(ScanRow(command, cancelled, attempt, used, next_us))
        if more and (ordering_id not in part.cuts or key > part.cuts[ordering_id]):
            part.cuts[ordering_id] = key
    return found


def lists(table: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a pyarrow.Table as tuples."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _not(column: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(column)
