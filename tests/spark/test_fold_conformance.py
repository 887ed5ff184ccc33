"""The folds of Spark agree with `core.tasks.fold_commands`: that of a table, and that of a MERGE into a table."""

from datetime import UTC

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from scylla_spark.schemas import KEY_NAMES, TASKS
from scylla_spark.transforms.fold_commands import folded, is_news, newest
from tests.support.fold_conformance import by_key, expected, tables

DRAWN = 60


def drawn():
    """Some tables of operations, and a place to cut each: no two share a key, so that one query folds all of them."""
    found = []

    @settings(max_examples=DRAWN, derandomize=True, database=None)
    @given(tables, st.integers(0, 14))
    def draw(rows, cut):
        prefix = f"{len(found)} "
        found.append(([row | {"ordering_id": prefix + row["ordering_id"]} for row in rows], cut))

    draw()
    return found


def as_frame(spark, rows):
    return spark.createDataFrame([tuple(row[name] for name in TASKS.names) for row in rows], TASKS.ddl)


def found(frame):
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return by_key(row | {"scheduled_time": row["scheduled_time"].replace(tzinfo=UTC)} for row in rows)


def all_of(parts):
    return [row for part in parts for row in part]


def test_the_fold_of_spark_is_that_of_core(spark):
    rows = all_of(part for part, _ in drawn())
    assert found(folded(as_frame(spark, rows))) == expected(rows)


def test_a_merge_of_later_operations_is_the_fold_of_all(spark):
    cases = drawn()
    target = folded(as_frame(spark, all_of(rows[:cut] for rows, cut in cases)))
    source = folded(as_frame(spark, all_of(rows[cut:] for rows, cut in cases)))
    same = [F.col(f"t.{name}") == F.col(f"s.{name}") for name in KEY_NAMES]
    joined = target.alias("t").join(source.alias("s"), same, "full")
    there, come = F.col("t.scheduled_time").isNotNull(), F.col("s.scheduled_time").isNotNull()
    changed = newest()
    columns = [
        F.when(there & come & is_news(), changed.get(name, F.col(f"t.{name}")))
        .when(there, F.col(f"t.{name}"))
        .otherwise(F.col(f"s.{name}"))
        .alias(name)
        for name in TASKS.names
    ]
    assert found(joined.select(*columns)) == expected(all_of(rows for rows, _ in cases))
