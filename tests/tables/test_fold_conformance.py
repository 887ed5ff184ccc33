"""The fold without a JVM agrees with `core.tasks.fold_commands`; that of Spark is asked the same in `spark/test_fold_conformance.py`."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.io.delta.rows import folded, polars_type
from scylla_spark.schemas import TASKS
from tests.support.fold_conformance import by_key, expected, tables

SCHEMA = {column.name: polars_type(column.type) for column in TASKS.columns}
KEPT = [name for name in TASKS.names if name not in TASKS.partitioned_by]


def as_frame(rows):
    return pl.LazyFrame(rows, schema=SCHEMA).select(KEPT)


def without_partition(rows):
    return {key: {name: row[name] for name in KEPT} for key, row in rows.items()}


@given(tables)
def test_the_fold_of_polars_is_that_of_core(rows):
    found = by_key(folded(as_frame(rows)).collect().to_dicts())
    assert found == without_partition(expected(rows))


@given(tables, st.integers(0, 14))
@pytest.mark.slow
def test_it_is_the_same_whatever_was_folded_before(rows, cut):
    first, second = folded(as_frame(rows[:cut])), as_frame(rows[cut:])
    assert by_key(folded(first, second).collect().to_dicts()) == without_partition(expected(rows))
