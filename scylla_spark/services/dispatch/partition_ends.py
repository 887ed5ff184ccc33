"""Where logs end, asked of many partitions at once: one whose leader does not answer keeps none of the others waiting for long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from scylla_spark.clock import boot_us
from scylla_spark.log import get_logger

log = get_logger("dispatch")

ANSWER_MS: Final = 2_000  # who asks reads nothing meanwhile
AGAIN_US: Final = 5_000_000


class PartitionEnds:
    """Asks for ends, and remembers who did not answer; used by one thread.

    All are asked together. Where that fails each is asked alone, as long as they answer; who does not is asked again a while later.

    Args:
        clock: boot clock.
    """

    def __init__(self, clock: Callable[[], int] = boot_us) -> None:
        self._clock = clock
        self._silent: dict[TopicPartition, int] = {}  # → boot clock when it is asked again; asked last stands last

    def of(self, reader: KafkaConsumer, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition that answers; its caller asks again for the others.

        Args:
            reader: a consumer.
            places: of whom.
        """
        found = self._ask(reader, [place for place in places if place not in self._silent])
        due = [place for place, at in self._silent.items() if at <= self._clock() and place in places]
        for place in due:
            ends = self._ask(reader, [place])
            if not ends:
                break
            found |= ends
        return found

    def _ask(self, reader: KafkaConsumer, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if not places:
            return {}
        try:
            found: dict[TopicPartition, int] = reader.end_offsets(list(places), timeout_ms=ANSWER_MS)
        except KafkaError as error:
            log.warning("where partitions end is asked again", partitions=_numbers(places), error=repr(error))
            again_us = self._clock() + (AGAIN_US if len(places) == 1 else 0)
            for place in places:
                self._silent.pop(place, None)
                self._silent[place] = again_us
            return {}
        for place in found:
            self._silent.pop(place, None)
        return found


def _numbers(places: Sequence[TopicPartition]) -> list[int]:
    return [place.partition for place in places]
