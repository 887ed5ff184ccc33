"""The folds of Spark agree with `core.fold_commands`: that of a table, and that of a MERGE into a table."""

from datetime import UTC

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from scylla_spark.schemas import KEY_NAMES, TASKS
from scylla_spark.transforms.fold_commands import folded, is_news, newest
from tests.support.fold_conformance import by_key, expected, tables

few = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_frame(spark, rows):
    return spark.createDataFrame([tuple(row[name] for name in TASKS.names) for row in rows], TASKS.ddl)


def found(frame):
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return by_key(row | {"scheduled_time": row["scheduled_time"].replace(tzinfo=UTC)} for row in rows)


@few
@given(tables)
def test_the_fold_of_spark_is_that_of_core(spark, rows):
    assert found(folded(as_frame(spark, rows))) == expected(rows)


@few
@given(tables, st.integers(0, 14))
def test_a_merge_of_later_operations_is_the_fold_of_all(spark, rows, cut):
    target, source = (folded(as_frame(spark, part)) for part in (rows[:cut], rows[cut:]))
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
    assert found(joined.select(*columns)) == expected(rows)
