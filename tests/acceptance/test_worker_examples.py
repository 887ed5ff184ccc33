"""The workers of `examples/` and one in an environment without any package, each draining a queue of a real deployment."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.http_api import Wire
from tests.acceptance.place import PATIENCE, ROOT
from tests.acceptance.test_workers import PROGRAM, pull_queue, succeeded
from tests.support.missing_package import absent
from tests.support.processes import children

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
        absent(f"{program} is not installed here")
    return found


def put_to_the_test(place, wire, queue, process):
    """A worker drains a queue, keeps what takes longer than its lease, lets go of what is cancelled, and stops when it is told to."""
    kept = wire.put(queue, payload={"n": 21, "ms": 7_000})
    prefix = f"{queue}-"
    wire.put_all(queue, TASKS, prefix, payload={"n": 21})
    found = succeeded(place, prefix, TASKS)
    assert {(end.result, end.attempt) for end in found.values()} == {('{"doubled":42}', 1)}
    wire.outcomes(kept, "succeeded")  # in one attempt: heartbeats kept it
    cancelled = wire.put(queue, payload={"ms": 60_000})
    wire.becomes(cancelled, "running")
    assert wire.cancel(cancelled) == "cancelled"
    given_back = wire.put(queue, payload={"ms": 60_000})
    wire.becomes(given_back, "running")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    (again,) = wire.lease(queue, 9, wait_ms=10_000)
    wire.outcomes(given_back, "yielded", "started")
    assert wire.end("complete", again) == "ok"


def test_the_worker_in_javascript(deployment, scheduler, wire, start):
    queue = pull_queue(scheduler, wire, lease="6s")
    process = start(needs("node"), str(ROOT / "examples" / "worker.mjs"), wire.url, queue, "8")
    put_to_the_test(deployment, wire, queue, process)


def test_the_worker_in_go(deployment, scheduler, wire, start, tmp_path):
    queue = pull_queue(scheduler, wire, lease="6s")
    program, source = str(tmp_path / "worker"), str(ROOT / "examples" / "worker.go")
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    subprocess.run([needs("go"), "build", "-o", program, source], check=True, cwd=tmp_path, env=environment, timeout=PATIENCE)  # fmt: skip
    put_to_the_test(deployment, wire, queue, start(program, wire.url, queue, "8"))


def test_the_worker_in_shell_does_what_it_is_asked_for(wire, queue, start):
    needs("jq")
    needs("curl")
    tasks = [wire.put(queue, payload={"n": n}) for n in range(3)]
    process = start("bash", str(ROOT / "examples" / "curl.sh"), wire.url, queue, "3")
    assert process.wait(PATIENCE) == 0
    for n, task in enumerate(tasks):
        assert wire("GET", f"/v1/tasks/{task}/result?wait_ms=10000")["result"] == {"doubled": 2 * n}


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
