"""`scylla-spark demo`, as a stranger runs it: it shows everything, checks itself, and leaves nothing behind.

The stranger's machine is an odd one: locale C, folders with letters beyond ASCII, warnings that are errors, and a host whose own
name does not resolve.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).with_name("scylla-spark")), "demo", "--json"]

UNSHARED = ["unshare", "--uts", "sh", "-c", 'hostname no-such-host.invalid && exec "$0" "$@"']


def nameless() -> list[str]:
    """Returns what starts a command on a host whose name does not resolve; nothing where only root may do that."""
    tried = shutil.which("unshare") and subprocess.run([*UNSHARED, "true"], capture_output=True, check=False)
    return UNSHARED if tried and tried.returncode == 0 else []


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One run, in an empty folder, with a temporary directory and settings of its own."""
    home = tmp_path_factory.mktemp("dämo")
    temporary = home / "tmp"
    temporary.mkdir()
    environment = os.environ | {
        "TMPDIR": str(temporary),
        "SCYLLASPARK_KAFKA__BOOTSTRAP_SERVERS": "nowhere.invalid:9092",
        "LC_ALL": "C",
        "PYTHONWARNINGS": "error",
    }
    ran = subprocess.run(
        [*nameless(), *COMMAND], cwd=home, env=environment, capture_output=True, text=True, timeout=700, check=False
    )
    ran.folder = home  # type: ignore[attr-defined]
    return ran


def test_every_check_holds_and_the_exit_code_says_so(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stderr[-4000:]


def test_the_last_line_of_stdout_is_the_summary(ran: subprocess.CompletedProcess[str]) -> None:
    summary = json.loads(ran.stdout.splitlines()[-1])

    assert summary.keys() == {
        "ok", "accepted", "completed", "failed", "cancelled", "rejected", "lost", "doubled", "order_violations", "overlaps",
        "early", "lateness_ms", "seconds", "schedule_runs",
    }  # fmt: skip
    assert summary["ok"] is True
    assert summary["accepted"] >= 5_000
    assert summary["completed"] + summary["failed"] + summary["cancelled"] == summary["accepted"]
    assert summary["failed"] == 11
    assert summary["cancelled"] == 92
    assert summary["rejected"] >= 12
    assert 13 <= summary["schedule_runs"] <= 17, (
        "ten seconds, a moment, and one to three runs for each trigger on a table"
    )
    broken = ("lost", "doubled", "order_violations", "overlaps", "early")
    assert {name: summary[name] for name in broken} == dict.fromkeys(broken, 0)
    late = summary["lateness_ms"]
    assert 0 <= late["p50"] <= late["p95"] <= late["p99"] <= late["max"]
    assert summary["seconds"] > 0


def test_nothing_is_left_behind(ran: subprocess.CompletedProcess[str]) -> None:
    folder: Path = ran.folder  # type: ignore[attr-defined]

    assert [path.name for path in folder.iterdir()] == ["tmp"]
    assert [path.name for path in (folder / "tmp").iterdir() if path.name.startswith("scylla-spark")] == []


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")

    ran = subprocess.run(
        [*COMMAND, "--data", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False, cwd=tempfile.gettempdir()
    )  # fmt: skip

    assert ran.returncode == 4
    assert "not an empty folder" in ran.stderr
    assert (tmp_path / "precious").read_text() == "mine"
