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
    """Runs the script for a job with options of Spark; returns what came of it. Its output is the words that Spark gets."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "jobs").mkdir()
    shutil.copy(SCRIPT, tmp_path)
    scripts = {
        "spark-submit": 'printf "%s\\n" "$@"; echo "$SAYS" >&2; exit "${CODE:-0}"',
        "python": 'case "$2" in *archive) echo made.tar.gz;; import*) echo python3.x;; *) echo /here/a.jar,/here/b.jar;; esac',
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def run(job, options, *words, **environment):
        (tmp_path / "jobs" / f"{job}.py").touch()
        environment |= {"PATH": os.environ["PATH"], "SCYLLASPARK_SUBMIT_ARGS": options}
        command = ["bash", str(tmp_path / "spark-submit.sh"), job, *words]
        return subprocess.run(
            command,
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

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
    words = submit(job, options, **environment).stdout.splitlines()
    assert (SHIPPED in [words[at : at + len(SHIPPED)] for at in range(len(words))]) is ships
    assert any("scylla-spark-env" in word for word in words) is ships


@pytest.mark.slow
def test_an_archive_that_was_made_before_is_shipped(submit):
    done = submit("dispatch", "--master yarn", SCYLLASPARK_ARCHIVE="mine.tar.gz")
    assert "mine.tar.gz#scylla-spark-env" in done.stdout.splitlines()


@pytest.mark.slow
def test_a_driver_on_yarn_gets_settings_handlers_and_log_configuration_as_files(submit, tmp_path):
    (tmp_path / "handlers.py").touch()
    words = ["--config=conf/own.toml", f"--handlers={tmp_path}/handlers.py", "--handlers", "my.module"]
    told = submit("dispatch", "--master yarn --deploy-mode cluster", *words).stdout.splitlines()
    assert f"{tmp_path}/conf/log4j2.properties,conf/own.toml" in told
    assert "-Xss16m -Dlog4j2.configurationFile=log4j2.properties" in told
    assert "spark.yarn.appMasterEnv.PYTHONPATH=scylla-spark-env" in told
    assert told[-7:] == [
        str(tmp_path / "jobs" / "dispatch.py"), "--config", "own.toml", "--handlers", "scylla-spark-env/handlers.py",
        "--handlers", "my.module",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_driver_on_kubernetes_has_everything_from_its_image(submit):
    options = "--master k8s://https://head:443 --conf spark.submit.deployMode=cluster"
    told = submit("ingest", options, "--config", "/etc/own.toml", SCYLLASPARK_IMAGE_HOME="/app").stdout.splitlines()
    assert "local:///app/jars/a.jar,local:///app/jars/b.jar" in told
    assert "-Xss16m -Dlog4j2.configurationFile=file:/app/conf/log4j2.properties" in told
    assert told[-3:] == ["local:///app/jobs/ingest.py", "--config", "/etc/own.toml"]
    assert "--archives" not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "master", "why"),
    [("ingest", "spark://head:7077", "a standalone master starts no"), ("plan", "yarn", "plan has no Spark session")],
)
def test_what_no_cluster_can_start_is_refused(submit, job, master, why):
    done = submit(job, f"--master {master} --deploy-mode cluster")
    assert done.returncode == 7
    assert done.stderr.startswith(f"error: {why}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "code"),
    [("diagnostics: User application exited with status 5", 5), ("no route to the manager", 1), ("", 0)],
)
def test_the_exit_code_of_a_driver_on_the_cluster_is_that_of_the_script(submit, says, code):
    done = submit("dispatch", "--master yarn --deploy-mode cluster", SAYS=says, CODE=str(int(bool(says))))
    assert (done.returncode, done.stderr.strip()) == (code, says)
