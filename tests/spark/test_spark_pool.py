"""The Spark pool on local[2]: the conformance suite, and what only this pool promises."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from scylla_spark.config.spark_workers import SparkWorkers
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.doctor import _examine_executors
from scylla_spark.errors import SetupError
from scylla_spark.executors.interface import LogTerms
from scylla_spark.executors.spark import worker as spark_worker
from scylla_spark.executors.spark.application import waiting_for_slots
from scylla_spark.executors.spark.pool import SparkPool
from scylla_spark.executors.spark.probe import check_executors
from scylla_spark.executors.spark.worker import WorkerConfig
from tests.support.executor_conformance import (
    BATCH_HANDLERS,
    GRACE_S,
    HANDLERS,
    ExecutorConformance,
    Running,
    invocation,
)
from tests.support.processes import alive, parent_of
from tests.support.waiting import eventually, holds

HOSTILE = str(Path(HANDLERS).with_name("hostile_handlers.py"))


class Kept:
    """A LogKeeper that keeps the frames it hears of."""

    def __init__(self):
        self.frames = []

    def open(self, child):
        raise AssertionError("children of the Spark pool are on executors")

    def close(self, child):
        raise AssertionError("children of the Spark pool are on executors")

    def terms(self):
        return LogTerms(4_096, 128 * 1024, 1_024)

    def hear(self, children):
        self.frames += [json.loads(frame) for frames in children for frame in frames]

    def lines_of(self, lane):
        """The texts under a task with this ordering id."""
        numbers = {frame[1] for frame in self.frames if frame[0] == "begin" and frame[3] == lane}
        return [frame[6] for frame in self.frames if frame[0] == "line" and frame[1] in numbers]


@pytest.fixture(scope="module")
def kept():
    return Kept()


@pytest.fixture(scope="module")
def running(spark, kept, tmp_path_factory):
    pool = SparkPool([HANDLERS, BATCH_HANDLERS], kill_grace_s=GRACE_S)
    pool.keep_logs(kept)
    pool.keep_outputs(OutputTerms(str(tmp_path_factory.mktemp("outputs")), 8, 4_000_000))
    pool.attach(spark)
    running = Running(pool, slack_s=20)
    yield running
    pool.stop(drain_s=0)


class Ended:
    """A session whose JVM was killed."""

    class sparkContext:
        master = "local[2]"
        defaultParallelism = 2

        @staticmethod
        def setLocalProperty(name, value):
            """It was alive then."""

        @staticmethod
        def clearJobTags():
            raise ConnectionRefusedError("nobody listens")

        @staticmethod
        def getConf():
            return {}

    conf = SimpleNamespace(set=lambda name, value: None)

    @classmethod
    def newSession(cls):
        return cls


def test_a_session_that_has_ended_ends_the_pool_and_leaves_no_task_hanging(spark):
    pool, outcomes = SparkPool([HANDLERS]), []
    pool.start(outcomes.extend)
    pool.attach(Ended())
    assert pool.rooms()["spark"] > 0
    first, second = invocation("noop"), invocation("noop")
    pool.submit([first])
    eventually(lambda: pool.failure is not None, 10, "the pool says that it can run nothing")
    assert pool.rooms()["spark"] == 0
    pool.submit([second])
    pool.stop(drain_s=0)
    assert [(one.id, one.outcome) for one in outcomes] == [(first.id, "not_started"), (second.id, "not_started")]


@pytest.fixture
def bare_python(spark, tmp_path, monkeypatch):
    """Executors have a Python without this package."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['scylla_spark'] = None\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))


def test_executors_without_this_package_are_one_error_at_the_start(spark, bare_python):
    with pytest.raises(
        SetupError, match=r"executors of local.* cannot run this package: ModuleNotFoundError.*scylla_spark"
    ):
        check_executors(spark, threading.Event())


def test_executors_with_this_package_pass(spark):
    check_executors(spark, threading.Event())


def test_doctor_names_what_it_found_of_executors(spark):
    checks = _examine_executors(spark, SparkWorkers())
    assert [(check.name, check.ok) for check in checks] == [("executors", True), ("way back", True), ("slots", True)]
    lost = _examine_executors(spark, SparkWorkers(advertise="no-such-host.invalid"))[1]
    assert not lost.ok
    assert "'no-such-host.invalid' is not known there (DNS" in lost.detail


