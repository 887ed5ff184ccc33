"""Looks at batches before Spark's Kafka client reads them: it has no bound of its own, and stops at what it cannot read.

Every batch is opened as those do who act on its records: what they pass over is set aside, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecords

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka.sound_batches import NotSound, opened
from scylla_spark.io.kafka.stream_offsets import Range
from scylla_spark.io.kafka.topics import consumer

HEAVY_RECORD: Final = 1 << 20  # bytes; some hundred such records at a time are too much for Spark's client
_PATIENCE_S: Final = 60.0
_FETCH: Final = {
    "fetch_max_bytes": 32 << 20,
    "max_partition_fetch_bytes": 8 << 20,
    "check_crcs": False,  # Spark's client checks them
    "fetch_max_wait_ms": 100,
}


class Unread(NamedTuple):
    """Offsets that are set aside without being read, why, and in words."""

    offsets: Range
    reason: str
    detail: str


class Poison(NamedTuple):
    """What of a range must not be read, or not as usual.

    Attributes:
        found: partition → offsets that must not be read.
        heavy: among the others are records so large that Spark's client must take few at a time.
    """

    found: Mapping[int, list[Unread]]
    heavy: bool = False


NO_POISON: Final = Poison({})


@dataclass(slots=True)
class _Look:
    """What one look has found so far."""

    ends: Mapping[int, int]
    found: dict[int, list[Unread]] = field(default_factory=dict)
    heavy: bool = False
    done: set[int] = field(default_factory=set)

    def batch(self, number: int, data: memoryview, begin: int) -> int:
        """Looks at one batch; returns the offset after it.

        Args:
            number: of its partition.
            data: its bytes.
            begin: offset after the batch before it.

        Raises:
            CorruptRecordError: it was damaged on its way.
        """
        try:
            sound = opened(data)
            end, packed = (
                sound.end,
                bool(sound.compression_type),
            )  # the others are as large as they look, which brokers bound
            self.heavy = self.heavy or (packed and sound.has_larger(HEAVY_RECORD))
        except NotSound as fault:
            end, first = fault.end, begin if fault.base is None else fault.base
            self.found.setdefault(number, []).append(Unread(Range(first, end), fault.reason, str(fault)))
        if end >= self.ends.get(number, 0):
            self.done.add(number)
        return end


class Guard:
    """Looks at ranges of one topic, with a consumer of its own that is kept between looks.

    Args:
        settings: with the broker's address.
        topic: name.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._consumer: KafkaConsumer | None = None
        self.current = _Look({})

    def look(self, ranges: Mapping[int, Range]) -> Poison:
        """Returns what of these offsets must not be read.

        Raises:
            UnreachableError: the brokers do not answer in time.
        """
        wanted = {number: wide for number, wide in ranges.items() if wide.begin < wide.end}
        look = self.current = _Look({number: wide.end for number, wide in wanted.items()})
        if not wanted:
            return NO_POISON
        reader = self._opened()
        places = {number: TopicPartition(self._topic, number) for number in wanted}
        reader.assign(list(places.values()))
        reader.resume(*places.values())  # an assignment keeps what was paused
        for number, place in places.items():
            reader.seek(place, wanted[number].begin)
        until = boot_us() + int(_PATIENCE_S * 1e6)
        while look.done < wanted.keys():
            for place in reader.poll(timeout_ms=1000):
                reader.pause(place)
            if boot_us() > until:
                raise UnreachableError(f"Topic {self._topic!r} cannot be read: no answer for {_PATIENCE_S:.0f} s.")
        return Poison(look.found, look.heavy)

    def close(self) -> None:
        """Lets go of the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _opened(self) -> KafkaConsumer:
        if self._consumer is None:
            self._consumer = consumer(self._settings, **_FETCH)
            self._consumer._fetcher.PartitionRecords = partial(_Batches, self)  # noqa: SLF001 - made deep inside its constructor
        return self._consumer


class _Batches(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Goes over batches, and gives one thing only: that the end was reached."""

    next_fetch_offset: int

    def __init__(self, guard: Guard, *arguments: Any, **options: Any) -> None:
        self._guard = guard
        super().__init__(*arguments, **options)

    def _maybe_skip_record(self, _record: Any) -> bool:
        return False

    def _unpack_records(self, tp: Any, records: MemoryRecords, *_: Any) -> Iterator[Any]:
        look = self._guard.current
        with suppress(CorruptRecordError):  # it is fetched again, as long as there is patience
            while tp.partition not in look.done and (batch := records._next_slice) is not None:  # noqa: SLF001 - its bytes
                self.next_fetch_offset = look.batch(tp.partition, batch, self.next_fetch_offset)
                records._cache_next()  # noqa: SLF001
        if tp.partition in look.done:
            yield tp
        self.drain()
