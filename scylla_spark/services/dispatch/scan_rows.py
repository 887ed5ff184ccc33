"""From rows of the due scan to what the engine takes: tasks per partition, where lanes were cut, which were left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from scylla_spark.core.engine.lane import BEFORE_ALL
from scylla_spark.core.records.command import WireRetry
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import ENQUEUED, ScanRow, stored_command
from scylla_spark.io.delta.rows import last_error, work_note
from scylla_spark.name_fingerprint import fingerprint

COLUMNS: Final = (
    "partition_id",
    "time_us",
    "ordering_id",
    "uniqueness_key",
    "max_retries",
    "base_ms",
    "cap_ms",
    "enqueued_us",
    "offset",
    "cancelled",
    "attempt",
    "used",
    "next_us",
    "work",
    "error",
    "leased",
    "more",
    "first",
    "fact_offset",
    *ENQUEUED,
)
"""The columns of `transforms.due.due` that a task is made of, in the order in which `slices` takes them."""


class Slice(NamedTuple):
    """What a scan found of one partition.

    Attributes:
        rows: open tasks, of each lane what is leased and then the others in key order.
        cuts: ordering id → last key read, for lanes of which the tables hold more.
        unloaded: fingerprints of the ordering ids of lanes of which nothing was read.
    """

    rows: list[ScanRow]
    cuts: dict[str, TaskKey]
    unloaded: set[int]


def slices(rows: Iterable[tuple[Any, ...]], left: Iterable[tuple[int, str]] = ()) -> dict[int, Slice]:
    """Partition → what was found of it.

    Args:
        rows: open tasks with the values of `COLUMNS`, of each lane in key order.
        left: partition and ordering id of the lanes of which nothing is loaded.
    """
    found: dict[int, Slice] = {}
    for number, ordering_id in left:
        found.setdefault(number, Slice([], {}, set())).unloaded.add(fingerprint(ordering_id))
    for (
        partition,
        time_us,
        ordering_id,
        uniqueness_key,
        max_retries,
        base_ms,
        cap_ms,
        enqueued_us,
        offset,
        cancelled,
        attempt,
        used,
        next_us,
        work,
        error,
        leased,
        more,
        first,
        place,
        *cells,
    ) in rows:
        key = TaskKey(time_us, ordering_id, uniqueness_key)
        retry = WireRetry(max_retries, base_ms, cap_ms) if base_ms is not None else None
        command = stored_command(key, offset, cells, retry, enqueued_us or 0)
        part = found.get(partition)
        if part is None:
            part = found[partition] = Slice([], {}, set())
        note, why = work_note(work), last_error(error)
        part.rows.append(
            ScanRow(command, cancelled, attempt, used, next_us, note, why, -1 if first is None else first, place)
        )
        read = BEFORE_ALL if leased else key  # what is leased was read before its turn
        if more and (ordering_id not in part.cuts or read > part.cuts[ordering_id]):
            part.cuts[ordering_id] = read
    return found
