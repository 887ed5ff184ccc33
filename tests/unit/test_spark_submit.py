"""What `spark-submit.sh` passes to Spark, seen by a stand-in for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "spark-submit.sh"
SHIPPED = ["--archives", "made.tar.gz#scylla-spark-env", "--conf", "spark.executorEnv.PYTHONPATH=scylla-spark-env"]


@pytest.fixture
def submit(tmp_path):
    """Runs the script for a job with options of Spark; returns the words that Spark gets."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "jobs").mkdir()
    shutil.copy(SCRIPT, tmp_path)
    scripts = {
        "spark-submit": 'printf "%s\\n" "$@"',
        "python": 'case "$2" in *archive) echo made.tar.gz;; *) echo a.jar;; esac',
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def run(job, options, **environment):
        (tmp_path / "jobs" / f"{job}.py").touch()
        environment |= {"PATH": os.environ["PATH"], "SCYLLASPARK_SUBMIT_ARGS": options}
        command = ["bash", str(tmp_path / "spark-submit.sh"), job]
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "options", "environment", "ships"),
    [
        ("dispatch", "--master spark://head:7077", {}, True),
        ("ingest", "--conf spark.master=yarn", {}, True),
        ("plan", "--master spark://head:7077", {}, False),
        ("dispatch", "", {}, False),
        ("dispatch", "--master local[2]", {}, False),
        ("dispatch", "--master spark://head:7077 --py-files mine.zip", {}, False),
        ("dispatch", "--master spark://head:7077 --conf spark.archives=mine.tar.gz", {}, False),
        ("dispatch", "--master spark://head:7077", {"SCYLLASPARK_ARCHIVE": "none"}, False),
    ],
)
def test_archive_is_shipped_to_a_cluster_unless_the_options_ship_something(submit, job, options, environment, ships):
    words = submit(job, options, **environment)
    assert (SHIPPED in [words[at : at + len(SHIPPED)] for at in range(len(words))]) is ships
    assert any("scylla-spark-env" in word for word in words) is ships


@pytest.mark.slow
def test_an_archive_that_was_made_before_is_shipped(submit):
    assert "mine.tar.gz#scylla-spark-env" in submit("dispatch", "--master yarn", SCYLLASPARK_ARCHIVE="mine.tar.gz")
