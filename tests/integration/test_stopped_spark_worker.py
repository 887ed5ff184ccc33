"""The process of a Spark worker that is stopped, loses its parent or ends: its handlers are dead in time, and no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scylla_spark.executors.remote.pool import RemotePool
from scylla_spark.executors.remote.resident import ORPHANED
from scylla_spark.executors.remote.supervisor import LOST, RemoteTerms
from scylla_spark.executors.spark.worker import SPARK
from scylla_spark.handlers.description import HandlerInfo
from tests.support.executor_conformance import GRACE_S, HANDLERS, Running, invocation
from tests.support.freezing import freeze
from tests.support.processes import alive, children, descendants
from tests.support.waiting import eventually

TERMS = RemoteTerms(lease_us=5_000_000, kill_us=round((GRACE_S + 1) * 1e6))
ROOT = Path(__file__).parents[2]
WORKER = [sys.executable, "-m", "tests.support.spark_worker_process"]


class Listening(RemotePool):
    """A pool that does not load the handlers here."""

    def handlers(self):
        return {}


@pytest.fixture
def running():
    names = ("mark_pid_and_hang", "noop")
    pool = Listening(TERMS, {name: HandlerInfo(name, SPARK) for name in names}, host="127.0.0.1", advertise="127.0.0.1")
    running = Running(pool)
    yield running
    pool.stop(drain_s=0)


@pytest.fixture
def start(running):
    """Starts a worker, perhaps below another command; returns its process."""
    started = []

    def start(*before):
        process = subprocess.Popen(
            [*before, *WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, process_group=0
        )
        started.append(process)
        ticket = running.executor.ticket()
        told = [*ticket[:1], ticket.key.hex(), *ticket[2:4], ticket.certificate.hex(), ticket.lease_us]
        process.stdin.write(json.dumps({"ticket": told, "modules": [HANDLERS], "kill_grace_s": GRACE_S}))
        process.stdin.close()
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def hanging(running, tmp_path, count=1):
    """Calls that hang, one on each of so many workers, and the processes that they are in."""
    pool = running.executor
    eventually(lambda: sum(one.room(SPARK) > 0 for one in pool.supervisor.workers.values()) == count, 60, "workers")
    marks = [tmp_path / f"pid{number}" for number in range(count)]
    calls = [invocation("mark_pid_and_hang", str(mark)) for mark in marks]
    pool.submit(calls)
    eventually(lambda: all(mark.exists() and mark.read_text().endswith("\n") for mark in marks), 60, "calls run")
    eventually(lambda: len(pool.running()) == count, 10, "their starts are reported")
    return calls, [int(mark.read_text()) for mark in marks]


@pytest.mark.promise
def test_handlers_of_a_stopped_worker_are_dead_before_they_are_reported_as_lost(running, start, tmp_path):
    workers = [start(), start()]
    calls, handlers = hanging(running, tmp_path, count=2)
    below = [pid for worker in workers for pid in descendants(worker.pid)]
    for worker in workers:
        freeze(worker.pid)
    freeze(next(pid for pid in children(workers[0].pid) if children(pid)))  # this one cannot end its children, either
    lost = running.wait(calls)
    assert ([one.failure.kind for one in lost], [*map(alive, handlers)]) == ([LOST] * 2, [False] * 2)
    assert [worker.wait(10) for worker in workers] == [-signal.SIGKILL] * 2
    eventually(lambda: not any(map(alive, below)), 10, "no process is left", lambda: [*filter(alive, below)])


def test_a_worker_whose_parent_has_ended_ends_its_handlers_and_itself(running, start, tmp_path):
    shell = start("sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh")
    (call,), (handler,) = hanging(running, tmp_path)
    below = descendants(shell.pid)
    shell.kill()
    shell.wait()
    (ended,) = running.wait([call])
    assert (ended.outcome, alive(handler), shell.stdout.read()) == ("failed", False, f"{ORPHANED}\n")
    eventually(lambda: not any(map(alive, below)), 10, "no process is left", lambda: [*filter(alive, below)])


def test_a_worker_that_is_drained_leaves_no_process(running, start):
    worker = start()
    assert running.run(invocation("noop"), within=60)[0].outcome == "succeeded"
    below = descendants(worker.pid)
    with running.executor.lock:
        (remote,) = running.executor.supervisor.workers.values()
        remote.drain()
    running.executor.submit([])
    assert worker.stdout.read() == "it was drained\n"
    assert worker.wait(10) == 0
    assert not any(map(alive, below))