def test_a_check_that_no_executor_takes_ends_with_the_stop(spark):
    stop = threading.Event()
    stop.set()
    check_executors(Unanswered(), stop)


def test_jobs_that_wait_for_a_slot_are_named_by_the_scheduler_and_those_that_run_are_not(spark, tmp_path):
    gate, context = tmp_path / "gate", spark.sparkContext
    wanted = {f"job-{number}" for number in range(8)}  # more than local[2] has slots

    def run(group):
        def wait(name, folder=str(tmp_path)):  # pickled with all that it needs
            import pathlib
            import time

            (pathlib.Path(folder) / name).touch()
            while not (pathlib.Path(folder) / "gate").exists():
                time.sleep(0.01)

        context.setJobGroup(group, "waits for a gate")
        context.parallelize([group], 1).map(wait).collect()

    jobs = [threading.Thread(target=run, args=(group,), daemon=True) for group in wanted]
    for job in jobs:
        job.start()

    def shared_out():
        begun = {file.name for file in tmp_path.iterdir()}
        waiting = wanted.intersection(one.group for one in waiting_for_slots(context))
        return begun and waiting and begun | waiting == wanted and not begun & waiting

    eventually(shared_out, 60, "each job runs or waits")
    gate.touch()
    for job in jobs:
        job.join(30)
    assert wanted.isdisjoint(one.group for one in waiting_for_slots(context))


class Unanswered:
    """A session whose cluster has no executor."""

    class sparkContext:
        master = "spark://nowhere:7077"
        parallelize = staticmethod(lambda *_: threading.Event().wait())


@pytest.fixture
def broken(spark):
    """Starts a pool whose handlers load here and not on the executors."""
    pools = []

    def start(module, attached=spark):
        pool, outcomes = SparkPool([str(module)]), []
        pools.append(pool)
        pool.start(outcomes.extend)
        if module.parent != Path(HANDLERS).parent:
            module.unlink()
        pool.attach(attached)
        return pool, outcomes

    yield start
    for pool in pools:
        pool.stop(drain_s=0)


def check_unused(pool, outcomes):
    call = invocation("noop")
    pool.submit([call])
    eventually(lambda: pool.failure is not None, 60, "the pool says that it can run nothing")
    assert isinstance(pool.failure, SetupError)
    eventually(
        lambda: [(one.id, one.outcome) for one in outcomes] == [(call.id, "not_started")], 10, "no attempt is used"
    )
    assert pool.rooms()["spark"] == 0
    return str(pool.failure)


def test_handlers_that_an_executor_lacks_use_up_no_attempt_and_end_the_pool(broken, tmp_path):
    module = tmp_path / "only_here.py"
    shutil.copy(HANDLERS, module)
    assert "only_here.py" in check_unused(*broken(module))


def test_an_executor_without_this_package_uses_up_no_attempt_and_ends_the_pool(broken, bare_python):
    assert "ModuleNotFoundError: No module named 'scylla_spark" in check_unused(*broken(Path(HANDLERS)))


def test_on_a_cluster_an_executor_loads_the_handlers_before_a_task_is_taken(broken, tmp_path, spark):
    module = tmp_path / "only_here.py"
    shutil.copy(HANDLERS, module)
    pool, outcomes = broken(module, OnCluster(spark))
    eventually(lambda: pool.failure is not None, 60, "the handlers are loaded on an executor")
    assert ("only_here.py" in str(pool.failure), pool.rooms()["spark"], outcomes) == (True, 0, [])
    pool, outcomes = broken(Path(HANDLERS), OnCluster(spark))
    eventually(lambda: pool.rooms()["spark"], 60, "tasks are taken after the check")
    call = invocation("noop")
    pool.submit([call])
    eventually(lambda: [(one.id, one.outcome) for one in outcomes] == [(call.id, "succeeded")], 60)


class OnCluster:
    """A session that says that its executors are on other machines."""

    def __init__(self, spark):
        self._spark = spark
        self.sparkContext = OnCluster.Context(spark.sparkContext)

    def __getattr__(self, name):
        return getattr(self._spark, name)

    class Context:
        master = "spark://head:7077"

        def __init__(self, context):
            self._context = context

        def __getattr__(self, name):
            return getattr(self._context, name)


