"""The wheels, installed from the package index into an empty environment: the command line, `up`, one task, and the tools."""

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


@pytest.mark.parametrize("versions", ["highest", pytest.param("lowest-direct", marks=pytest.mark.deep)])
def test_the_wheel_runs_a_task_with_every_version_that_it_allows(
    wheel: Path, tools: Path, tmp_path: Path, versions: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SCYLLASPARK_", "PYTHON"))}
    environment |= {
        "VIRTUAL_ENV": str(tmp_path / "env"),
        "SCYLLASPARK_SPARK__OPTIONS": json.dumps({"spark.driver.extraJavaOptions": JAVA}),
    }
    assert run(UV, "venv", "--python", sys.executable, tmp_path / "env").returncode == 0
    wanted = ("-r", ROOT / "pyproject.toml", "--extra", "local")
    installed = run(UV, "pip", "install", "--resolution", versions, *wanted, env=environment)
    if any(words in installed.stderr for words in OFFLINE):
        pytest.skip(f"the package index cannot be reached: {installed.stderr[-300:]}")
    assert installed.returncode == 0, installed.stderr
    assert run(UV, "pip", "install", "--no-deps", "--offline", wheel, env=environment).returncode == 0

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
        assert up.stop() == 0, up.told()
    finally:
        if up.running:
            up.stop()
