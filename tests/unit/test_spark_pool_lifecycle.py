"""The Spark pool beside a session that is none: what it starts, ends and leaves behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from scylla_spark.config.spark_workers import SparkWorkers
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import NOT_STARTED, Invocation
from scylla_spark.executors.remote.remote_worker import Hello
from scylla_spark.executors.spark.elastic import Change, Present, change
from scylla_spark.executors.spark.pool import SparkPool
from scylla_spark.executors.spark.worker import BROKEN
from scylla_spark.handlers.description import HandlerInfo
from tests.support.waiting import eventually, holds

HELLO = Hello("1", "host", frozenset({"h"}))


class FakeData:
    """Data whose functions are called at once, here."""

    def __init__(self, items):
        self.items = items

    def map(self, function):
        return FakeData([function(item) for item in self.items])

    def collect(self):
        return self.items


class FakeContext:
    """A context that knows jobs by their tags."""

    def __init__(self, master, slots):
        self.master, self.defaultParallelism = master, slots
        self.jobs = {}
        self.tag = threading.local()

    def getConf(self):
        return {"spark.driver.host": "127.0.0.1"}

    def parallelize(self, items, slices):
        return FakeData(items)

    def setLocalProperty(self, name, value):
        """Nothing reads it."""

    def setJobGroup(self, group, description):
        """Nothing reads it."""

    def addJobTag(self, tag):
        self.tag.name = tag

    def cancelJobsWithTag(self, tag):
        if tag in self.jobs:
            self.jobs[tag].set()


class FakeSession:
    """A session whose jobs run until they are cancelled.

    Args:
        reason: with which jobs end at once; None: they run.
        before: called before Spark knows of a job.
    """

    def __init__(self, *, master="local[6]", slots=6, reason=None, before: Callable[[], object] = lambda: None):
        self.sparkContext = FakeContext(master, slots)
        self.reason, self.before, self.started = reason, before, 0

    def range(self, count):
        return self

    coalesce = range

    def mapInArrow(self, function, schema):
        return self

    def collect(self):
        self.started += 1
        if self.reason is None:
            self.before()
            end = self.sparkContext.jobs[self.sparkContext.tag.name] = threading.Event()
            end.wait()
        return [{"reason": self.reason or "it was cancelled"}]


def task(number):
    return Invocation(number, TaskKey(5, f"lane{number}", "u"), 1, 1, "h", "q", "{}", 0, 0, 1000)


@pytest.fixture
def made():
    """Makes pools that know one handler, without a process that loads it."""
    pools = []

    def make(**options):
        pool, outcomes = SparkPool([], **options), []
        pool._handlers = {"h": HandlerInfo("h", "spark")}
        pool._sink = outcomes.extend
        pools.append(pool)
        return pool, outcomes

    yield make
    for pool in pools:
        pool.stop(drain_s=0)


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("spark-")]


def test_a_session_that_comes_after_the_stop_starts_nothing(made):
    pool, _ = made()
    pool.stop(drain_s=0)
    pool.attach(FakeSession())
    assert threads() == []


def test_executors_that_cannot_connect_here_are_one_error_before_the_first_worker(made):
    pool, _ = made(workers=SparkWorkers(advertise="no-such-host.invalid"))
    session = FakeSession(master="spark://head:7077")
    pool.attach(session)
    failure = eventually(lambda: pool.failure, 30)
    assert "cannot connect to this dispatcher at no-such-host.invalid:" in str(failure)
    assert "is not known there (DNS" in str(failure)
    assert session.started == 0
    assert pool.rooms() == {"spark": 0}


def test_a_task_before_the_session_is_handed_back(made):
    pool, outcomes = made()
    pool.submit([task(1)])
    assert [(one.id, one.outcome) for one in outcomes] == [(1, NOT_STARTED)]


def test_a_pool_whose_port_is_taken_can_be_stopped(made):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        pool, _ = made(workers=SparkWorkers(port=taken.getsockname()[1]))
        with pytest.raises(OSError, match="in use"):
            pool.attach(FakeSession())
    pool.stop(drain_s=0)


def test_the_settings_reach_the_jobs_on_a_cluster(made):
    session = FakeSession(master="spark://head:7077")
    session.sparkContext.getConf = lambda: {"spark.driver.bindAddress": "127.0.0.1", "spark.task.cpus": "3"}
    pool, _ = made(workers=SparkWorkers(advertise="gate.example"))
    pool.attach(session)
    assert (pool._remote.ticket().host, pool._config.children) == ("gate.example", 6)
    chosen, _ = made(workers=SparkWorkers(children=5))
    chosen.attach(session)
    assert chosen._config.children == 5


def test_a_job_that_spark_does_not_know_yet_is_cancelled_once_it_does(made):
    known = threading.Event()
    session = FakeSession(before=known.wait)
    pool, _ = made()
    pool.attach(session)
    pool.submit([task(1)])
    eventually(lambda: session.started, 5, "a job is on its way to Spark")
    threading.Timer(0.5, known.set).start()
    pool.stop(drain_s=0)
    assert threads() == []


def test_a_pool_that_has_failed_starts_no_more_jobs(made):
    session = FakeSession(master="spark://head:7077", reason=BROKEN + "no such module")
    pool, _ = made()
    pool.attach(session)
    eventually(lambda: pool.failure is not None, 5, "executors cannot load the handlers")
    assert not holds(lambda: session.started > 1, within=0.5)


def test_a_worker_that_goes_on_for_long_after_its_drain_drains_no_other():
    """Its job is one that ends, and neither one that starts nor one too many."""
    limits = SparkWorkers(max=8, reserve=2)
    left = [Present("b", "1", 1, 0), Present("c", "1", 1, 0)]
    assert change(limits, 4, left, 0, 1, 9, 0) == Change()
    assert change(limits, 8, left, 0, 4, 9, 0) == Change()
    assert change(limits, 9, left, 0, 4, 9, 0) == Change(1)


def test_jobs_that_wait_for_a_slot_do_not_drain_the_workers_that_run():
    assert change(SparkWorkers(max=8, reserve=2), 3, [Present("a", "1", 1, 0)], 2, 0, 9, 0) == Change()


def test_a_shrunken_cluster_drains_what_is_too_many_and_keeps_the_rest(made):
    session = FakeSession(slots=6)
    pool, _ = made(workers=SparkWorkers(max=3))
    pool.attach(session)
    pool.submit([task(number) for number in range(1, 4)])
    for _ in range(3):
        eventually(lambda: len(pool._jobs) > len(pool._remote.supervisor.workers), 5, "a job is started")
        with pool._remote.lock:
            for worker_id in pool._jobs:
                if worker_id not in pool._remote.supervisor.workers:
                    pool._remote.supervisor.joined(worker_id, HELLO, 1 << 60)
    session.sparkContext.defaultParallelism = 4
    session.sparkContext.master = "spark://head:7077"
    workers = pool._remote.supervisor.workers
    eventually(lambda: any(worker.draining for worker in workers.values()), 5, "one is too many")
    assert not holds(lambda: sum(worker.draining for worker in workers.values()) > 1, within=0.5)
    with pool._remote.lock:
        workers.clear()
