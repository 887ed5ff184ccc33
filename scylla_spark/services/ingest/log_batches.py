"""The topic `logs` into `attempt_logs`: a thread of its own, so that no line is in the way of a task.

It is no streaming query. Lines are few against what Spark can read, a third query would cost a share of a core while nothing is
written, and this way nothing that is wrong with lines can end ingest: what fails is tried again, what cannot be read is counted.
Appends come first and `log_progress` after them, so that a crash in between repeats a batch. The table skips the same batch by its name;
one that has grown meanwhile repeats its lines, which readers show once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from kafka import TopicPartition
from kafka.errors import OffsetOutOfRangeError

from scylla_spark.clock import from_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.io.delta.spark_tables import Tables
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.kafka.topics import consumer, offset_ranges
from scylla_spark.log import get_logger
from scylla_spark.schemas import ATTEMPT_LOGS, LOG_PROGRESS
from scylla_spark.services.ingest.metrics import IngestMetrics
from scylla_spark.services.ingest.micro_batch import same_append
from scylla_spark.transforms.log_rows import LogMessage, LogRows, log_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from kafka import KafkaConsumer

log = get_logger("ingest")

_FAILED_S: Final = 30.0
_JOIN_S: Final = 60.0
_POLL_MS: Final = 500
_MOST_BYTES: Final = (
    32 * 1024 * 1024
)  # of messages that are written at once; each write takes 2 s of CPU, however little it holds
_MOST_ROW_BYTES: Final = 256 * 1024 * 1024  # of their rows, each of which has the names of its task
_OPTIONS: Final = {"max_poll_records": 200, "fetch_max_bytes": 4 * 1024 * 1024}


class _Batch:
    """What is written at once: messages, made rows as they come, which take less memory.

    Attributes:
        size: bytes of the messages.
        row_bytes: bytes of the rows.
        ends: partition → offset behind its last message.
        skipped: messages that are no rows.
        rows: in the order of the messages.
    """

    def __init__(self) -> None:
        self.size = self.row_bytes = self.skipped = 0
        self.ends: dict[int, int] = {}
        self.rows: list[pa.RecordBatch] = []

    def add(self, made: LogRows) -> None:
        """Takes messages, as rows."""
        self.rows.append(made.batch)
        self.skipped += made.skipped
        self.size += sum(len(message.value or b"") for message in made.messages)
        self.row_bytes += made.batch.nbytes
        self.ends |= {message.partition: message.offset + 1 for message in made.messages}

    def is_full(self) -> bool:
        """Returns True if it is as much as is written at once."""
        return self.size >= _MOST_BYTES or self.row_bytes >= _MOST_ROW_BYTES

    def table(self) -> pa.Table:
        """All rows, in one piece."""
        import pyarrow as pa

        return pa.Table.from_batches(self.rows).combine_chunks()


class LogBatches:
    """Writes lines as long as ingest runs.

    Args:
        settings: with the broker's address.
        tables: of the deployment, which this process alone writes.
        metrics: count rows, and messages that were skipped.
    """

    def __init__(self, settings: Settings, tables: Tables, metrics: IngestMetrics) -> None:
        self._settings = settings
        self._tables = tables
        self._metrics = metrics
        self._topic = settings.topics.logs
        self._consumer: KafkaConsumer | None = None
        self._positions: dict[int, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingest-logs", daemon=True)

    def start(self) -> None:
        """Begins to look at the topic, every so often."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the batch that is being written."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._close()

    def turn(self) -> int:
        """Writes all that stands in the topic and not in the table; returns how many lines that were."""
        reader, lines = self._opened(), 0
        for batch in self._batches(reader):
            lines += self._write(batch)
        return lines

    def _run(self) -> None:
        self._tables.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "ingest-logs")
        pause = self._settings.logs.trigger.total_seconds()
        while not self._stopping.wait(pause):
            try:
                self.turn()
                pause = self._settings.logs.trigger.total_seconds()
            except Exception as error:  # lines are worth no more than a line about it
                pause = _FAILED_S
                self._close()
                if not self._stopping.is_set():
                    log.warning(
                        "lines of attempts could not be written; tried again", after_s=pause, why=repr(error)[:500]
                    )

    def _opened(self) -> KafkaConsumer:
        if self._consumer is None:
            numbers = list(range(self._settings.partitions))
            kept = offset_ranges(self._settings, self._topic, numbers)
            stored = TableReader.of(self._settings).log_positions()
            self._positions = {n: _begin(stored.get(n, 0), *kept[n]) for n in numbers}
            self._consumer = consumer(self._settings, **_OPTIONS)
            self._consumer.assign([TopicPartition(self._topic, number) for number in numbers])
            for number, offset in self._positions.items():
                self._consumer.seek(TopicPartition(self._topic, number), offset)
        return self._consumer

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close(autocommit=False)
            self._consumer = None

    def _batches(self, reader: KafkaConsumer) -> Iterator[_Batch]:
        """Yields what is read, as much at a time as is written at once."""
        batch = _Batch()
        for made in self._read(reader):
            batch.add(made)
            if batch.is_full():
                yield batch
                batch = _Batch()
        if batch.ends:
            yield batch

    def _read(self, reader: KafkaConsumer) -> Iterator[LogRows]:
        """Messages up to the end as it is now, as rows; without that end a steady trickle would never be written."""
        ends = reader.end_offsets(reader.assignment())
        while not self._stopping.is_set() and any(reader.position(place) < end for place, end in ends.items()):
            made = log_rows(self._polled(reader), self._settings.partitions)
            yield from takewhile(lambda _: not self._stopping.is_set(), made)

    def _polled(self, reader: KafkaConsumer) -> list[LogMessage]:
        try:
            polled = reader.poll(timeout_ms=_POLL_MS)
        except OffsetOutOfRangeError:  # Kafka has let go of what was not written in time
            self._close()
            raise
        return [LogMessage(one.partition, one.offset, one.value) for records in polled.values() for one in records]

    def _write(self, batch: _Batch) -> int:
        table = batch.table()
        lines: int = table.num_rows
        if lines:
            spans = sorted((number, self._positions[number], end) for number, end in batch.ends.items())
            frame = self._tables.spark.createDataFrame(table, ATTEMPT_LOGS.ddl)
            frame = frame.repartition(1).sortWithinPartitions("partition_id", "hour")
            self._tables.append(frame, ATTEMPT_LOGS, same_append(self._topic, spans, lines))
        self._progress(self._positions | batch.ends)
        self._metrics.written("logs", ingested=lines, rejected=batch.skipped, set_aside=0)
        return lines

    def _progress(self, positions: dict[int, int]) -> None:
        self._tables.before_commit()
        stamp = from_us(now_us())
        rows = [(number, offset, stamp) for number, offset in sorted(positions.items())]
        self._tables.replaced(LOG_PROGRESS).replace(dict(zip(LOG_PROGRESS.names, row, strict=True)) for row in rows)
        self._positions = positions


def _begin(stored: int, first: int, end: int) -> int:
    """Returns where reading goes on: where the table is, or where the topic begins if that has gone, or was made anew.

    Args:
        stored: next offset that the table does not hold.
        first: offset that Kafka still keeps.
        end: of the topic.
    """
    return stored if first <= stored <= end else first
