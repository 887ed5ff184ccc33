"""The embedded broker that wants a secret: who has it comes in, nobody else does, and nowhere else does it stand."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from scylla_spark.config.settings import Settings
from scylla_spark.errors import SchedulerError, UnreachableError
from scylla_spark.io.host import broker_files
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.kafka import topic_setup, topics
from scylla_spark.processes import deployment
from tests.integration.test_broker import make_topic, read, send


@pytest.fixture(scope="module")
def open_before(tmp_path_factory):
    """A data folder whose broker was open to all, with a record in topic "t", and what was seen while it ran.

    The folder of the broker was open to others, too.
    """
    folder = tmp_path_factory.mktemp("data")
    root = folder / "kafka"
    old = os.umask(0)
    try:
        root.mkdir(mode=0o755)
        with EmbeddedBroker(root) as broker:
            make_topic(broker.bootstrap)
            send(broker.bootstrap, "kept")
            seen = {"mode": mode(root), "answered": answered(root)}
    finally:
        os.umask(old)
    return folder, seen


@pytest.fixture(scope="module")
def place(open_before):
    """The same folder, whose broker wants a secret by now, announced as `up` does it."""
    folder, _ = open_before
    with deployment._lock(folder / topics.LOCK_FILE), EmbeddedBroker(folder / "kafka", auth=True) as broker:
        topics.announce(folder, {"kafka": broker.bootstrap, "auth": True})
        yield folder, broker


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def settings_of(folder: Path, **kafka: object) -> Settings:
    return Settings(_env_file=None, data_dir=folder, partitions=1, kafka={"request_timeout": "3s"} | kafka)


def create_topics_answered(port: int) -> bool:
    """Returns True if somebody who says nothing of himself gets an answer to a request to make no topics."""
    request = struct.pack(">hhih", 19, 2, 7, -1) + struct.pack(">iib", 0, 1000, 0)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(struct.pack(">i", len(request)) + request)
        try:
            return bool(line.recv(4))
        except ConnectionResetError:
            return False


def answered(root: Path) -> dict[str, bool]:
    """Port of a broker (by its name) → whether it answers a stranger."""
    ports = json.loads((root / "ports.json").read_text())
    return {name: create_topics_answered(port) for name, port in ports.items()}


def test_a_client_of_the_same_folder_finds_broker_and_secret_by_itself(place):
    folder, _ = place
    located = topics.located(settings_of(folder))
    assert set(topic_setup.ensure_topics(located)) == {"tasks", "outcomes"}
    producer = topics.producer(located)
    try:
        assert producer.send("tasks", b"x", partition=0).get(timeout=30).offset == 0
    finally:
        producer.close()
    assert topics.end_offsets(located, "tasks", [0]) == {0: 1}


def test_who_says_nothing_or_the_wrong_word_does_not_come_in(place):
    folder, broker = place
    with pytest.raises(UnreachableError):
        topic_setup.ensure_topics(settings_of(folder, bootstrap_servers=broker.bootstrap))
    wrong = {"bootstrap_servers": broker.bootstrap, "username": broker_files.CLIENT_USER, "password": "wrong"}
    for auth in ("scram", "plain"):
        with pytest.raises(SchedulerError, match="password") as caught:
            topic_setup.ensure_topics(settings_of(folder, auth=auth, **wrong))
        assert "wrong" not in str(caught.value)


def test_the_port_of_the_controller_is_no_side_door(place, open_before):
    folder, _ = place
    assert answered(folder / "kafka") == {"broker": False, "controller": False}
    _, seen = open_before
    assert seen["answered"] == {"broker": True, "controller": True}, "else this test sees nothing"


def test_the_secret_stands_in_files_of_the_owner_only(place):
    folder, broker = place
    root = folder / "kafka"
    secret = (root / "client.secret").read_text().strip()
    assert len(secret) >= 32
    assert mode(root) == 0o700
    assert mode(root / "client.secret") == mode(root / "server.properties") == mode(folder / "up.json") == 0o600
    node = (root / "server.properties").read_text().partition('password="')[2].partition('"')[0]
    holders = {
        path.name
        for path in root.rglob("*")
        if path.is_file() and any(word.encode() in path.read_bytes() for word in (secret, node))
    }
    assert holders == {"client.secret", "server.properties"}
    for name in ("cmdline", "environ"):
        told = Path(f"/proc/{broker.pid}/{name}").read_bytes()
        assert secret.encode() not in told
        assert node.encode() not in told
    assert secret not in repr(topics.located(settings_of(folder)))


def test_records_outlive_a_change_of_access_and_the_secret_outlives_a_restart(place):
    folder, broker = place
    secret = broker.secret_file.read_text()
    access = broker_files.client_access(secret.strip())
    assert read(broker.bootstrap, 1, **access) == ["kept"]
    with pytest.raises(KafkaError):
        KafkaAdminClient(bootstrap_servers=broker.bootstrap, bootstrap_timeout_ms=1500)
    broker.stop()
    with EmbeddedBroker(folder / "kafka") as reopened:
        assert read(reopened.bootstrap, 1) == ["kept"]
    broker.start()
    assert broker.secret_file.read_text() == secret
    assert read(broker.bootstrap, 1, **access) == ["kept"]


def test_a_folder_that_was_open_to_others_is_closed(open_before):
    _, seen = open_before
    assert seen["mode"] == 0o700
