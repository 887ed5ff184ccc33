"""Space: what ingest does between batches so that files, logs and history do not grow for ever. One small piece at a time.

Hours are closed (`close_hours`), small files put together (`compact`), and what nobody needs is deleted (`purge`). All is
idempotent, and a crash anywhere only delays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.duration import duration_us
from scylla_spark.io.host.output_files import OutputFiles
from scylla_spark.log import get_logger
from scylla_spark.schemas import TABLES
from scylla_spark.services.ingest.close_hours import HourCloser
from scylla_spark.services.ingest.compact import COMPACTED, Compactor
from scylla_spark.services.ingest.locked_tables import LockedTables
from scylla_spark.services.ingest.purge import Purger
from scylla_spark.services.ingest.queue_retention import QueueRetention

log = get_logger("ingest")


@dataclass(slots=True)
class _Chore:
    """Something done every so often; `run` does one piece and returns whether there may be more."""

    name: str
    every_us: int
    run: Callable[[int], bool]
    next_us: int = 0


class Maintenance:
    """The chores of ingest.

    Args:
        kept: the tables.
        settings: of the deployment: retention, queues, and when an hour may be closed.
        ends: asks Kafka for the end offset of each partition of `tasks`.

    Attributes:
        closer: closes hours.
        compactor: puts small files together.
        purger: deletes rows and files.
    """

    def __init__(self, kept: LockedTables, settings: Settings, ends: Callable[[], Mapping[int, int]]) -> None:
        ingest, outputs = settings.ingest, OutputFiles(settings.outputs_path)
        of_queues = QueueRetention(kept, settings.queues, outputs, settings.partitions)
        self.closer = HourCloser(kept, duration_us(ingest.close_after))
        self.compactor = Compactor(kept)
        self.purger = Purger(
            kept, duration_us(ingest.retention), ends, outputs=outputs, of_queues=of_queues, history=settings.history
        )
        self._chores = list(self._all_chores())

    def _all_chores(self) -> Iterator[_Chore]:
        minute = duration_us("1m")
        yield _Chore("close", 5 * minute, self.closer.close)
        for table in COMPACTED:
            yield _Chore(f"compact {table.name}", minute, partial(self.compactor.compact, table))
        yield _Chore("drop folded", 10 * minute, self.purger.drop_folded)
        yield _Chore("purge", 60 * minute, self.purger.purge, next_us=-1)
        for table in TABLES:
            yield _Chore(f"vacuum {table.name}", 60 * minute, partial(self.purger.vacuum, table), next_us=-1)

    def turn(self, now: int) -> bool:
        """Does one piece of the first chore that is due; returns whether one was."""
        for chore in self._chores:
            if chore.next_us < 0:
                chore.next_us = now + chore.every_us  # not at the start
            if now < chore.next_us:
                continue
            chore.next_us = now + chore.every_us
            begun = boot_us()
            if chore.run(now):
                chore.next_us = now
            log.debug("maintenance", chore=chore.name, seconds=round((boot_us() - begun) / 1e6, 3))
            return True
        return False

    def purge_all(self, now: int) -> None:
        """Closes what can be closed, then deletes what is older than the retention."""
        while self.closer.close(now):
            pass
        self.purger.purge(now)
