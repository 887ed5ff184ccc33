"""Names of brokers are resolved within a time, whatever the resolver of the system does."""

from __future__ import annotations

import socket
import threading

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.inet import KafkaNetSocket

from scylla_spark.config.settings import Settings
from scylla_spark.io.kafka import client_patches, probe

REAL = socket.getaddrinfo


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    """The resolver says nothing of names."""
    answers = threading.Event()

    def asked(host, port, *more, flags=0, **options):
        if not flags & socket.AI_NUMERICHOST:
            answers.wait()
        return REAL(host, port, *more, flags=flags, **options)

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    monkeypatch.setattr(client_patches, "RESOLVE_S", 0.05)
    yield
    answers.set()


def test_a_client_of_kafka_does_not_wait_for_it():
    assert KafkaNetSocket().dns_lookup("broker.example", 9092) == []
    with pytest.raises(KafkaConnectionError, match="DNS lookup failed"):
        KafkaNetSocket().dns_lookup("broker.example", 9092, raise_error=True)


def test_addresses_need_no_resolver():
    (found, *_) = KafkaNetSocket().dns_lookup("127.0.0.1", 9092)
    assert found[4] == ("127.0.0.1", 9092)


def test_whoever_looks_closer_is_told_so():
    fault = probe.first_fault(Settings(kafka={"bootstrap_servers": "broker.example:9092"}), limit_s=0.05)
    assert fault is not None
    assert str(fault) == "DNS: no answer about the name 'broker.example' in time"
