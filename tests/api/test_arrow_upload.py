"""Arrow streams of hostile and of clumsy clients: few bytes stay little memory, and a row that cannot be read leaves the others alone."""

from __future__ import annotations

import io
import random
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.arrow_upload import rows_of, task_of

MEGABYTE = 1024 * 1024


def stream(batch: pa.RecordBatch, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def columns(**arrays: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(arrays.values()), names=list(arrays))


def rows(body: bytes) -> list[Any]:
    return [row for part in rows_of(io.BytesIO(body)) for row in part]


def shared_views(count: int) -> pa.Array:
    """Text views that all show the same megabyte."""
    text = b"x" * MEGABYTE
    view = len(text).to_bytes(4, "little") + text[:4] + bytes(8)
    return pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(view * count), pa.py_buffer(text)])


def nothings(size: int) -> pa.Array:
    """One list of very many nulls."""
    offsets = pa.array([0, size], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.nulls(size))


TEXTS = pa.array(["x" * MEGABYTE])
HOSTILE = {
    "a dictionary": lambda: columns(payload=pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), TEXTS)),
    "run ends": lambda: columns(payload=pa.RunEndEncodedArray.from_arrays(pa.array([1_000], pa.int32()), TEXTS)),
    "a dictionary in a struct": lambda: columns(
        payload=pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), TEXTS)], ["a"])
    ),
    "a dictionary in a list": lambda: columns(
        payload=pa.array([["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    ),
    "lists of a fixed size": lambda: columns(
        payload=pa.FixedSizeListArray.from_arrays(pa.nulls(10_000_000), 10_000_000)
    ),
    "list views": lambda: columns(payload=pa.ListViewArray.from_arrays([0] * 1_000, [1] * 1_000, TEXTS)),
    "a map": lambda: columns(payload=pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))),
    "an unknown zone": lambda: columns(scheduled_time=pa.array([1], pa.timestamp("us", "No/Where"))),
    "two columns of a name": lambda: pa.record_batch([pa.array(["a"]), pa.array(["b"])], names=["x", "x"]),
    "very many columns": lambda: pa.record_batch([pa.array([1])] * 1_001, names=[str(n) for n in range(1_001)]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_could_become_much_memory_or_has_no_meaning_is_refused(name: str) -> None:
    with pytest.raises(Problem) as refused:
        rows(stream(HOSTILE[name]()))
    assert refused.value.status_code == 422
    assert "The Arrow stream is not accepted" in str(refused.value.detail)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_buffers_are_refused_before_they_are_unpacked(codec: str) -> None:
    body = stream(columns(payload=pa.array(["x" * 16 * MEGABYTE])), compression=codec)
    before = pa.total_allocated_bytes()
    with pytest.raises(Problem, match="compress"):
        rows(body)
    assert pa.total_allocated_bytes() - before < MEGABYTE


@pytest.mark.parametrize("array", [shared_views(1_000), nothings(2**31 - 1)], ids=["shared views", "many nulls"])
def test_values_that_cost_no_bytes_are_reckoned_before_they_are_made(array: pa.Array) -> None:
    body = stream(columns(payload=array))
    tracemalloc.start()
    try:
        sizes = [len(part) for part in rows_of(io.BytesIO(body))]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes) == len(array)
    assert peak < 64 * MEGABYTE


def test_a_row_that_is_too_large_is_refused_alone() -> None:
    found = rows(stream(columns(handler=pa.array(["a", "x" * 5 * MEGABYTE, "b"]))))
    assert [found[0], found[2]] == [{"handler": "a"}, {"handler": "b"}]
    assert "larger" in str(found[1])


@pytest.mark.parametrize(
    "array",
    [
        pa.array([0, 2**62, 0], pa.timestamp("us", "UTC")), pa.array([0, 2**62, 0], pa.duration("s")),
        pa.array([0, 2**31 - 1, 0], pa.date32()), pa.array([0, -(2**60), 0], pa.timestamp("us", "Europe/Berlin")),
    ],
)  # fmt: skip
def test_a_value_that_python_cannot_hold_is_refused_alone(array: pa.Array) -> None:
    first, middle, last = rows(stream(columns(scheduled_time=array)))
    assert isinstance(middle, ValueError)
    assert isinstance(first, dict)
    assert isinstance(last, dict)


def test_plain_values_of_every_type_arrive() -> None:
    moment = datetime(2026, 3, 1, 9, tzinfo=UTC)
    batch = columns(
        text=pa.array(["a", None]), large=pa.array(["b", "c"], pa.large_string()), view=pa.array(["d", "e" * 100], pa.string_view()),
        number=pa.array([1, 2]), yes=pa.array([True, None]), nothing=pa.nulls(2), moment=pa.array([moment, None]),
        items=pa.array([[1], [2, 3]]), payload=pa.array([{"a": {"b": [1]}}, {"a": {"b": []}}]),
        empty=pa.array([[], None], pa.list_(pa.int8())),
    )  # fmt: skip
    found = rows(stream(batch))
    assert found == batch.to_pylist()
    assert task_of({"scheduled_time": moment, "payload": '{"a": 1}', "queue": None}) == {
        "scheduled_time": "2026-03-01T09:00:00Z", "payload": {"a": 1},
    }  # fmt: skip


def test_slices_of_many_rows_arrive_in_order() -> None:
    texts = [f"{n}" * 300 for n in range(5_000)]
    views = pa.array(texts, pa.string_view())
    found = rows(stream(columns(a=pa.array(texts), b=views, c=pa.array([[n] * (n % 5) for n in range(5_000)]))))
    assert [row["a"] for row in found] == [row["b"] for row in found] == texts
    assert [len(row["c"]) for row in found] == [n % 5 for n in range(5_000)]


def test_whatever_bytes_come_there_are_rows_or_a_problem() -> None:
    chance = random.Random(7)
    whole = stream(
        columns(handler=pa.array(["a", "b"] * 50), n=pa.array([[1], None] * 50), p=pa.array([{"a": "x"}] * 100))
    )
    for _ in range(2_000):
        body = bytearray(whole[: chance.choice((len(whole), chance.randrange(len(whole))))])
        for _ in range(chance.randrange(6) if body else 0):
            body[chance.randrange(len(body))] = chance.randrange(256)
        with suppress(Problem):
            assert all(isinstance(row, dict | Exception) for row in rows(bytes(body)))
