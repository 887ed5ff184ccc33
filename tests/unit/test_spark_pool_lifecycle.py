"""The Spark pool beside a session that is none: what it starts, ends and leaves behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from pyspark import TaskContext

from scylla_spark.clock import boot_us
from scylla_spark.config.spark_workers import SparkWorkers
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import NOT_STARTED, Invocation
from scylla_spark.errors import ConfigError
from scylla_spark.executors.interface import Shortage
from scylla_spark.executors.remote.handshake import Ticket
from scylla_spark.executors.remote.remote_worker import Held, Hello
from scylla_spark.executors.spark import elastic
from scylla_spark.executors.spark import pool as spark_pool
from scylla_spark.executors.spark.application import count_slots, share_of_overhead
from scylla_spark.executors.spark.elastic import STARVED_US, Change, Present, StarvedStages, change
from scylla_spark.executors.spark.pool import SparkPool
from scylla_spark.executors.spark.worker import BROKEN, WorkerConfig, _at_niceness, executor_id_of, host
from scylla_spark.handlers.description import HandlerInfo
from tests.support.waiting import eventually, holds

HELLO = Hello("1", "host", {"h": ""})


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
        self.cores = 0
        self.waiting_groups = []
        self.leaving = set()
        self.slots = None  # as many as the default parallelism
        self.options = {}
        self.tag = threading.local()

    def getConf(self):
        return {"spark.driver.host": "127.0.0.1"} | self.options

    @property
    def _jsc(self):
        """The JVM: its jobs wait for a slot unless `cores` is set, beside those of other groups."""
        groups = [*(() if self.cores else self.jobs), *self.waiting_groups]
        sets = [
            SimpleNamespace(
                stageId=lambda at=at: at, isZombie=lambda: False, runningTasks=lambda: 0, tasksSuccessful=lambda: 0,
                numTasks=lambda: 1,
                taskSet=lambda group=group: SimpleNamespace(
                    properties=lambda: SimpleNamespace(getProperty=lambda name: group)
                ),
            )
            for at, group in enumerate(groups)
        ]  # fmt: skip
        queue = SimpleNamespace(size=lambda: len(sets), apply=sets.__getitem__)
        manager = SimpleNamespace(defaultResourceProfile=lambda: "default")
        scala = SimpleNamespace(
            maxNumConcurrentTasks=lambda profile: self.defaultParallelism if self.slots is None else self.slots,
            resourceProfileManager=lambda: manager,
            schedulerBackend=lambda: SimpleNamespace(isExecutorActive=lambda one: one not in self.leaving),
            taskScheduler=lambda: SimpleNamespace(
                rootPool=lambda: SimpleNamespace(getSortedTaskSetQueue=lambda: queue)
            ),
        )
        return SimpleNamespace(sc=lambda: scala)

    def parallelize(self, items, slices):
        return FakeData(items)

    def setLocalProperty(self, name, value):
        """Nothing reads it."""

    def setJobGroup(self, group, description):
        """Nothing reads it."""

    def clearJobTags(self):
        """There are none."""

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

    def newSession(self):
        return self

    conf = SimpleNamespace(set=lambda name, value: None)

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
        with pytest.raises(ConfigError, match=r"port \d+: Address already in use"):
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


def test_an_address_of_ipv6_that_spark_writes_in_brackets_is_one_to_listen_on(made):
    session = FakeSession(master="spark://head:7077")
    session.sparkContext.options = {"spark.driver.host": "[::1]"}
    pool, _ = made()
    pool.attach(session)
    ticket = pool._remote.ticket()
    with socket.create_connection((ticket.host, ticket.port), timeout=30) as connection:
        assert connection.family == socket.AF_INET6


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_it_says_that_executors_are_missing_while_a_job_waits_for_a_core(made, monkeypatch):
    monkeypatch.setattr(spark_pool, "_LATE_US", 0)
    monkeypatch.setattr(spark_pool, "_CORES_US", 0)
    warned = []
    monkeypatch.setattr(spark_pool._log, "warning", lambda text, *_: warned.append(text[:28]))
    pool, _ = made()
    assert pool.shortage().why == "Spark's session is not up yet."
    session = FakeSession()
    pool.attach(session)
    assert pool.shortage() == Shortage("No Spark worker runs.", 0)
    pool.submit([task(1)])
    eventually(lambda: pool.shortage().why == "No Spark executor has a free core for a Spark worker.", 5)
    assert pool.figures().without_core == 1
    assert warned == ["Spark executors are missing:"]
    session.sparkContext.cores = 1
    eventually(lambda: pool.shortage() == Shortage("A Spark worker is being started.", 0), 5)
    with pool._remote.lock:
        pool._remote.supervisor.joined(next(iter(pool._jobs)), HELLO, 1 << 60)
        (worker,) = pool._remote.supervisor.workers.values()
        worker.lacks = ["new"]
    assert pool.shortage().handlers == {"new"}
    with pool._remote.lock:
        worker.lacks = []
    assert pool.shortage() is None
    assert pool.figures().states == {"running": 1, "starting": 0, "draining": 0}
    (row,) = pool.workers()
    assert (row["executor"], row["host"], row["state"], row["tasks"]) == ("1", "host", "running", 0)
    assert (pool.drain("nobody"), pool.drain(row["worker"])) == (False, True)
    assert [one["state"] for one in pool.workers()] == ["draining"]
    with pool._remote.lock:
        pool._remote.supervisor.workers[row["worker"]].held[1] = Held(task(1), "spark", 0)
    assert pool.shortage() == Shortage("No Spark worker runs.", 0, frozenset({1}))
    with pool._remote.lock:
        pool._remote.supervisor.workers.clear()


def test_starts_and_ends_are_counted_by_their_cause(made):
    pool, _ = made()
    pool.attach(FakeSession(reason="it was drained"))
    pool.submit([task(1)])
    eventually(lambda: pool.figures().ends == {"drained": 1} and pool.figures().starts, 5, "a worker has ended")


@pytest.mark.parametrize(
    "said",
    [
        "ExecutorLostFailure (executor 1 exited) Reason: Container killed by YARN for exceeding physical memory limits.",
        "The executor with id 7 exited with exit code 137(SIGKILL, possible container OOM).",
    ],
)
def test_a_container_that_was_killed_for_memory_is_named_as_such_also_by_the_attempts_lost_with_it(made, said):
    pool, outcomes = made()
    pool.attach(FakeSession(reason=said))
    ticket = pool._remote.ticket()
    with pool._remote.lock:
        supervisor = pool._remote.supervisor
        supervisor.joined(ticket.worker_id, HELLO, 1 << 60)
        worker = supervisor.workers[ticket.worker_id]
        worker.held[1] = Held(task(1), "spark", 0)
        supervisor._backlogs["spark"].add([task(1)])
        supervisor._backlogs["spark"].take()
    pool._start_job(ticket)
    eventually(lambda: not worker.has_job, 5, "its job has ended")
    worker.leased_until_us = 0
    eventually(lambda: outcomes, 5, "its lease has ended")
    assert pool.figures().ends["out_of_memory"] >= 1
    assert "too much memory" in outcomes[0].failure.message
    assert pool.figures().events["lost_workers"] == 1


def test_workers_that_die_again_and_again_are_started_ever_more_rarely(made):
    pool, _ = made()
    pool.attach(FakeSession(reason="its process has died"))
    for least_s in (2, 4, 8, 16, 32, 60, 60):
        begun, before_us = boot_us(), pool._start_from_us
        pool._start_job(pool._remote.ticket())
        next_us = eventually(lambda before_us=before_us: pool._start_from_us > before_us and pool._start_from_us, 5)
        assert begun + least_s * 1_000_000 <= next_us <= boot_us() + 60_000_000


@pytest.mark.slow
def test_a_worker_of_a_dead_executor_is_none_to_rely_on_and_costs_no_other_its_work(made):
    session = FakeSession(master="spark://head:7077", slots=5)
    pool, _ = made(workers=SparkWorkers(max=2))
    pool.attach(session)
    pool.submit([task(number) for number in range(1, 4)])
    eventually(lambda: pool._jobs, 5, "a job is started")
    with pool._remote.lock:
        supervisor = pool._remote.supervisor
        supervisor.joined("living", HELLO, 1 << 60)
        supervisor.joined("dead", HELLO, 1 << 60)
        supervisor.cut("dead")
        living = supervisor.workers["living"]
    session.sparkContext.defaultParallelism = 3
    assert not holds(lambda: living.draining, within=0.5)
    with pool._remote.lock:
        supervisor.workers.clear()


def test_a_master_that_runs_one_task_at_a_time_is_refused(made):
    pool, _ = made()
    with pytest.raises(ConfigError, match=r"local\[1\] runs one task at a time"):
        pool.attach(FakeSession(master="local[1]", slots=1))
    assert change(SparkWorkers(max=8), 1, [], 0, 0, 9, 0) == Change()


def test_a_master_that_runs_one_task_at_a_time_does_where_no_handler_asks_for_spark(made):
    pool, _ = made()
    pool._handlers = {"h": HandlerInfo("h")}
    pool.attach(FakeSession(master="local[1]", slots=1))
    eventually(lambda: pool.rooms() == {"spark": 0}, 5, "it starts no worker")


def test_a_limit_of_memory_for_python_processes_is_refused_by_name(made):
    pool, session = made()[0], FakeSession()
    session.sparkContext.options["spark.executor.pyspark.memory"] = "2g"
    with pytest.raises(ConfigError, match=r"spark\.executor\.pyspark\.memory is 2g"):
        pool.attach(session)


def test_a_master_that_starts_every_long_task_twice_is_refused_by_name(made):
    pool, session = made()[0], FakeSession()
    session.sparkContext.options["spark.speculation.task.duration.threshold"] = "10min"
    session.sparkContext.options["spark.speculation"] = "true"
    with pytest.raises(ConfigError, match=r"task\.duration\.threshold is 10min"):
        pool.attach(session)
    session.sparkContext.options["spark.speculation"] = "false"
    pool.attach(session)


def test_slots_are_those_that_run_tasks_and_not_the_number_of_partitions_that_a_user_has_set():
    context = FakeContext("spark://head:7077", slots=200)
    context.slots = 4
    assert count_slots(context) == 4


@pytest.mark.parametrize(
    ("master", "options", "slots"),
    [
        ("yarn", {"spark.executor.cores": "4", "spark.task.cpus": "2"}, 2**31 - 1),
        ("yarn", {"spark.dynamicAllocation.maxExecutors": "3"}, 3),
        ("yarn", {"spark.dynamicAllocation.maxExecutors": "3", "spark.executor.cores": "4", "spark.task.cpus": "2"}, 6),
        ("yarn", {"spark.dynamicAllocation.maxExecutors": "1"}, 2),
        ("local[4]", {"spark.dynamicAllocation.maxExecutors": "8"}, 0),
    ],
)
def test_slots_of_a_cluster_that_adds_executors_are_those_of_all_that_it_may_have(master, options, slots):
    context = FakeContext(master, slots=200)
    context.slots = 0
    context.options = {"spark.dynamicAllocation.enabled": "true"} | options
    assert count_slots(context) == slots
    wanted = change(SparkWorkers(max=4, reserve=2), count_slots(context), [], 0, 0, 50, 0)
    assert wanted.start == min(4, max(0, slots - 2) or int(slots > 1), 1)


def with_workers(made, executors):
    """A pool with a connected worker on each of these executors, none of which has an attempt, and its session."""
    session = FakeSession(slots=len(executors) + 2)
    pool, _ = made(workers=SparkWorkers(min=len(executors)))
    pool.attach(session)
    eventually(lambda: len(pool._jobs) == len(executors), 5, "the jobs are started")
    with pool._remote.lock:
        for worker_id, executor in zip(pool._jobs, executors, strict=True):
            pool._remote.supervisor.joined(worker_id, Hello(executor, "host", {"h": ""}), 1 << 60)
    return pool, session


def draining(pool):
    with pool._remote.lock:
        return [one.hello.executor_id for one in pool._remote.supervisor.workers.values() if one.draining]


@pytest.fixture
def always_asked(monkeypatch):
    monkeypatch.setattr(spark_pool, "_CORES_US", 0)


@pytest.mark.promise
def test_while_a_stage_of_a_query_has_waited_long_for_a_slot_the_emptiest_worker_ends(made, monkeypatch, always_asked):
    stages = StarvedStages()
    assert [stages.note([8], now) for now in (0, STARVED_US - 1, STARVED_US)] == [False, False, True]
    assert not stages.note([], STARVED_US + 1), "it runs"
    assert not stages.note([8], STARVED_US + 2), "it waits anew"
    there = [Present("a", "1", 3, 0), Present("b", "2", 1, 0), Present("c", "3", 2, 0)]
    assert change(SparkWorkers(max=8), 8, there, 0, 0, 50, 0, starved=True) == Change(drain=("b",))
    assert change(SparkWorkers(max=8), 8, there, 0, 1, 50, 0, starved=True) == Change()
    pool, session = with_workers(made, ["1", "2"])
    monkeypatch.setattr(elastic, "STARVED_US", 0)
    assert not holds(lambda: draining(pool), within=0.5), "the stages of its own jobs may wait"
    session.sparkContext.waiting_groups = ["query"]
    eventually(lambda: len(draining(pool)) == 1, 5)
    assert not holds(lambda: len(draining(pool)) > 1, within=0.5), "its job has not ended yet"
    with pool._remote.lock:
        pool._remote.supervisor.workers.clear()


def test_a_worker_of_an_executor_that_is_decommissioned_gets_no_new_work_and_ends(made, always_asked):
    pool, session = with_workers(made, ["1", "2", "driver"])
    session.sparkContext.leaving = {"2", "driver"}
    eventually(lambda: draining(pool) == ["2"], 5, "and the driver is not decommissioned")
    with pool._remote.lock:
        pool._remote.supervisor.workers.clear()


@pytest.mark.parametrize(
    ("master", "options", "mib"),
    [
        ("spark://m:7077", {}, None),
        ("spark://m:7077", {"spark.executor.memoryOverhead": "1g", "spark.executor.cores": "4"}, 256),
        ("yarn", {}, 384),
        ("yarn", {"spark.executor.memory": "20g"}, 2048),
        (
            "k8s://https://m",
            {"spark.executor.memory": "10240", "spark.executor.cores": "4", "spark.task.cpus": "2"},
            2048,
        ),
    ],
)
def test_a_worker_may_use_its_share_of_the_memory_overhead(master, options, mib):
    context = FakeContext(master, 4)
    context.options = options
    assert share_of_overhead(context) == (None if mib is None else mib << 20)


def test_handlers_run_at_the_niceness_of_the_dispatcher_where_that_may_be_set():
    found = []

    def host():  # in a thread of its own, which cannot become less nice again without root
        os.setpriority(os.PRIO_PROCESS, 0, 5)
        with _at_niceness(0):
            found.append(os.getpriority(os.PRIO_PROCESS, 0))
        found.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=host)
    thread.start()
    thread.join()
    assert found == [0 if os.geteuid() == 0 else 5, 5]


def test_the_executor_is_named_by_the_command_line_of_an_ancestor():
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", "--executor-id", "7", "--cores", "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as backend:
        backend.stdout.readline()
        assert executor_id_of(backend.pid) == "7"
        assert executor_id_of(os.getpid()) == "driver"
        backend.communicate(b"\n")


def test_a_task_that_spark_tries_again_hosts_no_worker(monkeypatch):
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: 1))
    (batch,) = host([], WorkerConfig(("nowhere.py",), 1, 1.0), Ticket("w", b"", "127.0.0.1", 9, b"", 1))
    assert batch.to_pylist() == [{"reason": "Spark tried its task again"}]
