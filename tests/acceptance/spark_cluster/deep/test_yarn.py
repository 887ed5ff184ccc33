"""Ingest and dispatch in cluster deploy mode: YARN runs their drivers, with what `spark-submit.sh` has shipped and nothing else."""

from __future__ import annotations

import pytest

from scylla_spark import TaskKey
from scylla_spark.errors import ExitCode
from tests.acceptance.place import PATIENCE, Foreign, now
from tests.acceptance.spark_cluster import executor_handlers
from tests.acceptance.spark_cluster.standalone import PATIENT
from tests.acceptance.spark_cluster.yarn_cluster import YarnCluster
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def yarn(broker, tmp_path_factory):
    yarn = YarnCluster(tmp_path_factory.mktemp("yarn"), broker)
    try:
        yield yarn
    finally:
        yarn.clear()


def started(yarn, job, *words):
    """Submits a job; its process and its application once its driver is ready."""
    before = yarn.applications().keys()
    process = yarn.submit(job, *words)

    def accepted():
        assert process.running, process.told()[-3000:]
        return yarn.applications().keys() - before

    (application,) = eventually(accepted, PATIENT, f"{job} is accepted", process.told)

    def is_ready():
        assert process.running, process.told()[-3000:] + yarn.told_in(application)
        return '"ready": true' in yarn.told_in(application)

    eventually(is_ready, PATIENT, f"{job} is ready", lambda: process.told()[-3000:] + yarn.told_in(application))
    return process, application


def test_jobs_in_containers_run_tasks_drain_at_sigterm_and_end_with_their_own_exit_code(yarn):
    ingest, of_ingest = started(yarn, "ingest")
    dispatch, of_dispatch = started(yarn, "dispatch", "--handlers", executor_handlers.__file__)
    producer = Foreign(yarn.settings.kafka.bootstrap_servers, yarn.settings.topics.tasks)
    keys = [TaskKey(now(), f"lane-{lane}", "u") for lane in range(4)]
    for key in keys:
        producer.put(key, handler="on-executor")
    held, gate = TaskKey(now(), "held", "u"), yarn.folder / "gate"
    producer.put(held, {"until": str(gate)}, handler="on-executor")
    producer.flush()
    producer.close()
    tell = lambda: yarn.told_in(of_dispatch)  # noqa: E731
    eventually(lambda: {run.key for run in yarn.history()} == {held, *keys}, PATIENT, "tasks run on executors", tell)
    assert all(run.driver for run in yarn.history())

    yarn.signal_driver(of_dispatch)
    eventually(lambda: '"the stop waits"' in tell(), PATIENCE, "it drains", tell)
    gate.touch()
    assert dispatch.ended(PATIENCE) == ExitCode.OK, dispatch.told()[-3000:] + tell()
    assert {run.key for run in yarn.history() if run.ok} == {held, *keys}
    assert yarn.applications()[of_dispatch]["finalStatus"] == "SUCCEEDED"
    yarn.completed([held, *keys], PATIENT)

    yarn.signal_driver(of_ingest)
    assert ingest.ended(PATIENCE) == ExitCode.OK, ingest.told()[-3000:] + yarn.told_in(of_ingest)

    wrong = yarn.submit("ingest", "--set", "partitions=8")
    assert wrong.ended(PATIENT) == ExitCode.CONFIGURATION, wrong.told()[-3000:]
