"""Handlers with limits: what reaches one fails and says which, in children that nobody else has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.executors.local.local_executors import KIND
from scylla_spark.executors.local.pool import LocalPool
from tests.support.executor_conformance import GRACE_S, Running, invocation

HANDLERS = str(Path(__file__).parents[1] / "support" / "limited_handlers.py")


@pytest.fixture(scope="module")
def running():
    pool = LocalPool([HANDLERS], kill_grace_s=GRACE_S)
    yield Running(pool)
    pool.stop(drain_s=0)


@pytest.fixture(scope="module")
def own():
    """All pools of a deployment with these handlers."""
    executor = KIND.make(Settings(handlers=(HANDLERS,), dispatch={"min_children": 1}, _env_file=None))
    yield Running(executor)
    executor.stop(drain_s=0)


def test_each_handler_with_limits_has_an_executor_of_its_own_and_no_other_has(own):
    handlers = own.executor.handlers()
    asked = {info.executor for info in handlers.values() if info.isolation is not None}
    assert own.executor.rooms().keys() == {"local"} | asked
    assert len(asked) == 6
    assert handlers["unlimited"].executor == "local"


def test_handler_that_takes_more_memory_than_it_may_fails_and_the_next_gets_a_new_child(own):
    pool = own
    first = pool.one("limited.memory", {"mb": 50})
    much = pool.one("limited.memory", {"mb": 150})
    after = pool.one("limited.memory", {"mb": 50})
    assert (much.outcome, much.failure.kind) == ("failed", "memory_exceeded")
    assert "MemoryError" in much.failure.message
    assert first.outcome == after.outcome == "succeeded"
    assert first.result != after.result


def test_what_a_task_keeps_counts_for_its_child_alone(own):
    pool = own
    outcomes = []
    while len(outcomes) < 40 and (not outcomes or outcomes[-1].outcome == "succeeded"):
        outcomes.append(pool.one("limited.memory", {"mb": 90, "keep": True}))
    assert outcomes[-1].failure.kind == "memory_exceeded"
    children = [one.result for one in outcomes[:-1]]
    assert len(children) == len(set(children))  # a second time finds no room in the same child
    assert pool.one("limited.memory", {"mb": 60}).outcome == "succeeded"


def test_tasks_queued_behind_one_that_reaches_its_limit_all_run(own):
    calls = [invocation("limited.memory", {"mb": 150 if number == 20 else 1}) for number in range(60)]
    outcomes = own.run(*calls)
    assert [one.outcome for one in outcomes].count("succeeded") == 59
    assert outcomes[20].failure.kind == "memory_exceeded"


def test_each_call_has_its_seconds_of_cpu_and_one_that_takes_more_is_ended(own):
    pool = own
    assert [pool.one("limited.cpu", 0.7).outcome for _ in range(3)] == ["succeeded"] * 3
    found = pool.one("limited.cpu", 30)
    assert (found.outcome, found.failure.kind) == ("failed", "cpu_exceeded")
    assert found.finished_us - found.started_us < 25_000_000


def test_handler_that_opens_more_files_than_it_may_fails(own):
    pool = own
    assert pool.one("limited.files", 10).outcome == "succeeded"
    assert pool.one("limited.files", 100).failure.kind == "open_files_exceeded"


def test_variables_of_a_handler_are_its_own(own, running):
    assert own.one("limited.environment", ["REGION", "LANG"]).result == '["eu","xx"]'
    assert json.loads(running.one("unlimited").result)[:2] == [300_000_000, None]


def test_batch_that_takes_more_memory_than_it_may_fails_as_a_whole(own):
    outcomes = own.run(*[invocation("limited.batch") for _ in range(5)])
    assert {one.failure.kind for one in outcomes} == {"memory_exceeded"}


def test_level_stands_on_every_attempt_of_theirs_and_on_no_other(own, running):
    assert own.one("limited.files", 10).work.isolation == "process"
    assert running.one("unlimited").work is None


def test_handler_with_limits_never_runs_without_them(running):
    found = running.one("limited.files", 10)
    assert (found.outcome, found.failure.kind) == ("failed", "isolation_unavailable")


def test_other_deaths_are_no_limits(own):
    assert own.one("limited.crash").failure.kind == "child_died"
