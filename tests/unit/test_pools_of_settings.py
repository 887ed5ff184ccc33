"""What the settings say of calls reaches every pool, whichever handlers it is for."""

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.executors.connect.pool import ConnectPool
from scylla_spark.executors.local.local_executors import LocalExecutors
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
