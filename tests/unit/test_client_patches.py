"""What is mended in kafka-python's producer: it asks for a producer id again after it has lost its own."""

import pytest
from kafka.errors import KafkaError
from kafka.producer.transaction_manager import ProducerIdAndEpoch, TransactionManager, TransactionState

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
