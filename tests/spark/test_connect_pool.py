"""The executor of handlers with sessions of Spark Connect: on the application of the tests, and on a server that is not there."""

from __future__ import annotations

import json
import socket
import time

import pytest

from scylla_spark.executors.connect import sessions
from scylla_spark.executors.connect.pool import UNAVAILABLE, ConnectPool
from scylla_spark.executors.connect.sessions import RELEASE_S
from scylla_spark.io.host.connect_server import ServerAddress
from tests.support import connect_handlers
from tests.support.executor_conformance import (
    BATCH_HANDLERS,
    GRACE_S,
    HANDLERS,
    ExecutorConformance,
    Running,
    invocation,
)
from tests.support.waiting import eventually

_MODULES = (HANDLERS, BATCH_HANDLERS, connect_handlers.__file__)
_PATIENCE = 60.0


def _pool(server: ServerAddress | None = None) -> ConnectPool:
    return ConnectPool(_MODULES, server=server, sessions=4, longest_s=3600, kill_grace_s=GRACE_S)


@pytest.fixture(scope="module")
def running(spark):
    pool = _pool()
    running = Running(pool, slack_s=20)
    assert pool.rooms()["connect"] == 0
    pool.attach(spark)
    eventually(lambda: pool.rooms()["connect"], _PATIENCE)
    yield running
    pool.stop(drain_s=0)


@pytest.fixture
def jobs(spark):
    """Numbers of the jobs that run in Spark now."""
    tracker = spark.sparkContext.statusTracker()
    return lambda: list(tracker.getActiveJobsIds())


class TestConnectPoolConforms(ExecutorConformance):
    pass


class TestConnectPool:
    def test_every_attempt_has_a_session_of_its_own_and_no_word_of_the_token(self, running):
        first = running.one("session_id")
        second = running.one("session_id")
        assert first.failure is None
        found = [json.loads(one.result) for one in (first, second)]
        assert all(mine == again and told == "" for mine, again, told in found)
        assert found[0][0] != found[1][0]

    def test_tables_are_read_and_written(self, running, tmp_path):
        table = f"delta.`{tmp_path / 'orders'}`"
        for sql in (
            f"CREATE TABLE {table} (id BIGINT) USING delta",
            f"INSERT INTO {table} SELECT * FROM range(3)",
            f"INSERT INTO {table} SELECT * FROM range(4)",
            f"OPTIMIZE {table}",
        ):
            assert running.one("query", {"sql": sql}).failure is None
        assert running.one("query", {"sql": f"SELECT count(*) FROM {table}"}).result == "[[7]]"

    def test_what_an_attempt_has_running_in_spark_ends_with_its_time(self, running, jobs):
        call = invocation("endless", {}, timeout_ms=4_000)
        running.executor.submit([call])
        eventually(jobs, _PATIENCE)
        (outcome,) = running.wait([call], within=_PATIENCE)
        assert outcome.outcome == "timed_out"
        eventually(lambda: not jobs(), _PATIENCE)

    def test_what_an_attempt_has_running_in_spark_ends_with_its_cancellation(self, running, jobs):
        call = invocation("endless", {})
        running.executor.submit([call])
        eventually(jobs, _PATIENCE)
        running.executor.kill([call.id])
        (outcome,) = running.wait([call])
        assert outcome.outcome == "timed_out"
        eventually(lambda: not jobs(), _PATIENCE)

    @pytest.mark.parametrize("ends", ["death", "failure"])
    def test_what_an_attempt_has_running_in_spark_ends_with_its_failure(self, running, jobs, tmp_path, ends):
        marker = tmp_path / "marker"
        call = invocation("endless", {"ends": ends, "marker": str(marker)})
        running.executor.submit([call])
        eventually(jobs, _PATIENCE)
        marker.touch()
        (outcome,) = running.wait([call])
        assert outcome.outcome == "failed"
        eventually(lambda: not jobs(), _PATIENCE)

    def test_sessions_are_let_go_of_when_their_attempts_have_ended(self, running, spark):
        running.one("query", {"sql": "SELECT 1"})
        service = spark.sparkContext._jvm.org.apache.spark.sql.connect.service
        manager = getattr(getattr(service, "SparkConnectService$"), "MODULE$").sessionManager()
        assert manager.listActiveSessions().size() == 0


def test_a_handler_whose_server_is_gone_fails_within_its_time():
    pool = _pool(ServerAddress("sc://localhost:1", ""))
    running = Running(pool)
    try:
        eventually(lambda: pool.rooms()["connect"], _PATIENCE)
        call = invocation("query", {"sql": "SELECT 1"}, timeout_ms=1_000)
        running.executor.submit([call])
        (outcome,) = running.wait([call], within=_PATIENCE)
        assert outcome.outcome == "timed_out"
    finally:
        pool.stop(drain_s=0)


def test_tasks_say_why_where_the_children_cannot_be():
    pool = ConnectPool(
        ["no_such_module_of_handlers"], server=ServerAddress("sc://localhost:1", ""), sessions=1, longest_s=1
    )
    running = Running(pool)
    eventually(lambda: pool.rooms()["connect"], _PATIENCE)
    outcome = running.one("query", {})
    assert outcome.failure is not None
    assert (outcome.outcome, outcome.failure.kind) == ("failed", UNAVAILABLE)
    assert "no_such_module_of_handlers" in outcome.failure.message
    pool.stop(drain_s=0)


def test_a_silent_server_holds_every_end_up_for_one_release_and_a_stop_not_for_long(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pool = _pool(ServerAddress(f"sc://127.0.0.1:{silent.getsockname()[1]}", ""))
        running = Running(pool, slack_s=20)
        eventually(lambda: pool.rooms()["connect"], _PATIENCE)
        calls = [invocation("echo", number) for number in range(4)]
        assert [one.outcome for one in running.run(*calls, within=_PATIENCE)] == ["succeeded"] * 4
        told = [running.reported_at[call.id] for call in calls]
        assert max(told) - min(told) < 2 * RELEASE_S, "they are released side by side"
        monkeypatch.setattr(
            sessions, "RELEASE_S", _PATIENCE
        )  # none has ended when the last of them begins, however slow that is
        more = [invocation("echo", number) for number in range(4)]
        pool.submit(more)
        eventually(
            lambda: pool.rooms()["connect"] == 0 and not pool.running(), _PATIENCE, "what is not released takes room"
        )
        begun = time.monotonic()
        pool.stop(drain_s=0)
        assert time.monotonic() - begun < 4 * RELEASE_S
        assert {call.id for call in more} <= running.reported_at.keys()
