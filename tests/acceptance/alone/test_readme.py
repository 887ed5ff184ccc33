"""The README's section "Use it", pasted letter for letter against one `up`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.place import PATIENCE, ROOT, Place, Process
from tests.support.waiting import eventually

SECTION = (ROOT / "README.md").read_text().partition("\n## Use it\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", SECTION, re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
HANDLERS, PASTED = PYTHON[0], [text for text in PYTHON[1:] if "def test_" not in text]
(TEST,) = (text for text in PYTHON if "def test_" in text)
UP, *COMMANDS = (text for language, text in BLOCKS if language == "sh")

_SESSION_S = 900.0  # a deadline, not a wait: three Java processes start on a machine that may be busy


@pytest.fixture
def environment(place: Place) -> dict[str, str]:
    """Of a shell in the folder of the snippets; its settings keep the deployment small, and its port free."""
    path = f"{Path(sys.executable).parent}:{place.environment['PATH']}"
    settings = {
        "SCYLLASPARK_API__PORT": "0",
        "SCYLLASPARK_INGEST__TRIGGER": "2s",
        "SCYLLASPARK_SPARK_WORKERS__MAX": "0",
    }
    return place.environment | settings | {"PATH": path, "PYTHONPATH": ""}


def run(command: list[str], folder: Path, environment: dict[str, str], text: str | None = None) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=_SESSION_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def api_of(up: Process) -> str:
    """Where it says that its API is; empty as long as it has not said so."""
    assert up.running, up.told()[-3000:]
    said = re.search(r"^ready: .*, api (http://\S+)", up.stdout.read_text(), re.MULTILINE)
    return said[1] if said else ""


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_snippets_of_the_readme_run_when_pasted_one_after_the_other(place, environment):
    folder = place.folder
    (folder / "my_handlers.py").write_text(HANDLERS)
    up = Process("up", ["/bin/sh", "-c", f"exec {UP}"], folder, environment)
    api = eventually(lambda: api_of(up), PATIENCE, "up is ready", up.told)
    session = "\n".join([*PASTED, "print('pasted', handle.result())", "sched.close()"])
    assert "pasted sent_to='a@example.org'" in run([sys.executable, "-"], folder, environment, session)

    (folder / "test_reminders.py").write_text(TEST)
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_reminders.py"], folder, environment)
    for command in COMMANDS:
        assert '"succeeded"' in run(["bash", "-c", command], folder, environment | {"API": api})
    assert up.stop() == 0
