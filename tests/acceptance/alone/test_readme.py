"""The README's 60 seconds and the pages of `docs/start`, pasted letter for letter against one `up`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.place import PATIENCE, ROOT, Place, Process
from tests.support.waiting import eventually

_BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INSTALL, _UP = 'pip install "scylla-spark[local]"\n', "scylla-spark up --handlers tasks\n"
_SESSION_S = 900.0  # a deadline, not a wait: three Java processes start on a machine that may be busy


class Pasted(NamedTuple):
    """What a reader takes from a page: files, lines for Python, commands for a shell, and the outputs that the page shows."""

    files: dict[str, str]
    python: str
    commands: list[str]
    outputs: list[str]

    @classmethod
    def of(cls, page: str) -> Pasted:
        blocks = [(language, title, text) for language, title, text in _BLOCK.findall((ROOT / page).read_text())]
        plain = [(language, text) for language, title, text in blocks if not title]
        return cls(
            {title: text for _, title, text in blocks if title},
            "".join(text for language, text in plain if language == "python"),
            [text for language, text in plain if language == "sh"],
            [text for language, text in plain if language == "text"],
        )

    def shell(self) -> str:
        """The commands without those that install and that do not return."""
        others = [text.removeprefix(_INSTALL) for text in self.commands if text != _UP]
        return "set -e\n" + "".join(others)


README, QUICKSTART, PYTHON = map(Pasted.of, ("README.md", "docs/start/quickstart.md", "docs/start/python.md"))


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
    """Returns what a command prints; it must succeed."""
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
    """Returns where it says that its API is; empty as long as it has not said so."""
    assert up.running, up.told()[-3000:]
    said = re.search(r"^ready: .*, api (http://\S+)", up.stdout.read_text(), re.MULTILINE)
    return said[1] if said else ""


def test_the_readme_and_the_quickstart_install_and_start_the_same():
    assert README.files.items() <= QUICKSTART.files.items()
    for page in (README, QUICKSTART):
        assert page.commands[0].startswith(_INSTALL)
        assert _UP in page.commands


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_start_pages_run_when_pasted_one_after_the_other(place, environment):
    folder = place.folder
    for name, text in (QUICKSTART.files | PYTHON.files).items():
        (folder / name).write_text(text)
    up = Process("up", ["/bin/sh", "-c", f"exec {_UP}"], folder, environment)
    api = eventually(lambda: api_of(up), PATIENCE, "up is ready", up.told)
    for page in (README, QUICKSTART):
        printed = run(["bash"], folder, environment, page.shell())
        assert [text for text in page.outputs if text not in printed] == []
    eventually(
        lambda: "succeeded" in run([sys.executable, "look.py"], folder, environment),
        PATIENCE,
        "the tables show the tasks of the quickstart",
    )
    printed = run([sys.executable, "-"], folder, environment, f"{PYTHON.python}\nsched.close()\n")
    assert [text for text in PYTHON.outputs if text not in printed] == []
    assert '"succeeded"' in run(["bash"], folder, environment | {"API": api}, PYTHON.shell())
    assert up.stop() == 0
