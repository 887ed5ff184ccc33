"""The engine's thread sends, and never waits for a broker: not even for one that has told nothing of a topic."""

from types import SimpleNamespace

import pytest
import structlog
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.action import SendFollowUps
from scylla_spark.core.records.command import Rules
from scylla_spark.core.tasks.follow_up import FollowUp
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.kafka.send_at_once import never_waiting, send_at_once
from scylla_spark.services.dispatch import dispatcher
from scylla_spark.services.dispatch.follow_ups import UNACKNOWLEDGED, FollowUpSender
from tests.support.engine_harness import NOW

EVENT = FollowUp("event", "e", '{"name":"stock","fields":{}}')


@pytest.fixture
def producer():
    """A real one that reaches no broker, as Kafka's client makes them: it would wait."""
    made = KafkaProducer(
        bootstrap_servers="127.0.0.1:9", api_version=(3, 9), enable_idempotence=False, max_block_ms=300, metrics_enabled=False
    )  # fmt: skip
    yield made
    made.close(timeout=1)


@pytest.fixture
def waits(producer, monkeypatch):
    """How long the producer was allowed to wait for metadata, in ms, call by call."""
    allowed, wait = [], producer._wait_on_metadata

    def noted(topic, max_wait_ms):
        allowed.append(max_wait_ms)
        return wait(topic, max_wait_ms)

    monkeypatch.setattr(producer, "_wait_on_metadata", noted)
    return allowed


@pytest.mark.slow
def test_what_is_sent_to_a_topic_that_nobody_knows_fails_at_once_and_says_why(producer, waits):
    with structlog.testing.capture_logs() as logged:
        never_waiting(producer, ["gone", "away"])
    assert [line["topic"] for line in logged] == ["gone", "away"]
    waits.clear()
    with pytest.raises(KafkaTimeoutError, match="no broker has told where topic 'gone' is"):
        send_at_once(producer, "gone", b"1", 0)
    assert waits == [0]


@pytest.mark.slow
def test_a_follow_up_that_cannot_go_fails_its_attempt_and_holds_nobody_up(producer, waits):
    told, topics = [], Settings(_env_file=None).topics
    sender = FollowUpSender(topics, lambda: Rules(1), lambda *what: told.append(what))
    never_waiting(producer, [topics.schedules])
    waits.clear()
    sender.send(producer, SendFollowUps(7, TaskKey(NOW, "lane", "u"), NOW, (EVENT,)), NOW)
    assert waits == [0]
    ((number, failure),) = told
    assert (number, failure.kind) == (7, UNACKNOWLEDGED)
    assert f"no broker has told where topic '{topics.schedules}' is" in failure.message


@pytest.mark.slow
def test_the_engine_has_nothing_to_send_before_its_producer_never_waits(producer, monkeypatch):
    made = dispatcher.Dispatcher(Settings(_env_file=None, partitions=1), {})
    waited = []
    tasks = SimpleNamespace(start=lambda: waited.append(producer.config["max_block_ms"]))
    nothing = SimpleNamespace(start=lambda *_: None)
    monkeypatch.setattr(made._readers, "rules", lambda: Rules(1))
    monkeypatch.setattr(dispatcher, "TasksTail", lambda *_: tasks)
    monkeypatch.setattr(dispatcher, "QueueFollower", lambda *_: nothing)
    monkeypatch.setattr(dispatcher, "producer", lambda *_, **__: producer)
    monkeypatch.setattr(dispatcher, "Unsandboxed", lambda: nothing)
    for part in ("desk", "_thread", "_outcomes"):
        monkeypatch.setattr(made, part, nothing)
    made.start()
    assert waited == [0]
