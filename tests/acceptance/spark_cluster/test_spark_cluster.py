"""The shape of the design on a standalone cluster of separate processes: nothing runs on a local master.

Kafka → ingest with foreachBatch and MERGE → the scan for due tasks → executors → completions.
"""

from __future__ import annotations

import os

import pytest

from scylla_spark import TaskKey
from scylla_spark.testing import judge
from tests.acceptance.place import PATIENCE, SECOND, Foreign, now
from tests.acceptance.spark_cluster.standalone import SparkCluster
from tests.support.processes import parent_of
from tests.support.waiting import eventually

LANES = 12
PATIENT = 3 * PATIENCE  # a machine that is busy takes minutes for a batch of ingest
LOOK_AHEAD = 40 * SECOND


@pytest.fixture(scope="module")
def cluster(broker, tmp_path_factory):
    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"), broker)
    try:
        for name in ("one", "two"):
            cluster.daemon(name)
        cluster.ingest = cluster.submit("ingest", cores=2, per_executor=2)
        cluster.ingest.ready(PATIENT)
        cluster.dispatch = cluster.submit("dispatch", cores=4, per_executor=2)
        cluster.driver = cluster.dispatch.ready(PATIENT)["pid"]
        yield cluster
    finally:
        cluster.clear()


@pytest.fixture
def producer(cluster):
    producer = Foreign(cluster.settings.kafka.bootstrap_servers, cluster.settings.topics.tasks, linger_ms=5)
    yield producer
    producer.close()


def send(producer, name, at, payload=None):
    """Sends one task per lane; returns their keys."""
    keys = [TaskKey(at, f"lane-{lane}", name) for lane in range(LANES)]
    for key in keys:
        producer.put(key, payload, handler="on-executor")
    producer.flush()
    return keys


def begun(cluster, keys, *, ended=False):
    """The runs of these keys, once each has begun, or has come to a good end."""
    wanted = set(keys)

    def look():
        found = [run for run in cluster.history() if run.key in wanted and (run.ok or not ended)]
        return found if {run.key for run in found} == wanted else None

    return eventually(look, PATIENT, f"{len(keys)} tasks", cluster.dispatch.told)


def test_tasks_beyond_the_look_ahead_come_from_the_tables_and_run_on_executors(cluster, producer):
    begun(cluster, send(producer, "warm", now()))
    for ahead in (75 * SECOND, 225 * SECOND, 675 * SECOND):
        due = now() + ahead
        far = send(producer, "far", due)
        # What follows a far task in its partition has run, so the log's reader has passed that task. It keeps nothing that is due
        # later than the look-ahead from then on.
        begun(cluster, send(producer, "marker", now()))
        if now() < due - LOOK_AHEAD:
            break
    else:
        pytest.fail("the machine takes ten minutes for a task")
    ended = cluster.completed(far, PATIENT)
    assert {row["outcome"] for row in ended.values()} == {"succeeded"}
    runs = cluster.history()
    assert all(run.driver for run in runs), "each ran below the JVM of an executor"
    assert judge.early(runs) == judge.overlapping(runs) == judge.disordered(runs) == []


@pytest.mark.deep
def test_whatever_is_killed_nothing_is_lost_and_lanes_do_not_overlap(cluster, producer):
    sent = []
    for victim in ("executor", "python process of a worker", "daemon", "dispatcher"):
        held = TaskKey(now(), "held", victim)
        gate = cluster.folder / f"gate {victim}"
        producer.put(held, {"until": str(gate)}, handler="on-executor")
        sent += [held, *send(producer, victim, now())]
        (run,) = begun(cluster, [held])
        kill(cluster, victim, run)
        gate.touch()
        (again,) = begun(cluster, [held], ended=True)
        assert again.start > cluster.killed[run.driver if victim != "python process of a worker" else run.pool]
        begun(cluster, sent, ended=True)
    ended = cluster.completed(sent, PATIENT)
    runs = cluster.history()
    assert {row["outcome"] for row in ended.values()} == {"succeeded"}
    assert judge.lost(sent, {run.key for run in runs if run.ok}) == []
    assert judge.overlapping(runs) == judge.disordered(runs) == judge.early(runs) == judge.misnumbered(runs) == []
    assert judge.revived(runs, {key: row["finished_at"] for key, row in ended.items()}) == []
    assert all(run.driver for run in runs), "each ran below the JVM of an executor"


def kill(cluster, victim, run):
    """Kills something below or above a run, with kill -9."""
    if victim == "executor":
        cluster.kill_part(run.driver)
    elif victim == "python process of a worker":
        cluster.kill_part(parent_of(run.pool))
    elif victim == "daemon":
        name = cluster.daemon_of(run.driver)
        cluster.kill_part(cluster.daemons[name].pid)
        cluster.daemon(f"{name}-again")
    else:
        executors = {found.driver for found in cluster.history() if os.path.exists(f"/proc/{found.driver}")}
        cluster.kill_part(cluster.driver, *executors)
        cluster.dispatch = cluster.submit("dispatch", cores=4, per_executor=2)
        cluster.driver = cluster.dispatch.ready(PATIENT)["pid"]
