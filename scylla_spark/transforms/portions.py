"""How much of a micro-batch is judged at once: so many bytes of each partition, and the rest is left for the next portion.

A judge of `transforms.records` holds all that it is given in the memory of a Python worker, where a batch of 20,000 large
records is gigabytes. It also must not fail: what it raises is a defect of ours, which the driver finds and goes around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.core.records.rejection_reason import DEFECT, of_defect
from scylla_spark.schemas import Column
from scylla_spark.transforms.bounded_arrow import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    Judge = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

CUT: Final = "cut"  # one row per partition that was cut; next_offset says where


class Portion(NamedTuple):
    """What one pass may judge.

    Attributes:
        marks: partition → the first offset that counts; records below are skipped by the judge.
        max_bytes: of keys and values of one partition; its first record is taken whatever its size.
        planted: text that stands for a defect: a record that contains it makes the judge fail (fail points only).
    """

    marks: Mapping[int, int]
    max_bytes: int
    planted: bytes | None = None


def judge_portion(judge: Judge, columns: tuple[Column, ...], portion: Portion) -> Judge:
    """For `mapInArrow`: the judge on as many records as a portion may hold.

    Args:
        judge: of `transforms.records`.
        columns: that it yields; `next_offset` and `ordering_id` are among them.
        portion: bounds.

    Returns:
        Yields what the judge yields, and CUT rows; or a row of kind DEFECT, whose ordering_id holds the stack, after which nothing
        of this pass may be used.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cuts: dict[int, int] = {}
        try:
            yield from judge(_within(batches, portion, cuts))
        except (OSError, MemoryError):
            raise  # this machine's trouble, not the record's
        except Exception as error:
            yield _rows(columns, {"kind": [DEFECT], "ordering_id": [of_defect(error).detail]})
        else:
            if cuts:
                numbers, offsets = list(cuts), list(cuts.values())
                kinds = [CUT] * len(cuts)
                yield _rows(columns, {"kind": kinds, "partition_id": numbers, "next_offset": offsets})

    return run


def _within(batches: Iterator[pa.RecordBatch], portion: Portion, cuts: dict[int, int]) -> Iterator[pa.RecordBatch]:
    """The records that fit, in order; `cuts` gets the first offset of each partition that did not."""
    sizes: dict[int, int] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        if portion.planted is not None:
            _fail_on(batch, portion.planted)
        numbers = batch.column("partition").unique().to_pylist()
        size = sizes.get(numbers[0], 0) + batch.nbytes if len(numbers) == 1 else portion.max_bytes + 1
        if not cuts and size <= portion.max_bytes:  # nearly always: then records are not looked at one by one
            sizes[numbers[0]] = size
            yield batch
        elif (rest := _fitting(batch, portion, sizes, cuts)).num_rows:
            yield rest


def _fitting(batch: pa.RecordBatch, portion: Portion, sizes: dict[int, int], cuts: dict[int, int]) -> pa.RecordBatch:
    import pyarrow as pa

    fits = []
    columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
    for partition, offset, key, value in zip(*columns, strict=True):
        if partition not in cuts and offset >= portion.marks.get(partition, 0):
            before = sizes.get(partition, 0)
            sizes[partition] = before + len(key or b"") + len(value or b"")
            if before and sizes[partition] > portion.max_bytes:
                cuts[partition] = offset
        fits.append(partition not in cuts)
    return batch.filter(pa.array(fits))


def _fail_on(batch: pa.RecordBatch, planted: bytes) -> None:
    for offset, value in zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True):
        if planted in (value or b""):
            raise RuntimeError(f"planted defect at offset {offset}")


def _rows(columns: tuple[Column, ...], values: Mapping[str, list[Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    schema, count = arrow_schema(columns), len(next(iter(values.values())))
    arrays = [pa.array(values.get(field.name, [None] * count), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
