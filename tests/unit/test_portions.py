"""A portion of a micro-batch: the first bytes of each partition, whatever the sizes and however batches are cut."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.records.rejection_reason import DEFECT
from scylla_spark.schemas import Column
from scylla_spark.transforms.portions import CUT, Portion, judge_portion

COLUMNS = tuple(
    Column(name, kind, "")
    for name, kind in (
        ("kind", "string"),
        ("partition_id", "int"),
        ("next_offset", "bigint"),
        ("ordering_id", "string"),
    )
)


def batch(records):
    names = ("partition", "offset", "key", "value")
    kinds = (pa.int32(), pa.int64(), pa.binary(), pa.binary())
    columns = zip(*records, strict=True) if records else ([], [], [], [])
    return pa.RecordBatch.from_arrays([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], names)


def judged(batches, portion, fail=None):
    """What a judge was given, and the rows after it."""
    seen = []

    def judge(given):
        for one in given:
            if fail is not None:
                raise fail
            seen.extend(zip(*(one.column(n).to_pylist() for n in ("partition", "offset", "value")), strict=True))
        yield from ()

    rows = [row for out in judge_portion(judge, COLUMNS, portion)(iter(batches)) for row in out.to_pylist()]
    return seen, rows


@pytest.mark.slow
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=8), max_size=6),
    st.integers(1, 200),
    st.dictionaries(st.integers(0, 2), st.integers(0, 5)),
)
def test_each_partition_is_judged_up_to_one_place_and_within_its_bytes(shapes, most, marks):
    offsets, batches, every = {}, [], []
    for shape in shapes:
        records = []
        for partition, size in shape:
            offset = offsets[partition] = offsets.get(partition, -1) + 1
            records.append((partition, offset, None, b"x" * size))
        batches.append(batch(records))
        every += [(partition, offset, value) for partition, offset, _, value in records]
    seen, rows = judged(batches, Portion(marks, most))
    cuts = {row["partition_id"]: row["next_offset"] for row in rows}
    assert {row["kind"] for row in rows} <= {CUT}
    assert seen == [record for record in every if record[1] < cuts.get(record[0], 1 << 60)]
    for number in range(3):
        counted = [value for partition, offset, value in seen if partition == number and offset >= marks.get(number, 0)]
        assert sum(map(len, counted)) <= most or len([value for value in counted if value]) == 1
        assert number not in cuts or cuts[number] >= marks.get(number, 0)


def test_the_first_record_is_taken_whatever_its_size():
    seen, rows = judged([batch([(0, 7, None, b"x" * 100), (0, 8, None, b"y")])], Portion({0: 7}, 10))
    assert [offset for _, offset, _ in seen] == [7]
    assert [(row["kind"], row["next_offset"]) for row in rows] == [(CUT, 8)]


def test_a_judge_that_fails_yields_its_stack_and_no_error():
    _, rows = judged([batch([(0, 0, None, b"x")])], Portion({}, 10), fail=KeyError("ours"))
    assert [row["kind"] for row in rows] == [DEFECT]
    assert "KeyError: 'ours'" in rows[0]["ordering_id"]


def test_a_planted_defect_fails_its_record():
    _, rows = judged([batch([(0, 3, None, b"a planted defect")])], Portion({}, 10, b"planted"))
    assert "planted defect at offset 3" in rows[0]["ordering_id"]
