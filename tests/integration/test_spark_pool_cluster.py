"""The Spark pool on a real two-executor cluster, in a process of its own: one process holds one Spark application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.deep
def test_spark_pool_conforms_on_a_cluster_and_survives_the_loss_of_an_executor():
    suite = Path(__file__).with_name("spark_pool_on_cluster.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)]
    done = subprocess.run(command, cwd=suite.parents[2], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
