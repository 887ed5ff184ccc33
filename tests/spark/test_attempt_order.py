"""Which attempt of a task is the newest: Python, the due scan, the status view and the readers without a JVM agree."""

import random
from datetime import UTC, datetime, timedelta
from itertools import product

from scylla_spark.clock import to_us
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.state import attempt_order, attempts_of
from scylla_spark.core.tasks.task import STARTED
from scylla_spark.io.delta.rows import first_completions, newest_attempts
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from scylla_spark.transforms.due import uncompleted
from scylla_spark.transforms.status_view import status

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def histories(count):
    """Lane → its attempts in a random order: repeats, starts and ends in one record, and ends that stand before starts."""
    rng = random.Random(7)
    kinds = list(product((1, 2, 3), (STARTED, "failed", "timed_out"), (5, 6, 7)))
    return {f"lane{number}": rng.choices(kinds, k=rng.randint(1, 8)) for number in range(count)}


def key(lane):
    return {
        "partition_id": 0,
        "hour": to_us(NOON) // 3_600_000_000,
        "scheduled_time": NOON,
        "ordering_id": lane,
        "uniqueness_key": "u",
    }


def attempts(lane, history):
    """Rows of `attempts`; `used` and `started_at` tell them apart."""
    return [
        key(lane)
        | {"attempt": attempt, "outcome": outcome, "fact_offset": offset, "used": kind(attempt, outcome, offset)}
        | {"started_at": NOON + timedelta(seconds=kind(attempt, outcome, offset))}
        for attempt, outcome, offset in history
    ]


def kind(attempt, outcome, offset):
    """A number for a row's values."""
    return attempt * 100 + ["failed", STARTED, "timed_out"].index(outcome) * 10 + offset


def as_rows(table, rows):
    return [tuple(row.get(name) for name in table.names) for row in rows]


def test_all_readers_agree_on_the_newest_attempt(spark):
    known = histories(80)
    rows = [row for lane, history in known.items() for row in attempts(lane, history)]
    frame = spark.createDataFrame(as_rows(ATTEMPTS, rows), ATTEMPTS.ddl)
    tasks = spark.createDataFrame(as_rows(TASKS, [key(lane) | {"data_offset": 1} for lane in known]), TASKS.ddl)
    nothing = spark.createDataFrame([], COMPLETIONS.ddl)

    # of one attempt that ended twice, in one record, either end will do
    best = {lane: max(attempt_order(*row) for row in history) for lane, history in known.items()}
    fits = {lane: {kind(*row) for row in known[lane] if attempt_order(*row) == best[lane]} for lane in known}

    def misfits(found):
        return {lane: newest for lane, newest in found.items() if newest not in fits[lane]}

    due = {row["ordering_id"]: row["used"] for row in uncompleted(tasks, nothing, frame).collect()}
    seen = {
        row["ordering_id"]: round((row["started_at"].replace(tzinfo=UTC) - NOON).total_seconds())
        for row in status(tasks, nothing, frame, to_us(NOON)).collect()
    }
    read = {row["ordering_id"]: row["used"] for row in newest_attempts(in_polars(rows)).collect().to_dicts()}
    assert set(due) == set(seen) == set(read) == set(known)
    told = {lane: newest_told(history) for lane, history in known.items()}
    assert [misfits(found) for found in (due, seen, read, told)] == [{}, {}, {}, {}]


def test_all_readers_agree_on_the_completion_that_counts(spark):
    rng = random.Random(8)
    kinds = [(attempt, "succeeded", offset) for attempt in (1, 2, 3) for offset in (None, 5, 6, 7)]
    # of two rows with one offset, in one record, either will do: here each offset stands once
    known = {
        f"lane{n}": list({row[2]: row for row in rng.choices(kinds, k=rng.randint(1, 5))}.values()) for n in range(40)
    }
    rows = [row for lane, history in known.items() for row in completions(lane, history)]
    ended = spark.createDataFrame(as_rows(COMPLETIONS, rows), COMPLETIONS.ddl)
    tasks = spark.createDataFrame(as_rows(TASKS, [key(lane) | {"data_offset": 1} for lane in known]), TASKS.ddl)
    first = {lane: min(history, key=lambda row: row[2] or 0)[0] for lane, history in known.items()}

    seen = status(tasks, ended, spark.createDataFrame([], ATTEMPTS.ddl), to_us(NOON)).collect()
    read = first_completions(in_polars(rows, COMPLETIONS)).collect().to_dicts()
    assert {row["ordering_id"]: row["attempts"] for row in seen} == first
    assert {row["ordering_id"]: row["attempt"] for row in read} == first
    assert len(read) == len(known)


def completions(lane, history):
    """Rows of `completions`; their attempts tell them apart."""
    return [
        key(lane) | {"attempt": attempt, "outcome": outcome, "fact_offset": offset}
        for attempt, outcome, offset in history
    ]


def newest_told(history):
    """What is told of the newest attempt to who asks for one task: its rows come as facts, in the order of the log."""
    facts = [
        Fact(TaskKey(0, "a", "u"), attempt, outcome, used=kind(attempt, outcome, offset), next_us=1)
        for attempt, outcome, offset in sorted(history, key=lambda row: row[2])
    ]
    return attempts_of(facts)[-1].used


def in_polars(rows, table=ATTEMPTS):
    import polars as pl

    texts = {name: pl.String for name in table.names if name.startswith("error_")}  # all null here: no type to infer
    return pl.LazyFrame([{name: row.get(name) for name in table.names} for row in rows], schema_overrides=texts)
