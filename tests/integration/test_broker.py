"""The embedded broker with real processes: keeps records, refuses a second on its data, never outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError

from scylla_spark.errors import BrokerError, ConflictError
from scylla_spark.io.host import broker_files, die_with_parent
from scylla_spark.io.host.broker import EmbeddedBroker
from tests.support.waiting import holds


def exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def make_topic(bootstrap: str, name: str = "t") -> None:
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])


def send(bootstrap: str, *values: str, topic: str = "t") -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        for sent in [producer.send(topic, value.encode()) for value in values]:
            sent.get(timeout=30)
    finally:
        producer.close()


def read(bootstrap: str, count: int, topic: str = "t", **access: object) -> list[str]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None, **access)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        values: list[str] = []

        def enough() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                values.extend(record.value.decode() for record in records)
            return len(values) >= count

        holds(enough, within=30)
        return values
    finally:
        consumer.close()


def test_a_start_that_fails_gives_the_folder_back_and_records_survive_a_kill_and_a_change_of_both_ports(tmp_path):
    broken = EmbeddedBroker(tmp_path, overrides={"log.retention.hours": "soon"})
    with pytest.raises(BrokerError, match="soon"):
        broken.start()
    assert not broken.alive
    broker = EmbeddedBroker(tmp_path)
    with broker:
        address = broker.bootstrap
        make_topic(address)
        send(address, "one", "two")
        with pytest.raises(ConflictError, match="already runs"):
            EmbeddedBroker(tmp_path).start()
        assert broker.alive, "the refusal must not disturb the first"
        os.kill(broker.pid, signal.SIGKILL)
        assert holds(lambda: not broker.alive, within=10)
    (tmp_path / "ports.json").unlink()
    with EmbeddedBroker(tmp_path) as broker:
        assert broker.bootstrap != address
        assert read(broker.bootstrap, 2) == ["one", "two"]


def test_record_times_are_the_brokers_and_topics_are_not_made_by_accident(broker):
    topic, accident = uuid4().hex, uuid4().hex
    make_topic(broker, topic)
    consumer = KafkaConsumer(bootstrap_servers=broker, group_id=None)
    producer = KafkaProducer(bootstrap_servers=broker, max_block_ms=1500)
    try:
        sent = producer.send(topic, b"x", timestamp_ms=1).get(timeout=30)
        assert sent.timestamp != 1
        assert topic in consumer.topics()
        with pytest.raises(KafkaError):
            producer.send(accident, b"x").get(timeout=10)
        assert accident not in consumer.topics()
    finally:
        producer.close()
        consumer.close()


def test_it_listens_on_loopback_only(broker):
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    port = f":{int(broker.rpartition(':')[2]):04X}"
    local = {
        line.split()[1] for line in listening.splitlines()[1:] if " 0A " in line and line.split()[1].endswith(port)
    }
    # 127.0.0.1 in both notations of the kernel
    assert local
    assert all(address.startswith(("0100007F:", "0000000000000000FFFF00000100007F:")) for address in local), local


STARTS_IT = """
import sys, threading
from scylla_spark.io.host.broker import EmbeddedBroker
broker = EmbeddedBroker(sys.argv[1])
# Started from a thread that ends at once: the broker must be bound to the process all the same.
starter = threading.Thread(target=broker.start)
starter.start()
starter.join()
print(broker.pid, broker.bootstrap, flush=True)
sys.stdin.readline()
"""


@contextmanager
def parent_of_a_broker(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A process that has started a broker and ends on its own at the next line of input; with the broker's pid and address."""
    command = [sys.executable, "-c", STARTS_IT, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        try:
            pid, bootstrap = parent.stdout.readline().split()
            assert exists(int(pid)), "the end of the thread that called start() must not end the broker"
            yield parent, int(pid), bootstrap
        finally:
            parent.kill()


def test_it_dies_with_its_parent_and_ends_in_order_if_the_parent_does(tmp_path):
    with parent_of_a_broker(tmp_path) as (parent, pid, bootstrap):
        make_topic(bootstrap)
        send(bootstrap, "kept")
        parent.kill()
    assert holds(lambda: not exists(pid), within=30)
    log = tmp_path / "logs" / "broker.log"
    assert "shut down completed" not in log.read_text(), "it was killed, too"
    with parent_of_a_broker(tmp_path) as (parent, pid, address):
        assert address == bootstrap, "clients must find it where it was"
        assert read(address, 1) == ["kept"]
        parent.communicate("\n", timeout=60)
        assert parent.returncode == 0
        assert holds(lambda: not exists(pid), within=30)
    assert "shut down completed" in log.read_text(), "it should end in order"


def test_a_port_that_is_taken_meanwhile_is_replaced_unless_it_was_asked_for(tmp_path):
    layout = broker_files.Layout(tmp_path)
    first = broker_files.choose_ports(layout)
    assert broker_files.choose_ports(layout) == first
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", first.broker))
        taker.listen()
        second = broker_files.choose_ports(layout)
        assert second.broker != first.broker
        assert second.controller == first.controller
        with pytest.raises(BrokerError, match="in use"):
            broker_files.choose_ports(layout, fixed=first.broker)


@pytest.mark.parametrize("how", ["signal", "pipe"])
def test_a_bound_command_dies_with_its_parent(how):
    code = textwrap.dedent(f"""
        import subprocess, sys
        from scylla_spark.io.host import die_with_parent
        bound = die_with_parent.command(["/bin/sh", "-c", "echo $$; exec sleep 600"], how={how!r})
        process = subprocess.Popen(bound, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(process.stdout.readline(), flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        assert exists(pid)
        parent.kill()
    assert holds(lambda: not exists(pid), within=30)


def test_a_command_whose_parent_is_gone_before_it_starts_does_not_start(tmp_path):
    sign = tmp_path / "ran"
    command = die_with_parent.command(["/usr/bin/touch", str(sign)], how="signal")
    command[command.index(str(os.getpid()))] = "1"  # as if our process were not its parent any more
    assert subprocess.run(command, check=False).returncode == 113
    assert not sign.exists()
