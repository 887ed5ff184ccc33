"""A runner of containers on a real deployment: results, cancels, and a death that only time heals."""

from __future__ import annotations

import signal
import sys
from itertools import count
from pathlib import Path

import pytest

from scylla_spark import Queue
from tests.acceptance.http_api import Wire, joined
from tests.acceptance.place import PATIENCE, Process
from tests.support.container_site import container_site_or_skip, shell
from tests.support.waiting import eventually

QUEUE = "boxes"
_NUMBERS = count()


@pytest.fixture(scope="module")
def site():
    with container_site_or_skip() as found:
        yield found


@pytest.fixture
def wire(deployment, scheduler):
    scheduler.put_queue(Queue(QUEUE, mode="pull"))
    return Wire(deployment.process.ready()["api"])


@pytest.fixture
def runners(site, deployment, wire):
    """Starts runners; whatever becomes of the test, they end."""
    started = []

    def start(*words):
        name = f"runner-{next(_NUMBERS)}"
        program = str(Path(sys.executable).with_name("scylla-spark"))
        command = [program, "worker", "containers", "--url", wire.url, "--queue", QUEUE, "--name", name, *words]
        command += ["--image", site.image, "--podman", site.words]
        started.append(Process(name, command, deployment.folder, deployment.environment))
        joined(wire, started[-1])
        return started[-1]

    yield start
    for process in started:
        if process.running:
            assert process.stop() == 0, process.told()[-3000:]
    eventually(lambda: not site.containers(), PATIENCE, "no container is left", site.containers)


def test_what_a_program_says_is_the_result_of_its_task_and_how_it_exits_its_outcome(wire, runners):
    runners()
    good = wire.put(QUEUE, payload=shell("cat") | {"input": {"n": 21}})
    bad = wire.put(QUEUE, payload=shell("echo first; echo no more password=abc >&2; echo 1 > /out/left.csv; exit 64"))
    wire.becomes(good, "succeeded")
    wire.becomes(bad, "aborted")
    assert wire("GET", f"/v1/tasks/{good}/result")["result"]["input"] == {"n": 21}
    error = wire("GET", f"/v1/tasks/{bad}/result")["error"]
    assert "no more" in str(error)
    lines = eventually(lambda: wire("GET", f"/v1/tasks/{bad}/logs")["lines"], PATIENCE, "lines of the attempt")
    assert {(one["stream"], one["text"]) for one in lines} == {("stdout", "first"), ("stderr", "no more password=***")}
    (file,) = wire("GET", f"/v1/tasks/{bad}/attempts/1/outputs")["outputs"]
    assert (file["name"], file["bytes"]) == ("left.csv", 2)


def test_a_cancel_kills_the_container(site, wire, runners):
    runners()
    task = wire.put(QUEUE, payload=shell("trap '' TERM; sleep 1000"))
    eventually(site.containers, PATIENCE, "it runs")
    assert wire.cancel(task) == "cancelled"
    eventually(lambda: not site.containers(), PATIENCE, "its container is gone", site.containers)
    assert wire.state(task) == "cancelled"


def test_a_task_of_a_runner_that_was_killed_runs_again_and_its_first_container_is_gone(site, wire, runners):
    first = runners("--lease", "2s")
    script = "read task; case $task in *'\"attempt\": 1,'*) sleep 1000 ;; *) echo '[2]' ;; esac"
    task = wire.put(QUEUE, payload=shell(script))
    eventually(site.containers, PATIENCE, "it runs")
    first.signal(signal.SIGKILL)
    eventually(lambda: not site.containers(), PATIENCE, "its container is gone", site.containers)
    runners("--lease", "2s")
    wire.outcomes(task, "timed_out", "succeeded")
    assert wire("GET", f"/v1/tasks/{task}/result")["result"] == [2]