class TestSparkPoolConforms(ExecutorConformance):
    keeps_outputs = True


def test_what_a_handler_prints_comes_with_its_outcome(running, kept):
    kept.frames.clear()
    assert running.one("print", "ü on an executor", lane="printing").outcome == "succeeded"
    assert kept.lines_of("printing") == ["ü on an executor"]
    assert kept.frames[-1][0] == "end"


def test_the_last_lines_of_a_handler_whose_process_died_come_with_its_outcome(running, kept):
    kept.frames.clear()
    assert running.one("print_and_die", "last words", lane="dying").failure.kind == "child_died"
    assert kept.lines_of("dying") == ["last words"]


@pytest.mark.promise
def test_handlers_of_a_worker_see_no_setting_of_ours(monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_KAFKA__SASL_PASSWORD", "canary-3f9a")
    monkeypatch.setenv("SPARK_AUTH_SECRET", "canary-3f9a")
    monkeypatch.setenv("AWS_REGION", "here")
    pool = spark_worker.pool_of(WorkerConfig((HOSTILE,), 1, GRACE_S, pass_environment=("AWS_*",)), None, "1")
    running = Running(pool)
    one = running.one("surroundings")
    pool.stop(drain_s=0)
    assert "canary-3f9a" not in one.result
    assert json.loads(one.result)["environment"]["AWS_REGION"] == "here"


def look_at_processes(spark, folder):
    """Process id → threads, children, kinds of descriptors and signal handlers, of Python processes of Spark: two at least."""

    def look(batches):
        import collections
        import os
        import re
        import signal
        import threading
        import time
        from pathlib import Path

        import pyarrow as pa

        for _ in batches:
            pass
        me = os.getpid()
        (Path(folder) / str(me)).touch()
        until = time.monotonic() + 5
        while (
            len(list(Path(folder).iterdir())) < 2 and time.monotonic() < until
        ):  # so that there is another to compare with
            time.sleep(0.01)
        targets = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                target = os.readlink(entry)
            except OSError:
                continue  # that of the folder itself
            if not os.path.isfile(target):  # importlib.metadata keeps archives open
                targets.append(target)
        kinds = collections.Counter(re.sub(r"[:(]\W*\d+\W*$", "", target) for target in targets)
        state = (
            [thread.name for thread in threading.enumerate()],
            [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()],
            sorted(kinds.items()),
            [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        )
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps([me, *state])])], names=["told"])

    rows = spark.range(0, 4, 1, 4).mapInArrow(look, "told string").collect()
    return {told[0]: told[1:] for told in (json.loads(row["told"]) for row in rows)}


def cancel_job(context, worker_id):
    """Does what "kill" in Spark's UI does to the job of a worker."""
    for job in context.statusTracker().getJobIdsForGroup(f"scylla-spark-worker-{worker_id}"):
        context._jsc.sc().cancelJob(job)


