"""Run by `test_spark_pool_cluster`: conformance on local-cluster[2,1,1024], and what happens when an executor dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.executors.spark.pool import SparkPool
from scylla_spark.io.host import class_archive
from tests.support.executor_conformance import (
    BATCH_HANDLERS,
    GRACE_S,
    HANDLERS,
    ExecutorConformance,
    Running,
    invocation,
    kill_hard,
)
from tests.support.processes import alive
from tests.support.waiting import holds

JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # five JVMs that live for a minute


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    import pyspark
    from pyspark.sql import SparkSession

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    work = tmp_path_factory.mktemp("spark")
    os.environ["SPARK_WORKER_DIR"] = str(work)
    session = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.extraJavaOptions", f"{JAVA} {class_archive.flags()}")
        .config("spark.executor.extraJavaOptions", JAVA)
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def running(spark, tmp_path_factory):
    pool = SparkPool([HANDLERS, BATCH_HANDLERS], kill_grace_s=GRACE_S)
    pool.keep_outputs(OutputTerms(str(tmp_path_factory.mktemp("outputs")), 8, 4_000_000))
    pool.attach(spark)
    running = Running(pool, slack_s=30)
    yield running
    pool.stop(drain_s=0)


class TestSparkPoolOnAClusterConforms(ExecutorConformance):
    keeps_outputs = True


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def test_lost_executor_fails_the_task_once_and_its_processes_die(running, tmp_path):
    mark = tmp_path / "pids"
    call = invocation("mark_pid_and_hang", str(mark))
    running.executor.submit([call])
    assert holds(lambda: mark.exists() and mark.read_text().endswith("\n"), within=30)
    pid = int(mark.read_text())
    executor = next(p for p in _ancestors(pid) if Path(f"/proc/{p}/comm").read_text().strip() == "java")
    kill_hard(executor)
    outcome = running.wait([call], within=60)[0]
    assert (outcome.outcome, outcome.failure.kind) == ("failed", "executor_lost")
    assert "was not heard from until its lease had ended" in outcome.failure.message
    assert mark.read_text() == f"{pid}\n", "the handler ran again"
    assert holds(lambda: not alive(pid))
    assert {one.outcome for one in running.run(*[invocation("noop") for _ in range(20)], within=60)} == {"succeeded"}
