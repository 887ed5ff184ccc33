"""The stored enqueues of many keys, for who does something with all tasks that a filter chooses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.delta.rows import IDENTITY, around, folded, in_us, scan_row
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import TASKS


def stored_commands(readers: TableReader, keys: Sequence[TaskKey]) -> Iterator[Command]:
    """The newest enqueue of each key that the tables hold one of.

    Args:
        readers: of the deployment.
        keys: in order, near each other in time: all between the first and the last is read.
    """
    import polars as pl

    if not keys:
        return
    wanted = pl.LazyFrame(keys, schema=dict(zip(IDENTITY, (pl.Int64, pl.String, pl.String), strict=True)), orient="row")
    hours = [("hour", ">=", keys[0].hour), ("hour", "<=", keys[-1].hour)]
    tasks = readers.frame(TASKS, [hours])
    if keys[-1].time_us >= readers.folded_until_us():
        tasks = folded(tasks, readers.deferred(around(keys[0].time_us, keys[-1].time_us)))
    rows = in_us(tasks).join(wanted, on=IDENTITY, how="semi").collect()
    for row in rows.iter_rows(named=True):
        command = scan_row(row).command
        if command.kind == ENQUEUE:
            yield command
