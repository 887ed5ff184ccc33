"""Records for several partitions in one request, where they are given to a producer of kafka-python (3.0.12) one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from kafka import KafkaProducer


def together(producer: KafkaProducer) -> Callable[[], AbstractContextManager[None]]:
    """Returns what is sent within the context goes together, as far as it fits.

    By itself the producer wakes its thread at the first record of each partition. That takes the interpreter from whoever is sending, and
    the first record goes alone: the broker answers requests of one connection in turn, so the others wait for a whole round trip.

    Args:
        producer: that only one thread uses.
    """
    sender, metadata = producer._sender, producer._metadata  # noqa: SLF001 - there is no public way
    wake = sender.wakeup

    @contextmanager
    def sending() -> Iterator[None]:
        owed = False

        def wake_later() -> None:
            nonlocal owed
            owed = True
            if metadata.need_update:
                wake()  # `send` waits for what is known of the topic, which that thread asks for

        sender.wakeup = wake_later
        try:
            yield
        finally:
            sender.wakeup = wake
            if owed:
                wake()

    return sending
