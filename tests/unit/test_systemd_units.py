"""The units of systemd: valid, hardened, and those of `deploy/systemd` are what `service install` writes."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from scylla_spark.cli import one_command as cli
from scylla_spark.errors import ExitCode
from scylla_spark.processes import process_main
from scylla_spark.processes.roles import ROLES
from tests.support.missing_package import absent

STORED = Path(__file__).parents[2] / "deploy" / "systemd"
MOST_EXPOSED = 3.0
PRODUCTION = (
    *("--program", "/opt/scylla-spark/bin/scylla-spark"),
    *("--credential", "kafka.password_file=/etc/scylla-spark/kafka-password"),
)


def install(folder, *words):
    return cli.run(["service", "install", *words, "--to", str(folder)])


def test_the_stored_units_are_those_that_are_written_now(tmp_path, capsys):
    assert install(tmp_path, *PRODUCTION) == ExitCode.OK
    assert "systemctl daemon-reload" in capsys.readouterr().err
    written, stored = (
        {file.name: file.read_text() for file in folder.glob("*.service")} for folder in (tmp_path, STORED)
    )
    assert written == stored, "run: scylla-spark service install --to deploy/systemd, with the options of this test"
    assert set(stored) == {f"scylla-spark-{role}.service" for role in ROLES}


@pytest.mark.slow
def test_units_are_valid_and_expose_little(tmp_path):
    if shutil.which("systemd-analyze") is None:
        absent("systemd-analyze is not installed here")
    assert install(tmp_path, "--program", "/bin/true", *PRODUCTION[2:]) == ExitCode.OK
    units = sorted(map(str, tmp_path.glob("*.service")))
    checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    looked = ["systemd-analyze", "security", "--offline=true", *units]
    told = subprocess.run(looked, capture_output=True, text=True, check=False).stdout
    exposed = re.findall(r"exposure level for (\S+): ([\d.]+)", told)
    assert len(exposed) == len(units)
    assert [one for one in exposed if float(one[1]) > MOST_EXPOSED] == []


@pytest.mark.parametrize(
    "words", [("no_such_role",), ("--credential", "kafka.password=/x"), ("--credential", "kafka.password_file=x")]
)
def test_what_makes_no_unit_is_refused(tmp_path, words):
    assert install(tmp_path, *words) == ExitCode.USAGE
    assert list(tmp_path.iterdir()) == []


class Started:
    """A deployment that is ready at once, or never, and is served until it is told to stop."""

    def __init__(self, ready):
        self._ready = ready
        self.looks = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def start(self, stop):
        return self

    def await_ready(self, *, stop):
        self.looks += 1
        return self._ready or self.looks > 1

    def serve(self, stop):
        return None


@pytest.mark.parametrize("ready", [True, False])
def test_systemd_hears_when_a_process_is_ready_and_when_it_stops(tmp_path, monkeypatch, ready):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setattr(process_main, "favour_latency", lambda: None)
        stop = threading.Event()
        process_main._serve(Started(ready), lambda _: None, stop)
        expected = ["READY=1", *([] if ready else ["READY=1"]), "STOPPING=1"]
        assert [heard.recv(100).decode() for _ in expected] == expected
        stop.set()
