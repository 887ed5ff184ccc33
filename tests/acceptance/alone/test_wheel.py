"""The wheels, installed from the package index into empty environments: each extra alone does what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scylla_spark import __version__
from scylla_spark.errors import ExitCode
from scylla_spark.io.host.http_get import fetch
from tests.acceptance.place import JAVA, ROOT, Process

UV = str(Path(sys.executable).with_name("uv"))
OFFLINE = ("error sending request", "dns error", "Connection refused", "network was disabled")
HANDLER = """
from scylla_spark import handler

@handler("hello")
def hello(task):
    return {"hello": task.payload["name"]}
"""


def run(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)


def built(source: Path, folder: Path) -> Path:
    """A wheel, built with the build backend of this environment, so that nothing is downloaded for it."""
    done = run(UV, "build", "--wheel", "--no-build-isolation", "--offline", "--out-dir", folder, source)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT / "tools", tmp_path_factory.mktemp("tools"))


def clean(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SCYLLASPARK_", "PYTHON"))}
    return kept | more


def installed(folder: Path, wheel: Path, extra: str, versions: str = "highest") -> dict[str, str]:
    """The variables of an environment with the wheel and what one extra wants, or the core alone."""
    environment = clean(VIRTUAL_ENV=str(folder))
    assert run(UV, "venv", "--python", sys.executable, folder).returncode == 0
    wanted = ("-r", ROOT / "pyproject.toml", *(("--extra", extra) if extra else ()))
    done = run(UV, "pip", "install", "--resolution", versions, *wanted, env=environment)
    if any(words in done.stderr for words in OFFLINE):
        pytest.skip(f"the package index cannot be reached: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    assert run(UV, "pip", "install", "--no-deps", "--offline", wheel, env=environment).returncode == 0
    return environment


def megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


@pytest.mark.parametrize("versions", ["highest", pytest.param("lowest-direct", marks=pytest.mark.deep)])
def test_the_wheel_runs_a_task_with_every_version_that_it_allows(
    wheel: Path, tools: Path, tmp_path: Path, versions: str
) -> None:
    environment = installed(tmp_path / "env", wheel, "local", versions)
    environment["SCYLLASPARK_SPARK__OPTIONS"] = json.dumps({"spark.driver.extraJavaOptions": JAVA})
    command = tmp_path / "env" / "bin" / "scylla-spark"
    assert run(command, "--version", cwd=tmp_path, env=environment).stdout == f"{__version__}\n"
    assert run(command, "doctor", cwd=tmp_path, env=environment).returncode == 0
    missing = run(command, "bench", "--help", cwd=tmp_path, env=environment)
    assert (missing.returncode, "pip install 'scylla-spark[tools]'" in missing.stderr) == (ExitCode.CONFIGURATION, True)
    assert run(UV, "pip", "install", "--no-deps", "--offline", tools, env=environment).returncode == 0
    assert "lateness" in run(command, "bench", "--help", cwd=tmp_path, env=environment).stdout
    (tmp_path / "hello.py").write_text(HANDLER)
    words = [str(command), "--data", str(tmp_path / "data"), "--set", "api.port=0"]
    up = Process("up", [*words, "up", "--handlers", "hello.py", "-o", "json"], tmp_path, environment)
    try:
        assert fetch(f"{up.ready()['api']}/healthz", timeout_s=30)
        key = run(*words, "-q", "task", "enqueue", "hello", "--payload", '{"name": "wheel"}', env=environment)
        waited = run(*words, "-o", "json", "task", "wait", key.stdout.strip(), env=environment)
        assert json.loads(waited.stdout)["result"] == {"hello": "wheel"}, key.stderr + waited.stderr
        if versions == "highest":
            the_core_leases_a_task(tmp_path, wheel, words, up.ready()["api"], environment)
            tables_are_read(tmp_path, wheel)
            the_api_is_served(tmp_path, wheel)
        assert up.stop() == 0, up.told()
    finally:
        if up.running:
            up.stop()


def the_core_leases_a_task(place: Path, wheel: Path, words: list[str], api: str, environment: dict[str, str]) -> None:
    """The core alone runs a worker over HTTP, and names the extra that other commands need."""
    core = installed(place / "core", wheel, "")
    assert megabytes(place / "core" / "lib") <= 60
    assert run(*words, "queue", "put", "pull", "--mode", "pull", env=environment).returncode == 0
    task = ("hello", "--queue", "pull", "--payload", '{"name": "core"}')
    key = run(*words, "-q", "task", "enqueue", *task, env=environment)
    command = place / "core" / "bin" / "scylla-spark"
    leasing = [str(command), "worker", "run", "--url", api, "--queue", "pull", "--handlers", "hello.py"]
    worker = Process("worker", leasing, place, core)
    try:
        waited = run(*words, "-o", "json", "task", "wait", key.stdout.strip(), env=environment)
        assert json.loads(waited.stdout)["result"] == {"hello": "core"}, waited.stderr + worker.told()
    finally:
        assert worker.stop() == 0, worker.told()
    for question in (("task", "list"), ("task", "enqueue", "hello")):
        refused = run(command, "--data", place / "data", *question, env=core)
        assert refused.returncode == ExitCode.CONFIGURATION
        assert "pip install 'scylla-spark[tables]'" in refused.stderr


def tables_are_read(place: Path, wheel: Path) -> None:
    """The extra `tables` enqueues a task and reads the tables, without PySpark and without the API's packages."""
    environment = installed(place / "tables", wheel, "tables")
    words = (place / "tables" / "bin" / "scylla-spark", "--data", place / "data")
    key = run(*words, "-q", "task", "enqueue", "hello", "--payload", '{"name": "tables"}', env=environment)
    waited = run(*words, "-o", "json", "task", "wait", key.stdout.strip(), env=environment)
    assert json.loads(waited.stdout)["result"] == {"hello": "tables"}, key.stderr + waited.stderr
    assert run(*words, "table", "stats", env=environment).returncode == 0
    refused = run(*words, "up", cwd=place, env=environment)
    assert (refused.returncode, "pip install 'scylla-spark[spark]'" in refused.stderr) == (ExitCode.CONFIGURATION, True)  # fmt: skip


def the_api_is_served(place: Path, wheel: Path) -> None:
    """The extra `api` serves the API of a deployment that runs, without PySpark."""
    environment = installed(place / "api", wheel, "api")
    command = [str(place / "api" / "bin" / "scylla-spark"), "--data", str(place / "data"), "--set", "api.port=0"]
    api = Process("api", [*command, "run", "api", "-o", "json"], place, environment)
    try:
        assert fetch(f"{api.ready()['api']}/readyz", timeout_s=30)
    finally:
        assert api.stop() == 0, api.told()
    assert list((place / "api").rglob("pyspark")) == []


@pytest.mark.deep
def test_the_extra_spark_alone_runs_a_session_with_delta(wheel: Path, tmp_path: Path) -> None:
    environment = installed(tmp_path / "spark", wheel, "spark")
    program = """
from pathlib import Path
from scylla_spark.config.settings import Settings
from scylla_spark.io.host.session import open_session
spark = open_session(Settings(data_dir=Path("data")), "extras")
spark.range(3).write.format("delta").save("table")
assert spark.read.format("delta").load("table").count() == 3
spark.stop()
"""
    done = run(tmp_path / "spark" / "bin" / "python", "-c", program, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
