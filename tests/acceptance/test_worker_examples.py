"""The workers of `examples/` and one in an environment without any package, each draining a queue of a real deployment."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.place import PATIENCE, ROOT
from tests.acceptance.test_workers import PROGRAM, pull_queue, succeeded
from tests.acceptance.wire import Wire, children
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance
TASKS = 200


@pytest.fixture
def wire(deployment):
    return Wire(deployment.process.ready()["api"])


@pytest.fixture
def queue(scheduler, wire):
    return pull_queue(scheduler, wire)


@pytest.fixture
def start(deployment):
    """Starts a program; whatever becomes of the test, it ends."""
    started = []

    def begin(*command):
        log = (deployment.folder / f"example-{len(started)}.log").open("wb")
        with log:
            started.append(subprocess.Popen(command, cwd=deployment.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log))  # fmt: skip
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            for pid in children(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait(10)


def needs(program):
    """Where a program is that CI installs."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed here")
    return found


def drained(place, wire, queue, process, prefix):
    """A worker has done all its tasks, and stops when it is told to."""
    wire.put_all(queue, TASKS, prefix, payload={"n": 21})
    found = succeeded(place, prefix, TASKS)
    assert {row["result"] for row in found.values()} == {'{"doubled":42}'}
    assert {row["attempt"] for row in found.values()} == {1}
    if process is not None:
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE)
    return 0


def long_one(wire, queue, lease_s=1):
    """A task that takes longer than its lease: only heartbeats keep it."""
    return wire.put(queue, payload={"n": 21, "ms": 3_500})


def test_the_worker_in_javascript_drains_a_queue(deployment, scheduler, wire, start):
    queue = pull_queue(scheduler, wire, lease="1s")
    process = start(needs("node"), str(ROOT / "examples" / "worker.mjs"), wire.url, queue, "8")
    kept = long_one(wire, queue)
    assert drained(deployment, wire, queue, None, f"{queue}-") == 0
    eventually(lambda: wire.state(kept) == "succeeded", PATIENCE)
    assert len(wire.attempts(kept)) == 1, "heartbeats kept it"
    cancelled_while_it_runs(wire, queue)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_the_worker_in_go_drains_a_queue(deployment, scheduler, wire, start, tmp_path):
    queue = pull_queue(scheduler, wire, lease="1s")
    program = str(tmp_path / "worker")
    build = [needs("go"), "build", "-o", program, str(ROOT / "examples" / "worker.go")]
    environment = os.environ | {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    subprocess.run(build, check=True, capture_output=True, cwd=tmp_path, env=environment, timeout=PATIENCE)
    process = start(program, wire.url, queue, "8")
    kept = long_one(wire, queue)
    assert drained(deployment, wire, queue, None, f"{queue}-") == 0
    eventually(lambda: wire.state(kept) == "succeeded", PATIENCE)
    assert len(wire.attempts(kept)) == 1, "heartbeats kept it"
    cancelled_while_it_runs(wire, queue)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def cancelled_while_it_runs(wire, queue):
    """A cancel ends a task that runs, and the worker lets go of it: it has room for the next."""
    task = wire.put(queue, payload={"ms": 60_000})
    eventually(lambda: wire.state(task) == "running", PATIENCE)
    assert wire.cancel(task) == "cancelled"
    (mine,) = [one for one in wire("GET", "/v1/workers") if queue in str(one) or one["leases"] >= 0][:1]
    assert mine is not None
    eventually(lambda: all(one["leases"] == 0 for one in wire("GET", "/v1/workers")), PATIENCE, "nothing is held")


def test_the_worker_in_shell_does_what_it_is_asked_for(wire, queue, start):
    needs("jq")
    needs("curl")
    tasks = [wire.put(queue, payload={"n": n}) for n in range(3)]
    process = start("bash", str(ROOT / "examples" / "curl.sh"), wire.url, queue, "3")
    assert process.wait(PATIENCE) == 0
    assert [wire("GET", f"/v1/tasks/{task}/result")["result"] for task in tasks] == [{"doubled": 2 * n} for n in range(3)]  # fmt: skip


def test_a_worker_needs_python_and_our_wheel_and_nothing_else(deployment, wire, queue, tmp_path):
    uv = str(Path(sys.executable).with_name("uv"))

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    offline = ("--offline", "--quiet")
    run(
        uv,
        "build",
        *offline,
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "-o",
        str(tmp_path),
        str(ROOT),
    )
    run(uv, "venv", *offline, "--python", sys.executable, str(tmp_path / "bare"))
    python = str(tmp_path / "bare" / "bin" / "python")
    (wheel,) = tmp_path.glob("*.whl")
    run(uv, "pip", "install", *offline, "--no-deps", "--python", python, str(wheel))
    loaded = run(
        python, "-I", "-c", "import scylla_spark, sys; scylla_spark.Worker; print(*sorted(sys.modules))"
    ).split()
    assert {"pydantic", "pydantic_core", "kafka", "polars", "pyspark", "typer"} & set(loaded) == set()
    prefix = f"{queue}-"
    wire.put_all(queue, 50, prefix)
    told = run(python, "-I", "-c", PROGRAM, wire.url, queue, "bare")
    assert len(told.splitlines()) == 50
    assert len(succeeded(deployment, prefix, 50)) == 50
