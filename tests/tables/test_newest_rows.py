"""Newest rows: those that sorting all of a table would give, of which only they are read whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.clock import to_us
from scylla_spark.io.delta.newest_rows import Order, first_rows
from scylla_spark.io.delta.rejected_records import RejectedRecords
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import REJECTED
from tests.support.delta_tables import append, make, rejected

WHEN = datetime(2026, 11, 1, tzinfo=UTC)
WHOLE = Order(("at", "n"), (True, False), nulls_last=True)
PLACES = Order(("at", "n"), (True, False), distinct=("n",))
SCHEMA = {"at": pl.Datetime("us", "UTC"), "n": pl.Int64, "text": pl.String}
few = st.integers(0, 3)
rows = st.lists(
    st.tuples(st.none() | few.map(lambda n: WHEN + timedelta(hours=n)), st.none() | few, st.sampled_from("ab"))
)


@given(rows, st.integers(0, 6))
def test_they_are_the_first_of_all_in_order(rows, limit):
    frame = pl.LazyFrame(rows, schema=SCHEMA, orient="row")
    expected = frame.unique().sort("at", "n", descending=[True, False], nulls_last=True).head(limit).collect()
    found = first_rows(frame, WHOLE, limit)
    assert found.select("at", "n").equals(expected.select("at", "n"))
    assert found.is_unique().all()
    assert set(found.iter_rows()) <= set(rows)


@given(rows, st.integers(0, 6))
def test_of_rows_that_are_one_the_first_stands_for_all(rows, limit):
    found = first_rows(pl.LazyFrame(rows, schema=SCHEMA, orient="row"), PLACES, limit)
    ordered = pl.DataFrame(rows, schema=SCHEMA, orient="row").sort("at", "n", descending=[True, False])
    expected = ordered.unique("n", keep="first", maintain_order=True).head(limit)
    assert found.select("at", "n").equals(expected.select("at", "n"))


def test_only_those_are_read_whole():
    read = []
    numbers = pl.LazyFrame({"at": [WHEN] * 1_000, "n": range(1_000)})
    text = pl.col("n").map_batches(lambda some: read.extend(some) or some, return_dtype=pl.Int64, is_elementwise=True)
    found = first_rows(numbers.with_columns(text=text), WHOLE, 10)
    assert found["text"].to_list() == list(range(10))
    assert sorted(read) == list(range(10))


@pytest.fixture
def reader(tmp_path):
    """Five refused records on each of ten days, one of them twice."""
    make(tmp_path)
    for day in range(10):
        rows = [
            rejected(5 * day + n, "not_json" if n else "too_late", b"v", WHEN + timedelta(days=day)) for n in range(5)
        ]
        append(tmp_path, REJECTED, [*rows, rows[-1]])
    return TableReader(str(tmp_path))


def test_of_refused_records_no_more_days_are_read_than_a_page_takes(reader, monkeypatch):
    asked, ours = [], reader.frame
    monkeypatch.setattr(reader, "frame", lambda table, pruning: asked.append(pruning) or ours(table, pruning))
    assert [row["offset"] for row in RejectedRecords(reader).chosen(4)] == [49, 48, 47, 46]
    assert len(asked) == 1
    assert [row["offset"] for row in RejectedRecords(reader).chosen(12)] == list(range(49, 37, -1))
    assert len(asked) == 3


def test_of_refused_records_all_that_pass_are_found_on_whatever_day(reader):
    records = RejectedRecords(reader)
    assert [row["offset"] for row in records.chosen(100)] == list(range(49, -1, -1))
    assert [row["offset"] for row in records.chosen(100, reason="too_late")] == list(range(45, -1, -5))
    since = to_us(WHEN + timedelta(days=8))
    assert [row["offset"] for row in records.chosen(100, since_us=since)] == list(range(49, 39, -1))
    assert records.chosen(100, since_us=since + 10**12) == []
    assert all("value" not in row for row in records.chosen(100))
