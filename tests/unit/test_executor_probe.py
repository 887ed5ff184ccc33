"""What executors are asked before the first worker starts there."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.config.spark_workers import SparkWorkers
from scylla_spark.doctor import _examine_executors, check_slots, examine_cluster
from scylla_spark.executors.spark import application, probe
from scylla_spark.executors.spark.probe import Machine, connector, difference
from scylla_spark.io.host.broker_files import free_port

HERE = Machine("3.11", "x86_64", "2.36")


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (HERE, ""),
        (HERE._replace(glibc="2.39"), ""),
        (HERE._replace(python="3.12"), "they have Python 3.12, this process has 3.11"),
        (HERE._replace(architecture="aarch64"), "they have architecture aarch64, this process has x86_64"),
        (HERE._replace(glibc="2.9"), "they have glibc 2.9, which is older than 2.36 of this process"),
        (HERE._replace(glibc=""), "they have no glibc, this process has 2.36"),
    ],
)
def test_machine_on_which_compiled_libraries_do_not_work_is_named(theirs, why):
    assert difference(HERE, theirs) == why


def connect(host, port, within_s):
    return connector(host, port, within_s)(None)


def test_failed_connection_names_address_port_and_cause():
    assert "'no-such-host.invalid' is not known there (DNS" in connect("no-such-host.invalid", 1, 1.0)
    port = free_port()
    assert connect("127.0.0.1", port, 1.0) == f"nothing listens on port {port} of 127.0.0.1 (refused)"
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        assert connect("127.0.0.1", port, 5.0) == ""
        waiting = []
        try:
            why = ""
            for _ in range(5):  # so few connections wait until they are accepted
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(("127.0.0.1", port))
                why = connect("127.0.0.1", port, 0.1)
                if why:
                    break
            assert why == "127.0.0.1 did not answer within 0.1 s (timed out)"
        finally:
            for one in waiting:
                one.close()


def test_address_of_a_family_that_the_machine_lacks_does_not_end_the_question(monkeypatch):
    lacking = (255, socket.SOCK_STREAM, 0, "", ("fd00::1", 1))
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = (socket.AF_INET, socket.SOCK_STREAM, 0, "", server.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [lacking, found])
        assert connect("driver", 1, 5.0) == ""
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [lacking])
        assert connect("driver", 1, 5.0).startswith("fd00::1: ")


def test_cluster_with_one_slot_has_no_room_for_a_worker():
    assert not check_slots(1, SparkWorkers()).ok
    assert check_slots(4, SparkWorkers()).detail == "4, of which workers take at most 2"


def examined(monkeypatch, workers, slots=4):
    """What `doctor cluster` says of an application whose executors answer; name → check."""
    monkeypatch.setattr(probe, "check_executors", lambda *_: True)
    monkeypatch.setattr(probe, "unreachable", lambda *_: "")
    monkeypatch.setattr(application, "count_slots", lambda context: slots)
    context = SimpleNamespace(defaultParallelism=200, getConf=lambda: {"spark.driver.host": "127.0.0.1"})
    return {one.name: one for one in _examine_executors(SimpleNamespace(sparkContext=context), workers)}


def test_doctor_counts_the_slots_that_a_dispatcher_counts(monkeypatch):
    slots = examined(monkeypatch, SparkWorkers(), slots=1)["slots"]
    assert (slots.ok, slots.detail) == (False, "1, of which workers take at most 0")


def test_doctor_names_the_port_that_a_dispatcher_has(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        checks = examined(monkeypatch, SparkWorkers(port=port))
    assert checks["slots"].ok
    assert checks["way back"].detail.startswith(
        f"this process cannot listen on 127.0.0.1, port {port}: Address already"
    )
    assert "spark_workers.port" in checks["way back"].mend


def test_doctor_does_not_blame_the_master_for_handlers_that_cannot_be_imported():
    (check,) = examine_cluster(Settings(_env_file=None, master="spark://127.0.0.1:1", handlers=["no_such_module"]))
    assert (check.name, check.ok) == ("archive", False)
    assert "no_such_module" in check.detail
