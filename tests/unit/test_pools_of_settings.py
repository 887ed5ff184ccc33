"""What the settings say of calls reaches every pool, whichever handlers it is for."""

from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from scylla_spark.config.settings import Settings
from scylla_spark.executors.connect.pool import ConnectPool
from scylla_spark.executors.local.local_executors import LocalExecutors, auto_executor
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.spark.pool import SparkPool
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.isolation import Isolation
from scylla_spark.services.dispatch import executor_catalog as catalog

HANDLERS = [
    HandlerInfo("limited", isolation=Isolation(level="limits")),
    HandlerInfo("boxed", isolation=Isolation(level="sandbox")),
]


@pytest.fixture
def pools(tmp_path):
    settings = Settings(
        data_dir=tmp_path,
        handlers=("handlers",),
        dispatch={"longest_run": "1h", "pass_environment": ["REGION"], "scan": "spark"},
        connect={"url": "sc://h:1"},
    )
    found = catalog.executors(settings)
    local = found.pop("local")
    assert isinstance(local, LocalExecutors)
    found |= {"local": local._shared} | {one.executor: local._own(one) for one in HANDLERS}
    return {name: pool for name, pool in found.items() if name not in catalog.BUILT_IN}


@pytest.mark.parametrize(
    ("changes", "executor"),
    [
        ({}, "local"),
        ({"master": "local-cluster[2,1,1024]"}, "spark"),
        ({"master": "spark://head:7077"}, "spark"),
        ({"master": "yarn", "dispatch": {"runs_on": "local"}}, "local"),
        ({"master": "yarn", "dispatch": {"scan": "reader"}}, "local"),
        ({"master": "yarn", "spark_workers": {"max": 0}}, "local"),
        ({"dispatch": {"runs_on": "spark"}}, "spark"),
    ],
)
def test_handlers_that_name_no_executor_run_in_spark_workers_on_a_cluster_only(
    changes, executor, tmp_path, monkeypatch
):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # other tests of this process have a session
    settings = Settings(data_dir=tmp_path, **changes)
    assert auto_executor(settings) == executor
    pools = catalog.executors(settings)
    assert pools["local"]._shared._auto == executor
    if "spark" in pools:
        assert pools["spark"]._config.auto == executor


def test_the_master_of_a_session_that_is_there_goes_before_that_of_the_settings(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(master="k8s://https://api:443"))
    assert auto_executor(Settings(master="local[2]")) == "spark"


def told(pool):
    """The longest run in seconds, and the variables that a pool passes on."""
    if isinstance(pool, LocalPool):
        return pool._limits.longest_ms / 1000, tuple(pool._pass_environment)
    if isinstance(pool, SparkPool):
        return pool._config.longest_s, pool._config.pass_environment
    assert isinstance(pool, ConnectPool), "a pool that this test does not know"
    return pool._make.keywords["longest_s"], tuple(pool._make.keywords["pass_environment"])


def test_every_pool_knows_how_long_a_call_may_run_and_which_variables_it_gets(pools):
    assert pools.keys() == {"local", "spark", "connect", "own/limited", "own/boxed"}
    assert {name: told(pool) for name, pool in pools.items()} == dict.fromkeys(pools, (3600, ("REGION",)))