class TestSparkPool:
    def test_handlers_are_known_without_importing_them_here(self, running):
        handlers = running.executor.handlers()
        assert handlers["batch_arrow"].max_batch == 100
        assert handlers["versioned"].name == "versioned@2"

    def test_python_worker_keeps_its_children_between_jobs(self, running):
        pids = {running.one("pid").result for _ in range(6)}
        assert len(pids) <= 4

    def test_children_run_at_the_niceness_of_local_ones_where_that_may_be_set(self, running):
        niceness = int(running.one("niceness").result)
        assert niceness == os.getpriority(os.PRIO_PROCESS, 0) or os.geteuid() != 0

    def test_a_handler_and_its_outcome_name_executor_and_host(self, running):
        outcome = running.one("place")
        assert json.loads(outcome.result) == [socket.gethostname(), "driver"]
        assert outcome.work.worker == f"executor driver on {socket.gethostname()}"

    def test_who_interrupts_a_cell_of_a_notebook_ends_no_worker(self, spark, tmp_path):
        context, gate = spark.sparkContext, tmp_path / "gate"
        context.setJobGroup("cell", "a cell of a notebook")
        context.addJobTag("cell")
        running = Running(SparkPool([HANDLERS], workers=SparkWorkers(max=1, children=1)), slack_s=100)
        try:
            running.executor.attach(spark)
            call = invocation("wait_for_file", str(gate))
            running.executor.submit([call])
            eventually(lambda: running.executor.running(), 120, "the call runs")
            worker_id = next(iter(running.executor._jobs))
            context.cancelJobsWithTag("cell")
            context.cancelJobGroup("cell")
            spark.interruptAll()
            context.setJobGroup("other", "a later cell")
            spark.range(1).collect()  # Spark has obeyed what came before
            gate.touch()
            assert running.wait([call])[0].outcome == "succeeded"
            assert [*running.executor._jobs] == [worker_id]
        finally:
            context.clearJobTags()
            running.executor.stop(drain_s=0)

    def test_the_python_process_of_a_worker_is_as_it_was_after_its_end(self, spark, tmp_path):
        """Spark gives it to other tasks."""
        running = Running(SparkPool([HANDLERS], workers=SparkWorkers(max=1, children=1)), slack_s=100)
        try:
            running.executor.attach(spark)
            child = int(running.one("pid").result)
            worker = parent_of(parent_of(child))
            remote = running.executor._remote
            with remote.lock:
                for drained in remote.supervisor.workers.values():
                    drained.drain()
            remote.submit([])
            eventually(lambda: not running.executor._jobs, 60, "its task ends")
        finally:
            running.executor.stop(drain_s=0)
        assert not alive(child)
        states = {}

        def look():
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            states.update(look_at_processes(spark, str(folder)))
            return worker in states and len(states) > 1

        eventually(look, 60, "a task runs in that process", lambda: (worker, states))
        threads, below, *rest = states.pop(worker)
        assert (threads, below) == (["MainThread"], [])
        assert rest in [state[2:] for state in states.values()]

    @pytest.mark.parametrize("how", ["its handler kills it", "a user kills its job"])
    def test_a_killed_worker_costs_its_attempts_and_none_of_another_dispatcher_in_the_application(
        self, spark, running, tmp_path, how
    ):
        gate, other = tmp_path / "gate", invocation("wait_for_file", str(tmp_path / "gate"))
        running.executor.submit([other])
        limits = SparkWorkers(max=1, children=1)
        mine = Running(SparkPool([HANDLERS], workers=limits, kill_grace_s=GRACE_S, lease_s=3.0), slack_s=100)
        try:
            mine.executor.attach(spark)
            call = invocation("kill_worker", str(tmp_path / "now"))
            mine.executor.submit([call])
            eventually(mine.executor.running, 120, "its start is reported")
            if how == "its handler kills it":
                (tmp_path / "now").touch()
            else:
                cancel_job(spark.sparkContext, next(iter(mine.executor._jobs)))
            (lost,) = mine.wait([call])
            assert (lost.outcome, lost.failure.kind) == ("failed", "executor_lost")
            assert mine.one("noop").outcome == "succeeded", "another worker has started"
            assert other.id in running.executor.running()
            gate.touch()
            assert running.wait([other])[0].outcome == "succeeded"
        finally:
            gate.touch()
            mine.executor.stop(drain_s=0)

    def test_stop_cancels_what_does_not_finish_and_hands_back_the_rest(self, spark, tmp_path):
        running = Running(SparkPool([HANDLERS], workers=SparkWorkers(max=1, children=1), kill_grace_s=GRACE_S))
        running.executor.attach(spark)
        calls = [invocation("stubborn", str(tmp_path / "begun")), invocation("noop")]
        running.executor.submit(calls)
        assert holds((tmp_path / "begun").exists, within=60)
        running.executor.stop(drain_s=0.1)
        hanging, waiting = running.wait(calls, within=0)
        assert (hanging.outcome, hanging.failure.kind) == ("failed", "executor_stopped")
        assert waiting.outcome == "not_started"

    def test_killed_task_is_reported_when_its_process_is_dead(self, running, tmp_path):
        mark = tmp_path / "pid"
        call = invocation("mark_pid_and_hang", str(mark))
        running.executor.submit([call])
        assert holds(lambda: mark.exists() and mark.read_text().endswith("\n"), within=60)
        running.executor.kill([call.id])
        assert running.wait([call])[0].outcome == "timed_out"
        assert holds(lambda: not alive(int(mark.read_text())))
