"""How one micro-batch of a topic is written: from where the tables are, in portions, around what cannot be written.

- A batch must begin at or below progress: otherwise checkpoint and tables are out of step, and records between them would be lost.
- A batch that is large in bytes is written in portions, each with its own progress, so that memory is bounded.
- A record that makes our own code fail, again and again, is found by halving the batch, and set aside in `rejected`.
- What would unpack to far more than it is on the wire, or what Kafka's client could not read, is never read: its offsets are
  set aside too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from scylla_spark.core.records.rejection_reason import DEFECT
from scylla_spark.errors import ConfigError
from scylla_spark.io.host.jvm_error_cause import value_failed
from scylla_spark.io.kafka.batch_guard import NO_POISON, Poison, Unread
from scylla_spark.io.kafka.stream_offsets import Batch, Range
from scylla_spark.log import get_logger
from scylla_spark.transforms.portions import CUT, Portion, judge_portion
from scylla_spark.transforms.records import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from scylla_spark.schemas import Column
    from scylla_spark.transforms.portions import Judge

log = get_logger("ingest")

_FEW: Final = 64  # fewer records are not worth a guess of how many fit
_ONE_TASK: Final = 2_000  # fewer records than this are judged in one task
_MOST_DOUBTED: Final = 100  # more records of one batch that Spark cannot write are not the records' fault


class Written(NamedTuple):
    """What one portion has written.

    Attributes:
        rows: merged or appended.
        rejected: refused records.
        reached: partition → up to where it was written.
    """

    rows: int
    rejected: int
    reached: Mapping[int, int]


class Defective(Exception):
    """The judge failed in a worker; the text is the stack."""


class Refusal(NamedTuple):
    """Records that are set aside without being judged."""

    partition: int
    offsets: Range
    reason: str
    detail: str


class Writer(Protocol):
    """Writes records of one topic into its tables."""

    @property
    def topic(self) -> str:
        """Its name."""

    def positions(self) -> Mapping[int, int]:
        """Partition → next offset that is not in the tables."""

    def write(self, frame: DataFrame, ranges: Mapping[int, Range]) -> Written:
        """Judges and writes as many records of the ranges as fit, then progress; idempotent under replay."""

    def set_aside(self, refusal: Refusal, records: DataFrame | None) -> None:
        """Writes rows of `rejected` for offsets, from their records where those can be read, then progress."""


_FEW_UNPACKED: Final = 4  # so many large records at a time
_UNPACKED: Final = 500  # what Kafka's client unpacks at a time by itself, at most


def beyond(planned: Mapping[int, Range], positions: Mapping[int, int]) -> dict[int, Range]:
    """Returns what of the planned offsets is not in the tables yet."""
    cut = {number: Range(max(wide.begin, positions.get(number, 0)), wide.end) for number, wide in planned.items()}
    return {number: wide for number, wide in cut.items() if wide.begin < wide.end}


def gaps(planned: Mapping[int, Range], positions: Mapping[int, int]) -> dict[int, Range]:
    """The offsets between the tables and the batch, of partitions where the batch begins beyond progress."""
    return {
        number: Range(positions.get(number, 0), wide.begin)
        for number, wide in planned.items()
        if wide.begin > positions.get(number, 0)
    }


def out_of_step(topic: str, gap: Mapping[int, Range], checkpoint: str) -> ConfigError:
    """Returns what is said of a checkpoint that is ahead of the tables, and how to go on.

    Args:
        topic: whose query it is.
        gap: partition → offsets between tables and checkpoint.
        checkpoint: its folder.
    """
    places = ", ".join(f"partition {number}: {wide.begin} to {wide.end}" for number, wide in sorted(gap.items()))
    return ConfigError(
        f"The checkpoint of {topic!r} is ahead of the tables (offsets between them: {places}): one of the two was restored or replaced.",
        hint=f"Delete the folder {checkpoint} and start again: ingest then reads on from where the tables are, and nothing is lost "
        "as long as Kafka keeps those records.",
    )


@dataclass(slots=True)
class Portions:
    """Writes one batch to its end.

    Attributes:
        writer: of the topic.
        batch: its records.
        poison: what of it must not be read.
        written: rows so far.
        set_aside: records set aside unread, or for a defect.
    """

    writer: Writer
    batch: Batch
    poison: Poison = NO_POISON
    rows: int = 0
    rejected: int = 0
    set_aside: int = 0
    _whole: bool = field(default=True)

    def run(self) -> None:
        """Writes all of the batch that is beyond progress.

        Raises:
            Exception: what is no record's fault: storage, brokers, another writer, settings.
        """
        todo = beyond(self.batch.planned, self.writer.positions())
        if not any(self.poison.found.get(number) for number in todo):
            self._write_all(todo)
            return
        self._whole = False  # the frame as Spark gave it would read what must not be read
        for number, wide in todo.items():
            self._around(number, wide, self.poison.found.get(number, []))

    def _around(self, number: int, wide: Range, poisoned: Iterable[Unread]) -> None:
        begin = wide.begin
        for bad, reason, detail in sorted(poisoned):
            if bad.end <= begin or bad.begin >= wide.end:
                continue
            near = max(begin, bad.begin - _UNPACKED)  # from here on Kafka's client would read it ahead of its time
            self._write_all({number: Range(begin, near)})
            self._write_all({number: Range(near, bad.begin)}, unpacked=1)
            begin = min(bad.end, wide.end)
            self._refuse(Refusal(number, Range(max(bad.begin, wide.begin), begin), reason, detail), None)
        self._write_all({number: Range(begin, wide.end)})

    def _write_all(self, todo: Mapping[int, Range], unpacked: int | None = None) -> None:
        todo = {number: wide for number, wide in todo.items() if wide.begin < wide.end}
        sizes: dict[int, int] = {}
        while todo:
            ranges = {
                number: Range(wide.begin, min(wide.end, wide.begin + sizes.get(number, wide.end)))
                for number, wide in todo.items()
            }
            reached = self._attempt(ranges, unpacked)
            sizes = {number: max(_FEW, 2 * (reached[number] - wide.begin)) for number, wide in ranges.items()}
            todo = beyond(todo, reached)

    def _attempt(self, ranges: Mapping[int, Range], unpacked: int | None) -> Mapping[int, int]:
        """Writes a portion; what fails twice for a reason that may lie in a record is halved until that record is found."""
        frame = self.batch.frame if self._whole and not self.poison.heavy else None
        self._whole = False
        try:
            return self._write(ranges, unpacked, frame)
        except Exception as error:
            if not _may_be_defect(error):
                raise
            log.exception("a batch failed and is tried again", topic=self.writer.topic)
        for number, wide in ranges.items():
            self._halve(number, wide, unpacked)
        return {number: wide.end for number, wide in ranges.items()}

    def _write(self, ranges: Mapping[int, Range], unpacked: int | None, frame: DataFrame | None) -> Mapping[int, int]:
        few = _FEW_UNPACKED if self.poison.heavy else None
        records = frame if frame is not None else self.batch.again(ranges, unpacked or few)
        written = self.writer.write(records, ranges)
        self.rows += written.rows
        self.rejected += written.rejected
        return written.reached

    def _halve(self, number: int, wide: Range, unpacked: int | None) -> None:
        """Writes a range in order of offsets, except records that cannot be written, which are set aside."""
        try:
            while wide.begin < wide.end:
                reached = self._write({number: wide}, unpacked, None)
                wide = wide._replace(begin=reached[number])
        except Exception as error:
            if not self._to_blame(error):
                raise
            if wide.end - wide.begin == 1:
                self._refuse(Refusal(number, wide, DEFECT, str(error)), self.batch.again({number: wide}, unpacked))
                return
            middle = (wide.begin + wide.end) // 2
            self._halve(number, wide._replace(end=middle), unpacked)
            self._halve(number, wide._replace(begin=middle), unpacked)

    def _to_blame(self, error: Exception) -> bool:
        """Returns True to go on without the record: it made our own code fail, or is one of few that Spark cannot write."""
        return isinstance(error, Defective) or (value_failed(error) and self.set_aside < _MOST_DOUBTED)

    def _refuse(self, refusal: Refusal, records: DataFrame | None) -> None:
        wide = refusal.offsets
        log.error(
            "records are set aside", topic=self.writer.topic, partition=refusal.partition, offset=wide.begin,
            until=wide.end, reason=refusal.reason, detail=refusal.detail,
        )  # fmt: skip
        self.writer.set_aside(refusal, records)
        self.set_aside += wide.end - wide.begin


@contextmanager
def judged_rows(
    frame: DataFrame, judge: Judge, columns: tuple[Column, ...], portion: Portion, records: int
) -> Iterator[DataFrame]:
    """The rows that a judge makes of as many records as a portion holds; they are kept until the end of the context.

    Args:
        frame: records as Spark's Kafka source gives them.
        judge: of `transforms.records`.
        columns: that it yields.
        portion: bounds.
        records: so many of them there are. A small batch is one task instead of one per Kafka partition, in each of its jobs.
    """
    few = frame.coalesce(1) if records < _ONE_TASK else frame
    rows = few.mapInArrow(judge_portion(judge, columns, portion), ddl(columns)).persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def raise_defects(stacks: Iterable[str | None]) -> None:
    """Looks for a judge that failed.

    Raises:
        Defective: with its stack.
    """
    for stack in stacks:
        if stack is not None:
            raise Defective(stack)


def reached_in(ranges: Mapping[int, Range], found: Iterable[Row]) -> dict[int, int]:
    """Partition → up to where its range was judged.

    Args:
        ranges: that were read.
        found: rows with `kind`, `partition_id` and `next_offset`, those that tell of cuts among them.
    """
    reached = {number: wide.end for number, wide in ranges.items()}
    for row in found:
        if row["kind"] == CUT:
            reached[row["partition_id"]] = min(row["next_offset"], reached[row["partition_id"]])
    return reached


def count_of(ranges: Mapping[int, Range]) -> int:
    """Returns how many offsets some ranges hold."""
    return sum(wide.end - wide.begin for wide in ranges.values())


def spans(ranges: Mapping[int, Range], reached: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Exactly which offsets were judged: partition, first, one after the last."""
    return sorted((number, wide.begin, reached[number]) for number, wide in ranges.items())


def _may_be_defect(error: Exception) -> bool:
    return isinstance(error, Defective) or value_failed(error)


def same_append(*parts: object) -> str:
    """A name for what an append holds: the same parts give the same name, whenever and by whatever checkpoint they are written.

    A table remembers the names of its latest appends, and skips one that it has seen.
    """
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()
