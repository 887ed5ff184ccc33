"""Consumers go on behind whatever stands in a topic: batches that unpack to far more than they look, any codec, any header."""

import tracemalloc

import pytest
from kafka import TopicPartition

from scylla_spark.io.kafka.batch_guard import NO_POISON, Guard
from scylla_spark.io.kafka.bounded_fetch import MOST_TAKEN
from scylla_spark.io.kafka.decompression import GZIP, LZ4, MOST_UNPACKED, SNAPPY, ZSTD
from scylla_spark.io.kafka.stream_offsets import Range
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import consumer, end_offsets
from tests.spark.raw_batches import HEAD, PACK, batch, sealed, send_batch
from tests.support.shared_broker import settings_on

BOMB = b"x" * 200_000_000
GOOD = (b"k", b"good", [])


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    found = settings_on(broker, tmp_path_factory.mktemp("fetch"), partitions=16)
    ensure_topics(found)
    return found


@pytest.fixture
def place(settings):
    """A partition that no other test of this module has used, and a function that sends a batch to it."""
    ends = end_offsets(settings, settings.topics.tasks, list(range(16)))
    number = next(number for number, end in ends.items() if end == 0)
    return number, lambda data: send_batch(settings.kafka.bootstrap_servers, settings.topics.tasks, number, data)


def values(settings, number):
    """Offset and value of all that a consumer of ours sees of a partition."""
    end, seen = end_offsets(settings, settings.topics.tasks, [number])[number], []
    with consumer(settings) as reader:
        spot = TopicPartition(settings.topics.tasks, number)
        reader.assign([spot])
        reader.seek(spot, 0)
        for _ in range(20):
            for records in reader.poll(timeout_ms=1000).values():
                seen += [(record.offset, record.value) for record in records]
            if reader.position(spot) >= end:
                return seen
    raise AssertionError(f"it stands at {reader.position(spot)} of {end}")


@pytest.mark.promise
def test_a_batch_that_unpacks_to_far_more_than_it_looks_is_skipped(settings, place):
    number, send = place
    send(batch(ZSTD, GOOD, GOOD))
    send(batch(ZSTD, GOOD, (b"k", BOMB, []), GOOD))
    send(batch(0, GOOD))
    tracemalloc.start()
    try:
        assert values(settings, number) == [(0, b"good"), (1, b"good"), (5, b"good")]
        assert tracemalloc.get_traced_memory()[1] < 3 * MOST_UNPACKED
    finally:
        tracemalloc.stop()
    send(batch(ZSTD, (b"k", BOMB, [])))
    assert values(settings, number)[-1] == (5, b"good"), "it may be the last one"
    guard = Guard(settings, settings.topics.tasks)
    try:
        (found,) = guard.look({number: Range(0, 7)}).found.values()
        assert [(bad.offsets, bad.reason) for bad in found] == [(Range(2, 5), "too_large"), (Range(6, 7), "too_large")]
        assert "unpacks to more than" in found[0].detail
        assert guard.look({number: Range(5, 6)}) == NO_POISON
        assert guard.look({number: Range(3, 6)}).found[number][0].offsets == Range(2, 5)
    finally:
        guard.close()


def test_all_codecs_are_read_and_any_name_of_a_header(settings, place):
    number, send = place
    for codec in (0, GZIP, SNAPPY, LZ4, ZSTD):
        send(batch(codec, GOOD, (b"k", None, []), (None, b"no key", [("name", b"v"), ("other", None)])))
    bad = batch(0, (b"k", b"odd header", [("\xe9\xe9", b"v")])).replace("\xe9\xe9".encode(), b"\xff\xfe\xff\xfe")
    send(sealed(bad, 0))
    send(batch(0, GOOD))
    seen = values(settings, number)
    assert [value for _, value in seen] == [b"good", None, b"no key"] * 5 + [b"odd header", b"good"]
    assert [offset for offset, _ in seen] == list(range(17))


PLAIN = batch(0, GOOD, GOOD)
FIRST = 1 + PLAIN[HEAD] // 2  # bytes of its first record


def altered(place, byte, codec):
    """Two good records, of which one byte is another, as the broker takes them."""
    body = bytearray(PLAIN[HEAD:])
    body[place] = byte
    return sealed(PLAIN[:HEAD] + (PACK[codec](bytes(body)) if codec else bytes(body)), codec)


UNREADABLE = {
    "a record that says it is empty": altered(FIRST, 0, GZIP),
    "a record that says it is smaller": altered(FIRST, PLAIN[HEAD] - 2, ZSTD),
    "an offset before the batch": altered(3, 5, 0),
    "an offset far behind the batch": altered(FIRST + 3, 0x7E, 0),
    "the same offset twice": altered(FIRST + 3, 0, 0),
}


@pytest.mark.promise
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_a_broker_acknowledges_and_nobody_can_read_is_skipped_and_set_aside(settings, place, name):
    number, send = place
    send(batch(0, GOOD))
    assert send(UNREADABLE[name]) == 1, "it is acknowledged"
    send(batch(0, GOOD))
    assert values(settings, number) == [(0, b"good"), (3, b"good")]
    guard = Guard(settings, settings.topics.tasks)
    try:
        looked = guard.look({number: Range(0, 4)})
        ((bad, reason, detail),) = looked.found[number]
        assert (bad, reason, looked.heavy) == (Range(1, 3), "unreadable", False)
        assert "batch of" in detail
    finally:
        guard.close()


def test_what_java_reads_is_read(settings, place):
    number, send = place
    xerial = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    block = PACK[SNAPPY](PLAIN[HEAD:])
    packed = {
        GZIP: PACK[GZIP](PLAIN[HEAD:]) + b"something behind it",
        SNAPPY: xerial + len(block).to_bytes(4, "big") + block + b"\0",
    }
    for codec, data in packed.items():
        send(sealed(PLAIN[:HEAD] + data, codec))
    send(altered(1, 0x81, 0))  # attributes of a record
    assert values(settings, number) == [(offset, b"good") for offset in range(6)]
    guard = Guard(settings, settings.topics.tasks)
    try:
        assert guard.look({number: Range(0, 6)}) == NO_POISON
    finally:
        guard.close()


@pytest.mark.promise
def test_a_poll_takes_so_many_bytes_and_the_next_goes_on(settings, place):
    number, send = place
    for _ in range(3):
        send(batch(ZSTD, *[(b"k", b"x" * 1_000_000, [])] * 40))
    seen = []
    with consumer(settings) as reader:
        spot = TopicPartition(settings.topics.tasks, number)
        reader.assign([spot])
        reader.seek(spot, 0)
        for _ in range(20):
            records = reader.poll(timeout_ms=1000).get(spot, [])
            assert sum(len(record.value) for record in records) <= MOST_TAKEN + 1_000_000
            seen += [record.offset for record in records]
            if len(seen) >= 120:
                break
    assert seen == list(range(120))


def test_records_that_are_large_but_not_too_large_are_told_as_heavy(settings, place):
    number, send = place
    send(batch(ZSTD, (b"k", b"x" * 30_000_000, [])))
    guard = Guard(settings, settings.topics.tasks)
    try:
        looked = guard.look({number: Range(0, 1)})
        assert (looked.found, looked.heavy) == ({}, True)
    finally:
        guard.close()
    assert [len(value) for _, value in values(settings, number)] == [30_000_000]
