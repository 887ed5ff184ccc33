"""Looks at compressed batches before Spark's Kafka client unpacks them, because that client has no bound of its own.

Only the heads of batches are read, and those compressed ones are unpacked (within the bound) that could be too large by their
codec and size. A batch without compression is as large as it looks, and that the broker bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka.decompression import MOST_UNPACKED, NAMES, TooLarge, most_it_can_be, unpacked
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
_HEAD: Final = DefaultRecordBatch.HEADER_STRUCT
_SIZE, _MAGIC, _ATTRIBUTES, _LAST_DELTA, _COUNT = 1, 3, 5, 6, 12  # fields of a batch's head
_FORMAT: Final = 2  # the format of which this is the head
_CODEC_MASK: Final = DefaultRecordBatch.CODEC_MASK


class Poison(NamedTuple):
    """What of a range is not as small as it looks.

    Attributes:
        found: partition → offsets that must not be unpacked, and why.
        heavy: others unpack to records so large that Spark's client must take few at a time.
    """

    found: Mapping[int, list[tuple[Range, str]]]
    heavy: bool = False


NO_POISON: Final = Poison({})


@dataclass(slots=True)
class _Look:
    """What one look has found so far."""

    ends: Mapping[int, int]
    found: dict[int, list[tuple[Range, str]]] = field(default_factory=dict)
    heavy: bool = False
    done: set[int] = field(default_factory=set)

    def batch(self, number: int, data: memoryview) -> int:
        """Looks at one batch; returns the offset after it."""
        head = _HEAD.unpack_from(data)
        base, last, codec = head[0], head[0] + head[_LAST_DELTA], head[_ATTRIBUTES] & _CODEC_MASK
        if (
            head[_MAGIC] < _FORMAT
        ):  # of a topic that is older than Kafka 0.11: Spark's client may have to take few at a time
            base, last, codec, self.heavy = head[0], head[0], 0, True
        if codec in NAMES and self._suspect(codec, head[_SIZE], max(1, head[_COUNT])):
            try:
                size = len(unpacked(codec, bytes(data[_HEAD.size :])))
                self.heavy = self.heavy or size // max(1, head[_COUNT]) > HEAVY_RECORD
            except TooLarge:
                why = f"a {NAMES[codec]} batch of {len(data)} bytes unpacks to more than {MOST_UNPACKED} bytes"
                self.found.setdefault(number, []).append((Range(base, last + 1), why))
            except ValueError:
                self.heavy = True  # Spark's client may see in it what we do not
        if last + 1 >= self.ends.get(number, 0):
            self.done.add(number)
        return int(last + 1)

    def _suspect(self, codec: int, size: int, count: int) -> bool:
        most = most_it_can_be(codec, size)
        return most > MOST_UNPACKED or most // count > HEAVY_RECORD


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
        """What of these offsets must not be unpacked.

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
            self._consumer._fetcher.PartitionRecords = partial(_Heads, self)  # noqa: SLF001 - made deep inside its constructor
        return self._consumer


class _Heads(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Goes over the heads of batches, and gives one thing only: that the end was reached."""

    def __init__(self, guard: Guard, *arguments: Any, **options: Any) -> None:
        self._guard = guard
        super().__init__(*arguments, **options)

    def _maybe_skip_record(self, _record: Any) -> bool:
        return False

    def _unpack_records(self, tp: Any, records: MemoryRecords, *_: Any) -> Iterator[Any]:
        look = self._guard.current
        while tp.partition not in look.done and (batch := records._next_slice) is not None:  # noqa: SLF001 - its bytes
            records._cache_next()  # noqa: SLF001
            self.next_fetch_offset = look.batch(tp.partition, batch)
        if tp.partition in look.done:
            yield tp
        self.drain()
