"""Every default once: what is made without arguments is what the settings say without a file."""

from __future__ import annotations

from inspect import signature

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.records.command import Command, Rules
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Retry, Task
from scylla_spark.defaults import DEFAULT_QUEUE, RETRIES, RETRY_BASE, RETRY_CAP
from scylla_spark.definitions.queue import Queue
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.io.delta.deployment_record import deployment, stored_rules
from scylla_spark.services.dispatch.engine_settings import engine_limits, queue_terms


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Settings.load()


def test_rules_of_records(settings):
    assert stored_rules(deployment(settings, {})) == Rules(settings.partitions)


def test_retry_policy(settings):
    dispatch = settings.dispatch
    made = Retry().filled(Retry(dispatch.max_retries, dispatch.retry_base, dispatch.retry_cap))
    assert made == Retry(RETRIES, RETRY_BASE, RETRY_CAP).filled(Retry())


def test_bounds_of_the_engine(settings):
    made, plain = engine_limits(settings), Limits()
    for name in ("max_in_flight", "lane_depth", "stall_us", "drain_us", "least_wait_us"):
        assert getattr(made, name) == getattr(plain, name), name


def test_limits_of_a_queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert queue_terms({"mail": Queue(name="mail")}) == {"mail": QueueLimits()}


def test_the_queue_of_tasks_that_name_none():
    key = TaskKey(0, "a", "u")
    assert Task(key, {}, "h").queue == Command("enqueue", key, 0).queue == DEFAULT_QUEUE


def test_sizes_of_the_pools(settings):
    local, dispatch = signature(LocalPool).parameters, settings.dispatch
    assert (local["min_children"].default, local["max_children"].default) == (
        dispatch.min_children,
        dispatch.max_children,
    )
