"""The Spark pool on local[2]: the conformance suite, and what only this pool promises."""

from __future__ import annotations

import pytest

from scylla_spark.executors.spark import SparkPool
from tests.executor_conformance import (
    BATCH_HANDLERS,
    GRACE_S,
    HANDLERS,
    ExecutorConformance,
    Running,
    alive,
    eventually,
    invocation,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def running(spark):
    pool = SparkPool([HANDLERS, BATCH_HANDLERS], kill_grace_s=GRACE_S)
    pool.attach(spark)
    running = Running(pool, slack_s=20)
    yield running
    pool.stop(drain_s=0)


class TestSparkPoolConforms(ExecutorConformance):
    pass


class TestSparkPool:
    def test_handlers_are_known_without_importing_them_here(self, running):
        handlers = running.executor.handlers()
        assert handlers["batch_arrow"].max_batch == 100
        assert handlers["versioned"].name == "versioned@2"

    def test_python_worker_keeps_its_children_between_jobs(self, running):
        pids = {running.one("pid").result for _ in range(6)}
        assert len(pids) <= 4

    def test_stop_cancels_what_does_not_finish_and_hands_back_the_rest(self, spark, tmp_path):
        running = Running(SparkPool([HANDLERS], slots=1, kill_grace_s=GRACE_S))
        running.executor.attach(spark)
        calls = [invocation("stubborn", str(tmp_path / "begun")), invocation("noop")]
        running.executor.submit(calls)
        assert eventually((tmp_path / "begun").exists, within=20)
        running.executor.stop(drain_s=0.1)
        hanging, waiting = running.wait(calls, within=0)
        assert (hanging.outcome, hanging.failure.kind) == ("failed", "executor_stopped")
        assert waiting.outcome == "not_started"

    def test_killed_task_is_reported_when_its_process_is_dead(self, running, tmp_path):
        mark = tmp_path / "pid"
        call = invocation("mark_pid_and_hang", str(mark))
        running.executor.submit([call])
        assert eventually(lambda: mark.exists() and mark.read_text().endswith("\n"), within=20)
        running.executor.kill([call.id])
        assert running.wait([call])[0].outcome == "timed_out"
        assert eventually(lambda: not alive(int(mark.read_text())), within=0.5)

    def test_room_grows_when_a_handler_turns_out_to_be_quick(self, spark):
        running = Running(SparkPool([HANDLERS], slots=2))
        assert running.executor.room() == 0, "there is no session yet"
        running.executor.attach(spark)
        assert running.executor.room() == 4
        for _ in range(3):
            running.run(invocation("noop"), within=40)
        assert running.executor.room() > 100
        running.executor.stop(drain_s=1)
        assert running.executor.room() == 0
