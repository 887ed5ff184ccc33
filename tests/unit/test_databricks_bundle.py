"""The asset bundle: jobs that exist, settings that are ours, secrets by reference, and libraries as the package wants them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from scylla_spark.config.settings import Settings
from scylla_spark.processes.roles import ROLES

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "databricks" / "databricks.yml"
BUNDLE = yaml.safe_load(FILE.read_text())
JOBS = BUNDLE["resources"]["jobs"]
UV = str(Path(sys.executable).with_name("uv"))


def cluster(job):
    (one,) = job["job_clusters"]
    return one["new_cluster"]


def test_each_role_is_a_continuous_job_of_a_file_that_is_there():
    assert set(JOBS) == {*ROLES, "check"}
    for role in ROLES:
        (task,) = JOBS[role]["tasks"]
        assert (FILE.parent / task["spark_python_task"]["python_file"]).resolve() == ROOT / "jobs" / f"{role}.py"
        assert JOBS[role]["continuous"] == {"pause_status": "UNPAUSED"}
        assert JOBS[role]["max_concurrent_runs"] == 1
    (check,) = JOBS["check"]["tasks"]
    assert (FILE.parent / check["notebook_task"]["notebook_path"]).is_file()


def test_libraries_are_those_that_the_extras_want():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    runtime = ("pyarrow",)  # Databricks has it
    tables = {text for text in extras["tables"] if not text.startswith(runtime)}
    wanted = {"api": tables | {text for text in extras["api"] if not text.startswith("scylla-spark[")}}
    for name, job in JOBS.items():
        (task,) = job["tasks"]
        named = {one["pypi"]["package"] for one in task["libraries"] if "pypi" in one}
        assert named == wanted.get(name, tables), name


def test_settings_are_ours_and_secrets_are_references(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in [one for one in os.environ if one.startswith("SCYLLASPARK_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("SCYLLASPARK_KAFKA__AUTH", "scram")
    monkeypatch.setenv("SCYLLASPARK_KAFKA__USERNAME", "scylla")
    given = {"${var.kafka}": "kafka:9092", "${var.tables}": "s3://lake/tasks"}
    for job in JOBS.values():
        with monkeypatch.context() as changed:
            for name, value in cluster(job)["spark_env_vars"].items():
                if re.search("PASSWORD|SECRET", name):
                    assert re.fullmatch(r"\{\{secrets/\$\{var\.scope\}/[a-z-]+\}\}", value)
                changed.setenv(name, given.get(value, value))
            assert Settings.load().tables.path == "s3://lake/tasks"
    policy = json.loads(BUNDLE["resources"]["cluster_policies"]["scylla_spark"]["definition"])
    assert all(rule["hidden"] for name, rule in policy.items() if name.startswith("spark_env_vars."))


def test_the_notebook_is_python_and_shows_no_secret():
    text = (FILE.parent / "check_installation.py").read_text()
    compile(text, "check_installation.py", "exec")
    assert text.startswith("# Databricks notebook source\n")
    assert "get_secret_value" not in text
    printed = re.findall(r"print\((.*)\)", text)
    assert [line for line in printed if "environ" in line and "is set" not in line] == []


@pytest.mark.deep
def test_resources_have_the_fields_that_databricks_knows(tmp_path):
    environment = os.environ | {"VIRTUAL_ENV": str(tmp_path / "env")}
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, str(tmp_path / "env")], check=True)
    install = [UV, "pip", "install", "databricks-bundles", "pyyaml"]
    done = subprocess.run(install, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"databricks-bundles cannot be installed here: {done.stderr[-300:]}")
    program = """
import sys, yaml
from databricks.bundles.cluster_policies import ClusterPolicy
from databricks.bundles.jobs import Job
from databricks.bundles.secret_scopes import SecretScope
resources = yaml.safe_load(open(sys.argv[1]))["resources"]
for kind, model in (("jobs", Job), ("cluster_policies", ClusterPolicy), ("secret_scopes", SecretScope)):
    for one in resources[kind].values():
        model.from_dict(one)
"""
    command = [str(tmp_path / "env" / "bin" / "python"), "-c", program, str(FILE)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
