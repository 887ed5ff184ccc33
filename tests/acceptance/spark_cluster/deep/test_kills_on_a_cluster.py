"""Parts of a cluster of Spark and Kafka die, are stopped or are cut off: nothing is lost, and no two runs of a lane overlap.

A master, three worker daemons, three brokers, and, each started by `spark-submit.sh`: ingest, two dispatchers, a planner and the API.
The Python processes of the second dispatcher's executors are started one by one, without Spark's daemon.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime

import pytest

from scylla_spark import Schedule, Trigger
from scylla_spark.testing import judge
from tests.acceptance.http_api import Wire
from tests.acceptance.place import PATIENCE, now
from tests.acceptance.spark_cluster.load import Load
from tests.acceptance.spark_cluster.standalone import PATIENT, SparkCluster
from tests.support.freezing import freeze
from tests.support.processes import alive, parent_of
from tests.support.three_brokers import three_brokers
from tests.support.waiting import eventually

EVERY_S = 5
MOST_CLOCK_ERROR = (
    250_000  # a worker whose clock is known less well gets no work; ends are told by the dispatcher's clock
)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    with three_brokers(tmp_path_factory.mktemp("kafka")) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def cluster(brokers, tmp_path_factory):
    servers = ",".join(broker.bootstrap for broker in brokers)
    options = (
        "dispatch.look_ahead=10m",
        "ingest.trigger=30s",
    )  # the tables see little of this, and need few batches and scans
    cluster = SparkCluster(tmp_path_factory.mktemp("cluster"), servers, *options, replication=3)
    try:
        for name in ("one", "two", "three"):
            cluster.daemon(name)
        ingest = cluster.submit("ingest", cores=2, per_executor=2)
        ingest.ready(PATIENT)
        started = [cluster.dispatch(), cluster.dispatch("python.use.daemon=false")]
        planner, api = cluster.submit("plan"), cluster.submit("api")
        for dispatcher in started:
            dispatcher.ready()
        planner.ready(PATIENT)
        cluster.api = Wire(api.ready(PATIENT)["api"])
        every = Schedule(
            "tick", "on-executor", Trigger.every(f"{EVERY_S}s"), payload={}, overlap="buffer_all", catch_up="all"
        )
        cluster.scheduler.put_schedules(every)
        yield cluster
    finally:
        cluster.clear()


@pytest.fixture(scope="module")
def load(cluster):
    with Load(cluster) as load:
        yield load


def executor(cluster, load, run):
    cluster.kill_part(run.driver)


def python_process_of_a_worker(cluster, load, run):
    cluster.kill_part(parent_of(run.pool))


def worker_daemon(cluster, load, run):
    name = cluster.daemon_of(run.driver)
    cluster.kill_part(cluster.daemons[name].pid)
    cluster.daemon(f"{name}-again")


def dispatcher(cluster, load, run):
    cluster.kill_dispatcher(cluster.dispatcher_of(run.driver))
    cluster.dispatch().ready()


def stopped_worker(cluster, load, run):
    """Its watchdog kills it."""
    worker = parent_of(run.pool)
    freeze(worker)
    eventually(lambda: not alive(worker) and not alive(run.pool), 30, "its watchdog has ended it")


def deaf_dispatcher(cluster, load, run):
    """Keeps back all that its workers send."""
    _cut(cluster.dispatcher_of(run.driver).proxy.there, run)


def deaf_worker(cluster, load, run):
    """Keeps back all that its dispatcher sends."""
    _cut(cluster.dispatcher_of(run.driver).proxy.back, run)


def _cut(way, run):
    way.clear()
    try:
        eventually(lambda: not alive(run.pool), PATIENCE, "its lease has ended")
    finally:
        way.set()


def master(cluster, load, run):
    """Attempts go on without it; another one starts an executor in place of a dead one."""
    cluster.kill_part(cluster.master.pid)
    load.begun(load.send("without a master", now()), ended=True)
    cluster.start_master()
    cluster.kill_part(run.driver)


KILLS = (
    executor, python_process_of_a_worker, worker_daemon, dispatcher, stopped_worker, deaf_dispatcher, deaf_worker, master,
)  # fmt: skip


@pytest.mark.parametrize("kill", KILLS)
def test_nothing_is_lost_and_lanes_do_not_overlap(cluster, load, kill):
    run = load.hold(kill.__name__)
    load.send(kill.__name__, now())
    kill(cluster, load, run)
    assert not alive(run.pool)
    assert load.release(run).attempt > run.attempt
    load.check()


def test_the_doctor_finds_executors_of_this_master_fit(cluster):
    options = {"spark.cores.max": "4", "spark.executor.cores": "4", "spark.executor.memory": "512m"}
    settings = ("spark_workers.max=4", f"master={cluster.master_url}", f"spark.options={json.dumps(options)}")
    words = (word for setting in settings for word in ("--set", setting))
    told = cluster.call("doctor", "cluster", *words)
    assert told.returncode == 0, told.stdout + told.stderr
    assert all(name in told.stdout for name in ("master", "executors", "way back", "slots")), told.stdout


def test_a_dead_broker_of_three_loses_nothing(cluster, load, brokers):
    run = load.hold("broker")
    os.kill(brokers[1].pid, signal.SIGKILL)
    load.begun(load.send("broker", now()), ended=True)
    load.release(run)
    load.check()


def test_a_worker_that_is_drained_finishes_what_runs(cluster, load):
    run = load.hold("drained")
    busy = eventually(lambda: _workers(cluster, running=1), PATIENCE, "only the held task runs")
    cluster.api("POST", f"/v1/spark-workers/{busy[0]}:drain")
    load.begun(load.send("drained", now()), ended=True)
    assert load.release(run).attempt == run.attempt
    eventually(lambda: busy[0] not in _workers(cluster), PATIENCE, "it has ended")
    load.check()


def test_the_planner_has_missed_no_time_and_the_tables_know_all_ends(cluster, load):
    killed = now()
    ticks = eventually(lambda: _ticks(cluster, after=killed), PATIENCE, "the planner goes on")
    cluster.scheduler.schedule("tick").pause("enough")
    assert ticks == [ticks[0] + EVERY_S * number for number in range(len(ticks))]
    ended = cluster.completed(load.sent, PATIENT)
    assert {row["outcome"] for row in ended.values()} == {"succeeded"}
    finished = {key: row["finished_at"] + MOST_CLOCK_ERROR for key, row in ended.items()}
    assert judge.revived(cluster.history(), finished) == []


def _ticks(cluster, *, after):
    """The planned seconds of the runs of "tick" that ended well, once one of them began later; each once."""
    runs = [run for run in cluster.history() if run.key.uniqueness_key.startswith("tick/") and run.ok]
    seconds = {round(datetime.fromisoformat(run.key.uniqueness_key.split("/")[1]).timestamp()) for run in runs}
    return sorted(seconds) if runs and runs[-1].start > after else []


def _workers(cluster, running=0):
    """The ids of all Spark workers, or of those that run something if that many do."""
    rows = cluster.api("GET", "/v1/spark-workers")["workers"]
    if not running:
        return [row["worker"] for row in rows]
    busy = [row["worker"] for row in rows if row["running"]]
    return busy if len(busy) == running else []
