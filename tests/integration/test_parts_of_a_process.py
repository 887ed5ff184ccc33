"""What a process does when one of its parts fails: the embedded broker dies, the clock is set back, tables are newer than the code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.errors import ConfigError, ExitCode
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.host.broker_keeper import BrokerKeeper
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.processes import deployment as deployment_module
from scylla_spark.processes.deployment import Deployment
from scylla_spark.schemas import DEPLOYMENT, VERSION
from scylla_spark.services.dispatch import dispatcher as dispatcher_module
from scylla_spark.services.dispatch.service import DispatchService
from tests.faults.site import fill, small_disk
from tests.support import sample_handlers
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually

PATIENCE = 90.0
HOUR_US = 3_600_000_000
READER = {"scan": "reader", "max_children": 2}


@pytest.fixture
def settings(broker, tmp_path):
    settings = settings_on(
        broker, tmp_path, partitions=2, dispatch=READER, logs={"enabled": False}, handlers=(sample_handlers.__file__,)
    )
    ensure_tables(settings, ensure_topics(settings), now=now_us())
    return settings


def test_a_broker_that_is_killed_is_started_again_on_its_port_with_its_records_and_ends_at_a_stop(tmp_path):
    told: list[int] = []
    broker = EmbeddedBroker(tmp_path).start()
    keeper = BrokerKeeper(broker, lambda: told.append(keeper.restarts.times))
    keeper.start()
    try:
        address, first = broker.bootstrap, broker.pid
        admin = KafkaAdminClient(bootstrap_servers=address)
        admin.create_topics({"t": {"num_partitions": 1, "replication_factor": 1}})
        admin.close()
        producer = KafkaProducer(bootstrap_servers=address)
        producer.send("t", b"kept").get(30)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: told == [1], PATIENCE, "it was started again")
        assert (broker.bootstrap, keeper.failure) == (address, None)
        assert broker.pid not in (None, first)
        producer.send("t", b"and goes on").get(30)
        producer.close()
        consumer = KafkaConsumer(
            "t", bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=10_000
        )
        assert [next(consumer).value for _ in range(2)] == [b"kept", b"and goes on"]
        consumer.close()
    finally:
        keeper.stop()
    assert not broker.alive


def test_a_broker_that_cannot_be_started_again_is_given_up_with_the_reason(tmp_path):
    class Dying:
        """A broker that ends whenever it is started."""

        alive, log_file, data_dir, bootstrap = False, Path("server.log"), tmp_path, "127.0.0.1:1"
        starts = 0

        def start(self):
            self.starts += 1

        def stop(self):
            pass

    broker = Dying()
    keeper = BrokerKeeper(broker, lambda: None)
    keeper.start()
    eventually(lambda: keeper.failure, PATIENCE, "it is given up")
    assert "again and again" in str(keeper.failure)
    assert broker.starts == 4
    keeper.stop()


def test_a_dispatcher_whose_clock_was_set_back_is_started_again_and_runs_tasks(settings, monkeypatch):
    shift_us = [0]
    monkeypatch.setattr(dispatcher_module, "now_us", lambda: now_us() + shift_us[0])
    stop = threading.Event()
    with Deployment(settings, roles=["dispatch"]) as running, Scheduler(settings) as scheduler:
        assert running.await_ready(timeout_s=PATIENCE)
        serving = threading.Thread(target=running.serve, args=(stop,))
        serving.start()
        scheduler.enqueue("echo", {"n": 1}).result(PATIENCE)
        first = running.service(DispatchService).dispatcher
        shift_us[0] = -HOUR_US
        eventually(lambda: running.service(DispatchService).dispatcher is not first, PATIENCE, "another has begun")
        shift_us[0] = 0
        assert "clock was set back by" in str(first.failure)
        assert scheduler.enqueue("echo", {"n": 2}).result(PATIENCE)["payload"] == {"n": 2}
        stop.set()
        serving.join(PATIENCE)


def test_on_tables_of_a_newer_version_nothing_is_dispatched(settings, monkeypatch):
    table = DeltaTable(f"{settings.tables_path}/{DEPLOYMENT.name}").to_pyarrow_table()
    rows = [row for row in table.to_pylist() if row["name"] != "schema_version"]
    rows.append({"name": "schema_version", "value": json.dumps(VERSION + 1)})
    newer = pa.Table.from_pylist(rows, schema=table.schema)
    write_deltalake(f"{settings.tables_path}/{DEPLOYMENT.name}", newer, mode="overwrite")
    monkeypatch.setattr(deployment_module, "launch_jvm", lambda *_, **__: None)
    begun: list[str] = []
    monkeypatch.setattr(DispatchService, "start", lambda _self: begun.append("dispatch"))
    with pytest.raises(ConfigError, match=f"of version {VERSION + 1}, this one writes {VERSION}"):
        Deployment(settings).start()
    assert begun == []


def test_a_start_on_a_full_disk_ends_as_an_outage_and_its_last_line_says_so(tmp_path):
    program = Path(sys.executable).with_name("scylla-spark")
    try:
        with small_disk(tmp_path / "data", 2) as small:
            fill(small)
            command = [program, "--data", small, "up"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except PermissionError as error:
        pytest.skip(str(error))
    assert done.returncode == ExitCode.OUTAGE
    assert done.stderr.splitlines()[-1].startswith(f"error: no space left on {small}")
