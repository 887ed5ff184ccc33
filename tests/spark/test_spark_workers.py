"""Spark workers on a local master run `async def` handlers and isolated handlers as the local pool does."""

from __future__ import annotations

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.executors.spark.pool import KIND, SparkPool
from tests.integration import test_async_handlers, test_limits
from tests.integration.test_async_handlers import (  # noqa: F401 - run here on Spark workers
    test_each_of_many_tasks_asks_for_its_own,
    test_each_of_many_tasks_says_and_leaves_behind_its_own,
    test_killed_task_that_goes_on_is_killed_with_its_child,
    test_killed_tasks_are_cancelled_and_others_go_on,
    test_many_tasks_run_at_once_in_one_child,
    test_nonsense_in_the_memory_that_cannot_be_told_from_sense_ends_nothing_else,
    test_payload_and_result_have_the_declared_types,
    test_task_that_does_not_obey_its_cancellation_is_killed_with_its_child,
    test_tasks_of_a_lane_run_one_after_the_other_and_stop_at_a_failure,
    test_tasks_that_run_are_named_with_their_start,
    test_time_out_cancels_one_task_and_no_other,
    test_whatever_a_handler_raises_ends_its_own_task_only,
)
from tests.integration.test_limits import (  # noqa: F401 - run here on Spark workers
    test_batch_that_takes_more_memory_than_it_may_fails_as_a_whole,
    test_handler_that_opens_more_files_than_it_may_fails,
    test_handler_that_takes_more_memory_than_it_may_fails_and_the_next_gets_a_new_child,
    test_other_deaths_are_no_limits,
    test_tasks_queued_behind_one_that_reaches_its_limit_all_run,
)
from tests.support.executor_conformance import GRACE_S, HANDLERS, Running


@pytest.fixture(scope="module")
def running(spark, tmp_path_factory):
    settings = Settings(
        _env_file=None, data_dir=tmp_path_factory.mktemp("data"), dispatch={"runs_on": "spark"}, spark_workers={"max": 1},
        handlers=(test_async_handlers.HANDLERS, test_limits.HANDLERS),
    )  # fmt: skip
    pool = KIND.make(settings)
    pool.attach(spark)
    yield Running(pool, slack_s=120)
    pool.stop(drain_s=0)


@pytest.fixture
def own(running):
    """Those of handlers with limits, too."""
    return running


def test_a_worker_serves_an_executor_for_each_handler_of_its_own_kind(running):
    handlers = running.executor.handlers().values()
    assert running.executor.rooms().keys() == {info.executor for info in handlers} >= {"spark", "async/a.few"}
    assert {info.runs_on for info in handlers} == {"spark"}


def test_a_handler_that_says_where_it_runs_is_not_run_elsewhere(running):
    pool = SparkPool([HANDLERS], auto="local", kill_grace_s=GRACE_S)
    pool.start(lambda outcomes: None)
    assert pool.rooms().keys() == {"spark"}
    assert pool.handlers()["noop"].runs_on == "local"
    pool.stop(drain_s=0)
