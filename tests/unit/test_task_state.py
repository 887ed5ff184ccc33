"""The one rule of states, in its two notations."""

import itertools

import polars as pl
import pytest

from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.state import STATE_SQL, attempts_of, completion_of, state_of
from scylla_spark.task_states import STATES

KEY = TaskKey(100, "o", "u")
CASES = list(
    itertools.product(
        [None, "succeeded", "failed", "aborted", "cancelled", "expired", "duplicate"],
        [None, "started", "failed", "yielded"],
        [99, 100, 101],
    )
)


def test_function_and_sql_agree_on_every_case():
    frame = pl.DataFrame(
        CASES, schema={"ended": pl.String, "last_outcome": pl.String, "next_attempt_at": pl.Int64}, orient="row"
    )
    states = frame.with_columns(as_of=pl.lit(100)).select(pl.sql_expr(STATE_SQL).alias("state"))["state"].to_list()
    assert states == [state_of(*case, 100) for case in CASES]
    assert set(states) == set(STATES)


@pytest.mark.parametrize(
    ("ended", "last", "next_us", "state"),
    [
        (None, None, 101, "scheduled"),
        (None, None, 100, "ready"),
        (None, "started", 100, "running"),
        (None, "failed", 101, "retry_wait"),
        (None, "failed", 100, "ready"),
        ("cancelled", "started", 101, "cancelled"),
    ],
)
def test_the_state_of_a_task(ended, last, next_us, state):
    assert state_of(ended, last, next_us, 100) == state


def test_an_attempt_shows_how_it_ended_whatever_the_order():
    started, failed, ended = Fact(KEY, 1, "started"), Fact(KEY, 1, "failed", next_us=5), Fact(KEY, 2, "succeeded")
    for facts in itertools.permutations([started, failed, failed, ended, Fact(KEY, 0, "too_late")]):
        assert attempts_of(facts) == [failed, ended]


def test_a_failed_attempt_with_a_next_one_is_no_completion():
    assert completion_of([Fact(KEY, 1, "failed", next_us=5)]) is None
    assert completion_of([Fact(KEY, 1, "failed", next_us=5), Fact(KEY, 2, "failed")]) == Fact(KEY, 2, "failed")
