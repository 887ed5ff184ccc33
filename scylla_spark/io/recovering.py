"""A KafkaProducer that goes on after the broker was silent for longer than a send waits; kafka-python's own (3.0.12) never does.

When a batch expires that may have reached the broker, the idempotent producer drops its producer id, but asks for a new one
only from a state that it never returns to: from then on it keeps what it is given, sends nothing and fails nothing. And if
the request for an id itself times out, the producer is lost for good. Both are mended here; a test shows it on a real broker.
"""

from __future__ import annotations

from kafka import KafkaProducer
from kafka.producer.transaction_manager import TransactionManager, TransactionState


class _Transactions(TransactionManager):  # type: ignore[misc]
    def reset_producer_id(self) -> None:
        super().reset_producer_id()
        self._begin_anew()

    def transition_to_fatal_error(self, exc: BaseException) -> None:
        if self.is_transactional() or "unknown reasons" not in str(exc):  # what it says of a request that timed out
            super().transition_to_fatal_error(exc)
        else:
            self._begin_anew()

    def _begin_anew(self) -> None:
        with self._lock:
            self._current_state = TransactionState.UNINITIALIZED


def recovering(producer: KafkaProducer) -> KafkaProducer:
    """The same producer, mended; without idempotence there is nothing to mend."""
    transactions = producer._transaction_manager  # noqa: SLF001 - made deep inside its constructor
    if transactions is not None:
        transactions.__class__ = _Transactions
    return producer
