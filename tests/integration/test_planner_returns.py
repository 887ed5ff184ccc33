"""A planner that comes back: what came meanwhile is known before anything is decided. On a real broker."""

from contextlib import contextmanager

import pytest

from scylla_spark.clock import now_us
from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.state import plan_state
from scylla_spark.core.records.fact import Fact, Fence, encode_facts, encode_fence
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.io.kafka.plan_log_reader import PlanLogReader
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import consumer, producer
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.plan.service import PlanService
from tests.support import delta_tables
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually

PATIENCE = 60


@pytest.fixture
def settings(broker, tmp_path):
    settings = settings_on(broker, tmp_path, partitions=2, plan={"ahead": "0s"})
    ensure_topics(settings)
    delta_tables.make(settings.tables_path, settings.partitions)
    return settings


@contextmanager
def planning(settings):
    service = PlanService(settings, MetricsServer(settings.metrics.model_copy(update={"port": 0})))
    service.start()
    try:
        yield
    finally:
        service.stop()


@contextmanager
def sending(settings):
    out = producer(settings)
    try:
        yield lambda topic, value, partition=0: out.send(topic, value, partition=partition).get(timeout=20)
    finally:
        out.close()


def state(settings):
    """What the planner's log says by now."""
    reading = consumer(settings)
    try:
        log = PlanLogReader(settings, reading)
        log.begin()
        log.until(log.range()[1])
        return log.state
    finally:
        reading.close(autocommit=False)


def test_what_came_while_nobody_planned_is_known_before_anything_is_decided(settings):
    topics, fence = settings.topics, Fence(1, "d")
    every = {"kind": "every", "period": "1s"}
    with sending(settings) as send:
        with planning(settings):
            definitions = [{"name": name, "handler": "h", "trigger": every} for name in ("paused", "ended")]
            send(topics.schedules, encode_command("put", schedules=definitions))
            eventually(lambda: len(state(settings).runs) == 2, PATIENCE)
        before = state(settings)
        stopped_us = now_us()
        send(topics.schedules, encode_command("pause", names=["paused"]))
        for number in range(settings.partitions):
            send(topics.outcomes, encode_fence(fence, "", now_us()), number)
        for key in before.runs:
            end_of(send, settings, fence, key)
        eventually(lambda: now_us() > stopped_us + 2_000_000, PATIENCE)
        with planning(settings):
            eventually(lambda: state(settings).entries["ended"].cursor_us > stopped_us, PATIENCE)
    found = state(settings).entries
    assert found["paused"].paused
    assert not found["paused"].runs, (
        "nothing was caught up: the times that came before the pause are dropped with a row"
    )
    assert len(found["ended"].runs) == 1, "the run of before has ended, so the last time that was missed has run"


def test_what_cannot_be_applied_is_set_aside_and_all_else_goes_on(settings, monkeypatch):
    made_put, made_fire = plan_state._WHOLE["put"], plan_state._OF_ENTRY["fire"]

    def put(plan, change):
        return 1 / 0 if change[1] == "poison" else made_put(plan, change)

    def fire(plan, entry, change):
        return 1 / 0 if entry.name == "ill" and change[2]["verdict"] == "launched" else made_fire(plan, entry, change)

    monkeypatch.setitem(plan_state._WHOLE, "put", put)
    monkeypatch.setitem(plan_state._OF_ENTRY, "fire", fire)
    every = {"kind": "every", "period": "1s"}
    with sending(settings) as send, planning(settings):
        for names in (("ill", "well"), ("poison",), ("later",)):
            definitions = [{"name": name, "handler": "h", "trigger": every, "overlap": "allow_all"} for name in names]
            send(settings.topics.schedules, encode_command("put", schedules=definitions))
        eventually(lambda: {name for name, _ in state(settings).runs.values()} == {"well", "later"}, PATIENCE)
        eventually(lambda: state(settings).entries["ill"].paused, PATIENCE)
        runs = len(state(settings).runs)
        eventually(lambda: len(state(settings).runs) >= runs + 6, PATIENCE)
    found = state(settings)
    assert found.entries["ill"].note.startswith("paused for a defect of the planner: ZeroDivisionError")
    assert found.entries.keys() == {"ill", "well", "later"}
    assert not found.entries["well"].paused
    assert not found.entries["later"].paused
    assert found.commands == 3


def end_of(send, settings, fence, key: TaskKey):
    fact = Fact(key, 1, "succeeded", key.time_us, now_us(), key.time_us, 1)
    for record in encode_facts(fence, [fact]):
        send(settings.topics.outcomes, record, partition_of(key.ordering_id, settings.partitions))
