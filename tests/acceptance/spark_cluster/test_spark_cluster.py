"""The shape of the design on a standalone cluster of separate processes: nothing runs on a local master.

Kafka → ingest with foreachBatch and MERGE → the scan for due tasks → executors → completions.
"""

from __future__ import annotations

import pytest

from scylla_spark.testing import judge
from tests.acceptance.place import SECOND, now
from tests.acceptance.spark_cluster.load import Load
from tests.acceptance.spark_cluster.standalone import PATIENT, SparkCluster

LOOK_AHEAD = 40 * SECOND


@pytest.fixture(scope="module")
def cluster(broker, tmp_path_factory):
    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"), broker, "dispatch.look_ahead=40s", "ingest.trigger=20s")
    try:
        cluster.daemon("one")
        ingest = cluster.submit("ingest", cores=2, per_executor=2)
        ingest.ready(PATIENT)
        cluster.dispatch(cores=3, per_executor=3).ready()
        yield cluster
    finally:
        cluster.clear()


def test_tasks_beyond_the_look_ahead_come_from_the_tables_and_run_on_executors(cluster):
    with Load(cluster) as load:
        load.begun(load.send("warm", now()))
        for ahead in (75 * SECOND, 225 * SECOND, 675 * SECOND):
            due = now() + ahead
            far = load.send("far", due)
            # What follows a far task in its partition has run, so the log's reader has passed that task. It keeps nothing that is
            # due later than the look-ahead from then on.
            load.begun(load.send("marker", now()))
            if now() < due - LOOK_AHEAD:
                break
        else:
            pytest.fail("the machine takes ten minutes for a task")
        ended = cluster.completed(far, PATIENT)
    assert {row["outcome"] for row in ended.values()} == {"succeeded"}
    runs = cluster.history()
    assert all(run.driver for run in runs), "each ran below the JVM of an executor"
    assert judge.early(runs) == judge.overlapping(runs) == judge.disordered(runs) == []
