"""Tasks and their attempts as Arrow tables, by the filter that the API and the command line take; without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Final

from scylla_spark.core.tasks.filter import read_filter
from scylla_spark.core.tasks.key import instant_us
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.attempt_rows import attempts_of_tasks
from scylla_spark.io.delta.line_rows import lines_of_tasks
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_pages import TaskPages

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

_MOST_KEPT_BYTES: Final = 64 * 1024 * 1024
_KEY: Final = {"scheduled_time": "time", "ordering_id": "text", "uniqueness_key": "text"}
_OF_TASKS: Final = {
    **_KEY,
    "state": "text",
    "queue": "text",
    "handler": "text",
    "priority": "number",
    "attempts": "number",
    "next_attempt_at": "time",
    "enqueued_at": "time",
    "ended_at": "time",
    "cancel_requested": "yes or no",
    "error_class": "text",
    "tags": "texts",
    "name": "text",
    "enqueued_by": "text",
}
_OF_ATTEMPTS: Final = {
    **_KEY,
    "attempt": "number",
    "outcome": "text",
    "planned_at": "time",
    "started_at": "time",
    "finished_at": "time",
    "next_at": "time",
    "result": "text",
    "error_class": "text",
    "error_message": "text",
    "error_stack": "text",
}
_OF_LINES: Final = {
    **_KEY,
    "attempt": "number",
    "epoch": "large number",
    "seq": "number",
    "at": "time",
    "stream": "text",
    "level": "text",
    "text": "text",
    "fields": "text",
}


class TaskTables:
    """Answers from the tables, some thousand rows at a time.

    Args:
        readers: of the deployment.

    Attributes:
        pages: by filter, partly kept in memory.
    """

    def __init__(self, readers: TableReader) -> None:
        self._readers = readers
        self.pages = TaskPages(readers, _MOST_KEPT_BYTES)

    def tasks(self, where: str, limit: int | None, as_of: datetime | None, now: int) -> pa.RecordBatchReader:
        """Tasks in the order of their keys.

        Args:
            where: the filter; empty: all.
            limit: most rows; None: all.
            as_of: as it was then (aware); None: now.
            now: microseconds since the epoch.

        Raises:
            ArgumentError: the filter is none, or the limit is no number from 1.
        """
        return _reader(_OF_TASKS, self._chosen(where, limit, as_of, now))

    def attempts(self, where: str, limit: int | None, now: int) -> pa.RecordBatchReader:
        """Attempts of the tasks that a filter chooses, in the order of their keys and numbers.

        Args:
            where: the filter; empty: all.
            limit: most tasks; None: all.
            now: microseconds since the epoch.

        Raises:
            ArgumentError: as `tasks`.
        """
        chosen = self._chosen(where, limit, None, now)
        return _reader(_OF_ATTEMPTS, (attempts_of_tasks(self._readers, tasks) for tasks in chosen))

    def lines(self, where: str, limit: int | None, now: int) -> pa.RecordBatchReader:
        """Lines of the tasks that a filter chooses, in the order of their keys, attempts and numbers.

        Args:
            where: the filter; empty: all.
            limit: most tasks; None: all.
            now: microseconds since the epoch.

        Raises:
            ArgumentError: as `tasks`.
        """
        chosen = self._chosen(where, limit, None, now)
        return _reader(
            _OF_LINES, (lines for tasks in chosen if (lines := lines_of_tasks(self._readers, tasks)) is not None)
        )

    def _chosen(self, where: str, limit: int | None, as_of: datetime | None, now: int) -> Iterator[pl.DataFrame]:
        if limit is not None and limit < 1:
            raise ArgumentError(f"The limit is {limit}.", hint="Pass 1 or more, or None for all.")
        as_of_us = None if as_of is None else instant_us(as_of)
        return self.pages.frames(read_filter(where, now), now=now, limit=limit, as_of_us=as_of_us)


def _reader(columns: Mapping[str, str], frames: Iterator[pl.DataFrame]) -> pa.RecordBatchReader:
    """The frames as one stream; the first is read at once, so that whoever asks is told of tables that cannot be read."""
    import pyarrow as pa

    kinds = {"text": pa.string(), "time": pa.timestamp("us", "UTC"), "number": pa.int32(), "yes or no": pa.bool_()}
    kinds |= {"texts": pa.list_(pa.string()), "large number": pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    first = next(frames, None)

    def batches() -> Iterator[pa.RecordBatch]:
        for frame in chain(() if first is None else (first,), frames):
            yield from frame.select(*columns).to_arrow().cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())
