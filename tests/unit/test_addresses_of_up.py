"""How clients and commands find a deployment of this machine by its data folder."""

from __future__ import annotations

import fcntl
import threading

import pytest

from scylla_spark import Scheduler
from scylla_spark.cli.api_call import site_of
from scylla_spark.cli.context import Context
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ArgumentError, ConflictError, UnreachableError
from scylla_spark.io.kafka.topics import LOCK_FILE, announce, located
from scylla_spark.processes import deployment


def test_addresses_of_a_deployment_that_runs_no_more_are_not_used(tmp_path, monkeypatch):
    """They outlive a kill and a reboot, and others may listen there by now."""
    monkeypatch.chdir(tmp_path)
    announce(tmp_path, {"kafka": "127.0.0.1:1", "api": "http://127.0.0.1:2"})
    context = Context(overrides={"data_dir": tmp_path})
    with pytest.raises(UnreachableError, match="nothing runs on"):
        located(Settings.load(data_dir=tmp_path))
    with pytest.raises(ArgumentError, match="no `up` with an API runs on"):
        site_of(context, None, None, None)
    with deployment._lock(tmp_path / LOCK_FILE):
        assert located(Settings.load(data_dir=tmp_path)).kafka.bootstrap_servers == "127.0.0.1:1"
        assert Scheduler.connect(data_dir=tmp_path).connection.located.kafka.bootstrap_servers == "127.0.0.1:1"
        assert site_of(context, None, None, None).url == "http://127.0.0.1:2"
        assert site_of(context, "http://other:3", None, None).url == "http://other:3"


def test_a_client_that_looks_who_serves_a_folder_stops_no_start(tmp_path, monkeypatch):
    monkeypatch.setattr(deployment, "_LOCKED_US", 20_000_000)
    path = tmp_path / LOCK_FILE
    looks, go_on = threading.Event(), threading.Event()

    def look():
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            looks.set()
            go_on.wait(5)

    client = threading.Thread(target=look)
    client.start()
    assert looks.wait(30)
    threading.Timer(0.1, go_on.set).start()
    with deployment._lock(path):
        monkeypatch.setattr(deployment, "_LOCKED_US", 0)
        with pytest.raises(ConflictError, match="Another process serves"):
            deployment._lock(path)
    client.join()
