"""Logs are told to a file, and never stop the work."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import logging, sys, structlog
from pathlib import Path
from scylla_spark.config.settings import Log
from scylla_spark.log import configure

configure(Log(file=Path(sys.argv[1]) if sys.argv[1] else None))
for number in range(500):
    structlog.get_logger().info("line", number=number, odd="\\ud800")
logging.getLogger("some").error("plain")
print("went on")
"""


def tell(file: Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CODE, str(file)], capture_output=True, text=True, check=True)


@pytest.mark.slow
def test_lines_are_appended_to_the_file(tmp_path):
    file = tmp_path / "log"
    file.write_text("before\n")
    done = tell(file)
    lines = file.read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("before", "plain", 502)
    assert [json.loads(line)["number"] for line in lines[1:-1]] == list(range(500))
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.slow
def test_full_disk_stops_nobody_and_the_lines_go_to_standard_error():
    done = tell(Path("/dev/full"))
    assert done.stdout == "went on\n"
    assert done.stderr.count("line") == 500


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.slow
def test_standard_error_on_a_full_disk_stops_nobody():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", CODE, ""]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert done.stdout == "went on\n"


@pytest.mark.slow
def test_a_line_that_a_client_of_kafka_repeats_is_told_once_in_a_while_and_all_others_always():
    code = """
import logging
from scylla_spark.config.settings import Log
from scylla_spark.log import configure
configure(Log())
for _ in range(50):
    logging.getLogger("kafka.net").error("connection refused")
    logging.getLogger("some").error("plain")
logging.getLogger("kafka.net").error("another")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [done.stderr.count(text) for text in ("connection refused", "another", "plain")] == [1, 1, 50]


LIBRARY = """
import logging, sys
from scylla_spark.log import get_logger

log = get_logger("part")
exec(sys.argv[1])
log.debug("of no use")
log.info("of little use")
log.warning("odd", name="a\\nb", share="100%s")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed", key=7)
"""


def library(first: str = "") -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", LIBRARY, first], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.slow
def test_as_a_library_the_package_logs_to_logging_from_warnings_on():
    out, err = library()
    assert out == ""
    lines = err.splitlines()
    assert lines[:3] == ["odd name=a\\nb share=100%s", "failed key=7", "Traceback (most recent call last):"]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    named = library("logging.basicConfig(level=logging.DEBUG, format='%(levelname)s:%(name)s:%(message)s')")[1]
    assert named.startswith("WARNING:scylla_spark.part:odd name=")


@pytest.mark.slow
def test_a_process_chooses_another_level_or_configures_structlog_itself():
    err = library("logging.basicConfig(); logging.getLogger('scylla_spark').setLevel('INFO')")[1]
    assert err.splitlines()[0] == "INFO:scylla_spark.part:of little use"
    out = library("import structlog; structlog.configure(processors=[structlog.processors.JSONRenderer()])")[0]
    assert json.loads(out.splitlines()[1]) == {"event": "of little use"}


EVENTS = """
import sys, structlog
from scylla_spark.config.settings import Log
from scylla_spark.log import configure
configure(Log(**{CHANGES}))
log = structlog.get_logger()
log.info("ready", data="d")
log.warning("attempt failed", handler="h", attempt=1, error="ValueError: no\\x1b[2J", nothing=None)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("a defect")
"""


def told_on_a_terminal(**changes: str) -> list[str]:
    """Lines of a process whose standard error is a terminal."""
    ours, theirs = pty.openpty()
    code = EVENTS.replace("{CHANGES}", repr(changes))
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs) as process:
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while some := os.read(ours, 65536):
                text += some
        assert process.wait(60) == 0
    os.close(ours)
    return text.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.slow
def test_lines_on_a_terminal_are_plain_unless_json_is_asked_for():
    ready, failed, defect, *stack = told_on_a_terminal()
    assert re.fullmatch(r"\d\d:\d\d:\d\d ready  data=d", ready)
    assert failed[9:] == r"warning: attempt failed  handler=h attempt=1 error=ValueError: no\x1b[2J"
    assert defect[9:] == "error: a defect"
    assert stack[-1].strip() == "ZeroDivisionError: division by zero"
    assert [json.loads(line)["event"] for line in told_on_a_terminal(format="json")] == [
        "ready",
        "attempt failed",
        "a defect",
    ]


@pytest.mark.slow
def test_lines_elsewhere_are_json_unless_plain_ones_are_asked_for():
    for changes, plain in (({}, False), ({"format": "plain"}, True)):
        code = EVENTS.replace("{CHANGES}", repr(changes))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stderr.startswith("{") is not plain
