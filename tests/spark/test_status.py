"""The status view."""

from datetime import UTC, datetime, timedelta

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from scylla_spark.clock import to_us
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from scylla_spark.transforms.status_view import status

NOON = datetime(2099, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def key(name, time=NOON):
    return {
        "partition_id": 0,
        "hour": to_us(time) // 3_600_000_000,
        "scheduled_time": time,
        "ordering_id": "o",
        "uniqueness_key": name,
    }


def frame(spark, table, rows):
    return spark.createDataFrame([tuple(row.get(name) for name in table.names) for row in rows], table.ddl)


def task(name, time=NOON, **more):
    return key(name, time) | {"handler": "h", "queue": "q", "enqueued_at": NOON - 60 * MINUTE, "data_offset": 1} | more


def fact(name, attempt, outcome, offset, start=NOON, **more):
    ended = None if outcome == "started" else start + MINUTE
    return (
        key(name)
        | {"attempt": attempt, "outcome": outcome, "started_at": start, "finished_at": ended, "fact_offset": offset}
        | more
    )


@pytest.fixture
def view(spark):
    def view(tasks, completions, attempts, now, *, history=False):
        frames = frame(spark, TASKS, tasks), frame(spark, COMPLETIONS, completions), frame(spark, ATTEMPTS, attempts)
        return status(*frames, to_us(now), history=history)

    return view


TASKS_OF_ALL_STATES = [task(name) for name in ("ready", "running", "retry", "done", "cancelled")] + [
    task("later", NOON + 60 * MINUTE), task("marked", cancel_offset=5),
    task("said", about=("Invoices", "of May", "ann", "0" * 32)),
]  # fmt: skip
COMPLETIONS_OF = [
    fact("done", 2, "failed", 9, error_class="E", error_message="m", error_stack="s", result=None),
    fact("done", 2, "failed", 9, error_class="E", error_message="m", error_stack="s", result=None),
    fact("done", 3, "succeeded", 12),
    fact("cancelled", 0, "cancelled", 3, started_at=None),
]
ATTEMPTS_OF = [
    fact("running", 1, "failed", 4, next_at=NOON), fact("running", 2, "started", 6), fact("done", 1, "failed", 2, next_at=NOON),
    fact("retry", 1, "started", 4), fact("retry", 1, "failed", 4, next_at=NOON + 30 * MINUTE, error_class="X"),
    fact("retry", 1, "started", 4),
]  # fmt: skip


def test_every_state_is_told_from_the_three_tables(spark, view):
    found = view(TASKS_OF_ALL_STATES, COMPLETIONS_OF, ATTEMPTS_OF, NOON + MINUTE)
    expected = spark.createDataFrame(
        [
            ("cancelled", "cancelled", 0, None, False), ("done", "failed", 2, None, False),
            ("later", "scheduled", 0, NOON + 60 * MINUTE, False),
            ("marked", "ready", 0, NOON, True), ("ready", "ready", 0, NOON, False), ("retry", "retry_wait", 1, NOON + 30 * MINUTE, False),
            ("running", "running", 2, NOON, False), ("said", "ready", 0, NOON, False),
        ],
        "uniqueness_key string, state string, attempts int, next_attempt_at timestamp, cancel_requested boolean",
    )  # fmt: skip
    assert_df_equality(found.select(*expected.columns).orderBy("uniqueness_key"), expected, ignore_nullable=True)
    said = found.where("name IS NOT NULL").select("uniqueness_key", "name", "description", "enqueued_by").collect()
    assert said == [("said", "Invoices", "of May", "ann")]


def test_the_error_is_that_of_the_end_or_of_the_newest_attempt(view):
    found = view(TASKS_OF_ALL_STATES, COMPLETIONS_OF, ATTEMPTS_OF, NOON).where("error_class is not null")
    assert {(row.uniqueness_key, row.error_class, row.error_message) for row in found.collect()} == {
        ("done", "E", "m"),
        ("retry", "X", None),
    }


def test_a_due_task_is_ready_exactly_at_its_time(view):
    for now, state in ((NOON - timedelta(microseconds=1), "scheduled"), (NOON, "ready")):
        assert [row.state for row in view([task("a")], [], [], now).collect()] == [state]


def test_one_row_per_task_whatever_repeats(view):
    found = view([task("a")], [fact("a", 1, "succeeded", 1)] * 3, [fact("a", 1, "started", 1)] * 3, NOON)
    assert found.count() == 1


def test_as_of_leaves_out_what_came_later(view):
    attempts = [fact("a", 1, "failed", 1, next_at=NOON + 10 * MINUTE)]
    completions = [fact("a", 2, "succeeded", 5, NOON + 10 * MINUTE)]
    moments = {
        NOON - 2 * MINUTE: "scheduled", NOON: "ready", NOON + 5 * MINUTE: "retry_wait", NOON + 20 * MINUTE: "succeeded",
    }  # fmt: skip
    for moment, state in moments.items():
        assert [row.state for row in view([task("a")], completions, attempts, moment, history=True).collect()] == [
            state
        ]
    assert view([task("a")], completions, attempts, NOON - 61 * MINUTE, history=True).count() == 0


def test_nulls_in_every_optional_column_are_no_obstacle(view):
    bare = key("a") | {"cancel_offset": 7}
    (row,) = view(
        [bare], [], [fact("a", 1, "failed", 1, started_at=None, finished_at=None)], NOON, history=True
    ).collect()
    assert (row.state, row.handler, row.attempts, row.cancel_requested) == ("ready", None, 0, True)


def test_empty_tables_give_an_empty_view(spark, view):
    found = view([], [], [], NOON)
    assert found.count() == 0
    assert found.where(F.col("state") == "open").count() == 0
