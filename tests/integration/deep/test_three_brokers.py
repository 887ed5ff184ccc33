"""A Kafka cluster of three brokers: first starts, and the death of a broker while tasks are due."""

import itertools
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import admin
from scylla_spark.processes.deployment import Deployment
from tests.support.shared_broker import settings_on
from tests.support.three_brokers import three_brokers
from tests.support.waiting import eventually

PARTITIONS = 9
EVERY_S, TASKS = 0.05, 700
LEAD_S, BEFORE_S = 25.0, 8.0  # from the first enqueue to the first due time, and from there to the kill
SESSION_S = 10.0

HANDLER = """
import time
from scylla_spark import handler

@handler("mark")
def mark(task):
    with open({path!r}, "a") as file:
        file.write(f"{{time.time()}}\\n")
"""


def on_cluster(brokers, folder: Path, **options):
    servers = ",".join(broker.bootstrap for broker in brokers)
    return settings_on(servers, folder, topics={"replication": 3}, partitions=PARTITIONS, **options)


def coordinator(client: KafkaAdminClient, group: str) -> int:
    """Node id of the broker that coordinates a consumer group."""
    return client._manager.run(client._find_coordinator_ids, [group])[group]


@pytest.fixture
def brokers(tmp_path):
    with three_brokers(tmp_path / "kafka") as brokers:
        yield brokers


def test_every_first_start_succeeds(brokers, tmp_path):
    for number in range(25):
        assert len(ensure_topics(on_cluster(brokers, tmp_path / f"{number}"))) == 2


@pytest.mark.parametrize(("of_coordinator", "longest_pause_s"), [(False, 2.0), (True, SESSION_S)])
def test_the_death_of_a_broker_stops_no_start_for_longer_than_it_must(
    brokers, tmp_path, of_coordinator, longest_pause_s
):
    starts = tmp_path / "starts"
    (tmp_path / "marks.py").write_text(HANDLER.format(path=str(starts)))
    dispatch = {"scan": "reader", "session_timeout": f"{SESSION_S}s"}
    settings = on_cluster(brokers, tmp_path / "data", handlers=[str(tmp_path / "marks.py")], dispatch=dispatch)
    ensure_tables(settings, ensure_topics(settings), now=now_us())
    with Deployment(settings, roles=("dispatch",)), Scheduler(settings) as scheduler, admin(settings) as client:
        first = time.time() + LEAD_S
        for number, lane in zip(range(TASKS), spread_lanes(), strict=False):
            at = datetime.fromtimestamp(first + number * EVERY_S, UTC)
            scheduler.enqueue("mark", {}, ordering_id=lane, at=at)
        leader = coordinator(client, settings.dispatch.group_id)
        victim = next(node for node in (2, 3) if of_coordinator == (node == leader)) if leader != 1 else 2
        eventually(lambda: time.time() >= first + BEFORE_S, LEAD_S + BEFORE_S)
        os.kill(brokers[victim - 1].pid, signal.SIGKILL)
        eventually(lambda: len(starts.read_text().splitlines()) >= TASKS, TASKS * EVERY_S + 60)
    seen = sorted(map(float, starts.read_text().splitlines()))
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) < longest_pause_s


def spread_lanes():
    """Names of lanes, each new, of one partition after the other."""
    waiting = [[] for _ in range(PARTITIONS)]
    names = (f"lane-{number}" for number in itertools.count())
    for wanted in itertools.cycle(range(PARTITIONS)):
        while not waiting[wanted]:
            name = next(names)
            waiting[partition_of(name, PARTITIONS)].append(name)
        yield waiting[wanted].pop()
