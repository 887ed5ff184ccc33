"""How soon a consumer of kafka-python (3.0.12) is told that something has come: it may change that while it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kafka import KafkaConsumer

_HURRY: Final = {"fetch_min_bytes": 1, "fetch_max_wait_ms": 500}  # what kafka-python asks for by itself
_EASE: Final = {"fetch_min_bytes": 64 * 1024, "fetch_max_wait_ms": 100}


def pace_of(consumer: KafkaConsumer) -> Callable[[bool], None]:
    """Sets how a consumer asks from its next request on: whether it is in a hurry.

    In a hurry it is answered as soon as anything stands in its partitions. Else what comes within 100 ms comes together, unless that is
    64 KiB before: each answer costs client and broker about a millisecond of CPU, whatever it holds.

    Args:
        consumer: that has no such thing: it reads these settings anew for every request.
    """
    settings = consumer._fetcher.config  # noqa: SLF001 - there is no public way

    def pace(hurries: bool) -> None:
        settings.update(_HURRY if hurries else _EASE)

    return pace
