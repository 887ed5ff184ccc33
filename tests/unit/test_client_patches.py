"""What is mended in kafka-python: its producer asks for a lost id again, and connections that fail leave nothing behind."""

import gc
import os
import socket
import ssl

import pytest
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState

from scylla_spark.io.kafka import client_patches
from scylla_spark.io.kafka.client_patches import recovering


class Producer:
    def __init__(self, transactions):
        self._transaction_manager = transactions


@pytest.fixture
def transactions():
    found = TransactionManager(api_version=(2, 5))
    found.init_producer_id()
    found.next_request_handler(False)
    found.set_producer_id_and_epoch(ProducerIdAndEpoch(7, 0))
    found._transition_to(TransactionState.READY)
    return found


def asks_for_an_id(transactions):
    """What the producer's thread does in every turn without an id."""
    transactions.init_producer_id()
    return transactions.next_request_handler(False) is not None


def test_kafka_pythons_own_never_asks_again(transactions):
    transactions.reset_producer_id()
    assert not asks_for_an_id(transactions), "it is mended there: `recovering` can go"


def test_it_asks_again_after_a_reset(transactions):
    recovering(Producer(transactions))
    transactions.reset_producer_id()
    assert asks_for_an_id(transactions)


def test_it_asks_again_after_the_request_itself_was_not_answered(transactions):
    recovering(Producer(transactions))
    transactions.transition_to_fatal_error(
        KafkaError("Could not execute transactional request for unknown reasons: late")
    )
    assert not transactions.has_fatal_error()
    assert asks_for_an_id(transactions)


def test_what_is_really_fatal_stays_so(transactions):
    recovering(Producer(transactions))
    transactions.transition_to_fatal_error(KafkaError("not authorised"))
    assert transactions.has_fatal_error()


def test_a_producer_without_idempotence_is_left_alone():
    assert recovering(Producer(None))._transaction_manager is None


@pytest.fixture
def net():
    found = NetworkSelector()
    yield found
    found.close()


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def silent():
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def open_sockets():
    return sum(
        os.path.realpath(f"/proc/self/fd/{number}").find("socket:") >= 0 for number in os.listdir("/proc/self/fd")
    )


def transport_to(net, server):
    context = ssl.create_default_context()
    sock = socket.create_connection(server.getsockname())
    sock.setblocking(False)
    return KafkaSSLTransport(net, sock, host="127.0.0.1", ssl_context=context)


def left_open_by_refused_connections(net):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        before = open_sockets()
        for _ in range(5):
            with pytest.raises(KafkaConnectionError):
                net.run(create_connection, net, *bound.getsockname())
        return open_sockets() - before


def test_kafka_pythons_own_leaves_the_sockets_of_refused_connections_open(net, no_collector, monkeypatch):
    monkeypatch.setattr(KafkaNetSocket, "sock_connect", client_patches._sock_connect)
    assert left_open_by_refused_connections(net) == 5, "it is mended there: `_connect` can go"


def test_a_refused_connection_leaves_no_socket_open(net, no_collector):
    assert left_open_by_refused_connections(net) == 0


def test_a_broker_that_is_silent_in_the_handshake_is_given_up(net, silent, monkeypatch):
    monkeypatch.setattr(client_patches, "HANDSHAKE_S", 0.05)
    transport = transport_to(net, silent)
    sock = transport._sock
    with pytest.raises(OSError, match="EOF"):
        net.run(transport.handshake)
    assert sock.fileno() == -1


def test_a_broker_that_ends_the_handshake_leaves_no_socket_open(net, silent):
    transport = transport_to(net, silent)
    sock = transport._sock
    silent.accept()[0].close()
    with pytest.raises(OSError, match=r"EOF|reset"):
        net.run(transport.handshake)
    assert sock.fileno() == -1
