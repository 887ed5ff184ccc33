"""Our producer goes on after a broker was silent for longer than a send waits."""

from contextlib import contextmanager

import pytest
from kafka.errors import KafkaError

from scylla_spark import Settings
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.kafka.client_patches import _Transactions
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import producer, with_broker
from tests.support.freezing import frozen
from tests.support.waiting import eventually

REQUEST_MS, DELIVERY_MS = 1_000, 2_500


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def sender(broker, tmp_path):
    settings = with_broker(Settings(data_dir=tmp_path, partitions=2), broker.bootstrap)
    ensure_topics(settings)
    sender = producer(settings, linger_ms=0, request_timeout_ms=REQUEST_MS, delivery_timeout_ms=DELIVERY_MS)
    yield sender
    sender.close(timeout=5)


def put(sender, text):
    return sender.send("tasks", value=text, partition=0)


@contextmanager
def failing_send(broker, sender):
    """A send fails because the broker is frozen; it stays so until the block ends."""
    with frozen(broker.pid):
        with pytest.raises(KafkaError):
            put(sender, b"during").get(timeout=10 * DELIVERY_MS / 1000)
        yield


def test_after_a_failed_send_the_next_one_arrives(broker, sender):
    put(sender, b"before").get(timeout=10)
    with failing_send(broker, sender):
        pass
    assert put(sender, b"after").get(timeout=20).offset >= 1


def test_also_if_it_asked_for_a_new_producer_id_in_vain(broker, sender, monkeypatch, caplog):
    in_vain = []  # requests that were not answered in time; others find no connection, which is logged
    fail = _Transactions.transition_to_fatal_error

    def failed(self, error):
        in_vain.append(error)
        fail(self, error)

    monkeypatch.setattr(_Transactions, "transition_to_fatal_error", failed)
    put(sender, b"before").get(timeout=10)
    with failing_send(broker, sender):
        eventually(
            lambda: in_vain or "to send a transactional request to" in caplog.text,
            30,
            "it asks for a new id as soon as that send has failed, and gets no answer",
        )
    assert put(sender, b"after").get(timeout=20).offset >= 1
