"""Fail points: each stands at one place, does nothing unless asked, and then does just what it was asked for, once."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scylla_spark import Settings, failpoint
from scylla_spark.errors import ConfigError
from tests.support.waiting import holds

POINT = "ingest.tasks.merged"
PACKAGE = Path(failpoint.__file__).parent


def process(spec: str, code: str) -> subprocess.Popen[str]:
    """A Python process with fail points."""
    command = [sys.executable, "-c", f"from scylla_spark.failpoint import reach\n{code}"]
    environment = os.environ | {failpoint.VARIABLE: spec}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_every_point_is_reached_at_one_place_of_the_source_and_no_other_is():
    calls = Counter(
        name
        for path in PACKAGE.rglob("*.py")
        if path.stem != "failpoint"
        for name in re.findall(r"\breach\(\s*\"([^\"]+)\"", path.read_text())
    )
    assert calls == dict.fromkeys(failpoint.POINTS, 1)


@pytest.mark.slow
def test_a_point_does_nothing_unless_asked():
    assert process("", f"reach({POINT!r}); print('on')").communicate()[0] == "on\n"
    assert process("ingest.tasks.judged:kill", f"reach({POINT!r}); print('on')").communicate()[0] == "on\n"


@pytest.mark.slow
def test_a_killed_process_says_where_and_takes_its_jvm_along(tmp_path):
    java = tmp_path / "java"
    java.symlink_to("/bin/sleep")
    start = "import subprocess\nprint(subprocess.Popen([{!r}, '600']).pid, flush=True)\n"
    code = start.format(str(java)) + start.format("/bin/sleep") + f"reach({POINT!r})"
    with process(f"{POINT}:kill", code) as killed:
        assert killed.stdout is not None
        assert killed.stderr is not None
        jvm, stranger = int(killed.stdout.readline()), int(killed.stdout.readline())
        try:
            assert killed.wait(20) == -signal.SIGKILL
            assert killed.stderr.readline() == f"failpoint {POINT} kill\n"
            assert holds(lambda: dead(jvm), 60)
            assert not dead(stranger)
        finally:
            os.kill(stranger, signal.SIGKILL)


def dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_error_is_raised_at_the_asked_time_and_once():
    code = f"""
for turn in range(4):
    try:
        reach({POINT!r})
        print(turn)
    except RuntimeError as error:
        print(error)
"""
    assert process(f"{POINT}:raise:2", code).communicate()[0].splitlines() == ["0", f"fail point {POINT}", "2", "3"]


def test_a_frozen_process_goes_on_when_told():
    with process(f"{POINT}:freeze", f"reach({POINT!r}); print('on')") as frozen:
        _, status = os.waitpid(frozen.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        frozen.send_signal(signal.SIGCONT)
        assert frozen.communicate()[0] == "on\n"


def test_several_points_are_read():
    assert failpoint.parse("ingest.tasks.merged:kill,ingest.tasks.judged:freeze:3") == {
        "ingest.tasks.merged": ("kill", 1),
        "ingest.tasks.judged": ("freeze", 3),
    }


@pytest.mark.parametrize(
    "text",
    ["nowhere:kill", POINT, *(f"{POINT}:{rest}" for rest in ("", "explode", "kill:0", "kill:x", "kill:1:2", "kill:"))],
)
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        failpoint.parse(text)


def test_settings_know_the_variable(monkeypatch):
    monkeypatch.setenv(failpoint.VARIABLE, "")
    assert Settings.load().partitions


def test_a_defect_can_be_planted_only_where_records_are_judged(monkeypatch):
    assert failpoint.parse("ingest.tasks.record:defect") == {"ingest.tasks.record": ("defect", 1)}
    with pytest.raises(ConfigError, match=r"Mode defect: ingest\.tasks\.record"):
        failpoint.parse(f"{POINT}:defect")
    assert failpoint.planted("ingest.tasks.record") is None
    monkeypatch.setitem(failpoint.armed, "ingest.tasks.record", ("defect", 1))
    assert failpoint.planted("ingest.tasks.record") == failpoint.DEFECT_TEXT
    assert failpoint.planted("ingest.outcomes.record") is None
