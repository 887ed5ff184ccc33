"""How far the tables are: table `progress`, kept by ingest alone. Nothing in it ever falls."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scylla_spark.core.tables.progress import ALL_FOLDED_US, Mark, OpenHours, common_edge
from scylla_spark.errors import ConfigError
from scylla_spark.io.delta.spark_tables import Tables

Source = tuple[str, int]
"""Topic ("tasks" or "outcomes") and partition."""


class End(NamedTuple):
    """Up to where records of one partition of `tasks` were written: the offset after the last, and its append time."""

    next_offset: int
    appended_us: int


def check_position(topic: str, partition: int, position: int, kept: tuple[int, int]) -> None:
    """Compares how far the tables are with what the log still holds.

    Args:
        topic: name.
        partition: of the topic.
        position: next offset of the tables; 0: nothing was read yet.
        kept: first offset that is still kept, and end offset.

    Raises:
        ConfigError: the log ends before the position, or begins after it.
    """
    first, end = kept
    place = f"Partition {partition} of topic {topic!r}"
    if end < position:
        raise ConfigError(
            f"{place} ends at offset {end}, but the tables hold its records up to {position}: the log has lost records.",
            hint="Offsets would be used twice. Bring back the log, or start a new deployment with new topics and tables.",
        )
    if 0 < position < first:
        raise ConfigError(
            f"{place} begins at offset {first}, but the tables end at {position}: {first - position} records are gone.",
            hint="Kafka's retention must exceed the longest stop of ingest. To go on without them, start a new deployment.",
        )


class Progress:
    """The marks of all partitions, written as one version of the table whenever one of them changes; thread safe.

    Args:
        tables: of the deployment.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._marks: dict[Source, Mark] = {}

    def begin(self, marks: Mapping[Source, Mark], partitions: int, folded_until_us: int) -> None:
        """Takes over what the table says, and completes it.

        Args:
            marks: as they stand in the table.
            partitions: of the deployment.
            folded_until_us: where to begin, if nothing is written yet.
        """
        with self._lock:
            self._marks = dict(marks)
            tasks = [self._marks.get(("tasks", number), Mark()) for number in range(partitions)]
            known = [mark.folded_until_us for mark in tasks if mark.folded_until_us < ALL_FOLDED_US]
            if len(known) < partitions:
                start = min(known, default=folded_until_us)
                self._write({("tasks", n): mark._replace(folded_until_us=start) for n, mark in enumerate(tasks)})

    def tasks(self) -> dict[int, Mark]:
        """Marks of the topic `tasks`, by partition."""
        return {number: mark for (topic, number), mark in self._marks.items() if topic == "tasks"}

    def outcomes(self) -> dict[int, Mark]:
        """Marks of the topic `outcomes`, by partition."""
        return {number: mark for (topic, number), mark in self._marks.items() if topic == "outcomes"}

    @property
    def folded_until_us(self) -> int:
        """Tasks due before this stand in `tasks` alone (microseconds since the epoch)."""
        return common_edge(mark.folded_until_us for mark in self.tasks().values())

    def tasks_written(self, ends: Mapping[int, End], hours: Iterable[tuple[int, int]]) -> None:
        """A batch of `tasks` is in the tables.

        Args:
            ends: partition → up to where.
            hours: (partition, hour) of its rows in `tasks`: closed ones are opened again.
        """
        touched: dict[int, set[int]] = {}
        for number, hour in hours:
            touched.setdefault(number, set()).add(hour)
        with self._lock:
            changes: dict[Source, Mark] = {}
            for number in ends.keys() | touched.keys():
                mark = self._marks.get(("tasks", number), Mark())
                end = ends.get(number, End(0, 0))
                changes["tasks", number] = mark._replace(
                    tasks_offset=max(mark.tasks_offset, end.next_offset),
                    appended_us=max(mark.appended_us, end.appended_us),
                    open_hours=OpenHours.of(mark).touched(touched.get(number, ())).kept_open,
                )
            self._write(changes)

    def outcomes_written(self, ends: Mapping[int, Mark]) -> None:
        """A batch of `outcomes` is in the tables; partition → the mark after it."""
        with self._lock:
            known = self.outcomes()
            self._write({
                ("outcomes", number): mark
                for number, mark in ends.items()
                if mark.outcomes_offset > known.get(number, Mark()).outcomes_offset
            })  # fmt: skip

    def folded(self, until_us: int) -> None:
        """Deferred tasks due before `until_us` are in `tasks`."""
        with self._lock:
            self._write({
                ("tasks", number): mark._replace(folded_until_us=max(until_us, mark.folded_until_us))
                for number, mark in self.tasks().items()
            })  # fmt: skip

    def closed(self, limit: int, still: Mapping[int, Iterable[int]]) -> None:
        """All hours below a limit were looked at. Of those from it on nothing is said, though a later limit may have stood before.

        Args:
            limit: hours since the epoch.
            still: partition → those below that may hold open tasks.
        """
        with self._lock:
            changes: dict[Source, Mark] = {}
            for number, hours in still.items():
                mark = self._marks["tasks", number]
                kept_open = {*hours, *(hour for hour in mark.open_hours if hour >= limit)}
                changes["tasks", number] = mark._replace(
                    closed_hour=max(limit, mark.closed_hour), open_hours=tuple(sorted(kept_open))
                )
            self._write(changes)

    def _write(self, changes: dict[Source, Mark]) -> None:
        marks = self._marks | changes
        if changes and marks != self._marks:
            self._tables.write_marks(marks)
            self._marks = marks
