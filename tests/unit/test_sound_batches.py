"""Whatever stands in a topic: tails read all of a batch or pass over all of it, and what they pass over ingest sets aside."""

import gzip
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import CorruptRecordError
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from scylla_spark.io.kafka import batch_records
from scylla_spark.io.kafka.batch_guard import HEAVY_RECORD, Unread, _Look
from scylla_spark.io.kafka.bounded_fetch import MOST_TAKEN, Room, _PartitionRecords
from scylla_spark.io.kafka.decompression import GZIP, LZ4
from scylla_spark.io.kafka.stream_offsets import Range
from tests.spark.raw_batches import HEAD, batch, sealed

PLACE = TopicPartition("tasks", 0)
TWO = batch(0, (b"k", b"one", []), (b"k", b"two", [("h", b"v")]))
BODY = TWO[
    HEAD:
]  # of a record: size, attributes, milliseconds, offset, size of key, key, size of value, value, headers
FIRST = 1 + BODY[0] // 2  # bytes of the first record


def made(body, codec=GZIP, head=TWO[:HEAD], base=0):
    """A batch with these bytes for records."""
    data = sealed(head + (gzip.compress(body) if codec else body), codec)
    return struct.pack(">q", base) + data[8:]  # where it stands is no part of what is summed up


def counted(last, count):
    """The head of a batch that says so of its last offset and number of records."""
    return TWO[:23] + struct.pack(">i", last) + TWO[27:57] + struct.pack(">i", count)


def tail(*batches, at=0):
    """Offset and value of what a tail reads."""
    part = _PartitionRecords(at, PLACE, MemoryRecords(b"".join(batches)))
    read = []
    while part:
        read += [(record.offset, record.value) for record in part.take(100)]
    return read, part.next_fetch_offset


def guard(data):
    """What ingest's guard sets aside of a batch, and the offset after it."""
    look = _Look({0: 1 << 40})
    end = look.batch(0, memoryview(data), 0)
    return look.found.get(0, []), end


UNSOUND = {
    "a record that says it is empty": BODY[:FIRST] + b"\0" + BODY[FIRST + 1 :],
    "a first record that says it is empty": b"\0" + BODY[1:],
    "a record that says it is larger": bytes([BODY[0] + 2]) + BODY[1:],
    "a record that says it is smaller": bytes([BODY[0] - 2]) + BODY[1:],
    "a record of less than nothing": b"\1" + BODY[1:],
    "a number without end": b"\x80" * 12 + BODY,
    "a size of six bytes": bytes([BODY[0] | 0x80]) + b"\x80" * 4 + b"\0" + BODY[1:],
    "a size of more than 32 bits": bytes([BODY[0] | 0x80]) + b"\x80" * 3 + b"\x7f" + BODY[1:],
    "too few records": BODY[:FIRST],
    "half a record": BODY[:-3],
    "something behind the records": BODY + b"\0",
    "the same offset twice": BODY[: FIRST + 3] + b"\0" + BODY[FIRST + 4 :],
    "offsets that fall": BODY[:3] + b"\2" + BODY[4 : FIRST + 3] + b"\0" + BODY[FIRST + 4 :],
    "an offset before the batch": BODY[:3] + b"\5" + BODY[4:],
    "an offset behind the batch": BODY[: FIRST + 3] + b"\x7e" + BODY[FIRST + 4 :],
    "less than no headers": BODY[: FIRST - 1] + b"\1" + BODY[FIRST:],
    "very many headers": bytes([BODY[0] + 8]) + BODY[1 : FIRST - 1] + b"\xfe\xff\xff\xff\x0f" + BODY[FIRST:],
}


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize("name", UNSOUND)
def test_a_batch_that_cannot_be_read_is_passed_over_as_a_whole_and_set_aside(name, codec):
    bad = made(UNSOUND[name], codec, base=2)
    assert tail(TWO, bad, made(BODY, base=4)) == ([(0, b"one"), (1, b"two"), (4, b"one"), (5, b"two")], 6)
    assert tail(bad, at=2) == ([], 4), "it may be the last one"
    (unread,), end = guard(bad)
    assert (unread.offsets, unread.reason, end) == (Range(2, 4), "unreadable", 4)
    assert unread.detail.startswith(f"a {'gzip' if codec else 'plain'} batch of {len(bad)} bytes cannot be read: ")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_there_is_not_stops_nobody(codec):
    bad = sealed(TWO, codec)
    assert tail(bad) == ([], 2)
    assert guard(bad)[0] == [Unread(Range(0, 2), "unreadable", guard(bad)[0][0].detail)]


@pytest.mark.parametrize("count", [-1, -(1 << 31), 1, 3, (1 << 31) - 1])
def test_a_wrong_number_of_records_stops_nobody(count):
    bad = made(BODY, head=counted(1, count))
    assert tail(bad) == ([], 2)
    assert [unread.offsets for unread in guard(bad)[0]] == [Range(0, 2)]
    assert [unread.offsets for unread in guard(made(b"", head=counted(1, -1)))[0]] == [Range(0, 2)]


@pytest.mark.parametrize("attributes", [1, 0x7F, 0x80, 0x81, 0xFF])
def test_attributes_of_a_record_are_one_byte_that_says_nothing(attributes):
    good = made(BODY[:1] + bytes([attributes]) + BODY[2:], codec=0)
    assert tail(good) == ([(0, b"one"), (1, b"two")], 2)
    assert guard(good) == ([], 2)


def test_offsets_may_be_missing_where_a_topic_was_compacted():
    good = made(BODY[: FIRST + 3] + b"\6" + BODY[FIRST + 4 :], head=counted(5, 2))
    assert tail(good) == ([(0, b"one"), (3, b"two")], 6)
    assert guard(good) == ([], 6)


def legacy(*values, damaged=False):
    """A batch of the format before Kafka 0.11, as it stands in the log of a broker: named by its last offset."""
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    for number, value in enumerate(values):
        builder.append(number, timestamp=1, key=b"k", value=value)
    body = bytearray(builder.build())
    body[-1] ^= damaged
    wrapper = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    wrapper.append(0, timestamp=1, key=None, value=gzip.compress(bytes(body)))
    packed = bytearray(wrapper.build())
    packed[17] |= GZIP  # attributes
    struct.pack_into(">I", packed, 12, zlib.crc32(bytes(packed[16:])))
    return struct.pack(">q", len(values) - 1) + bytes(packed[8:])


def test_batches_of_old_formats_are_read_or_passed_over_and_set_aside():
    assert tail(legacy(b"one", b"two"), made(BODY, base=2)) == ([(0, b"one"), (1, b"two"), (2, b"one"), (3, b"two")], 4)
    assert guard(legacy(b"one", b"two")) == ([], 2)
    bad = legacy(b"one", b"two", damaged=True)
    assert tail(bad, made(BODY, base=2)) == ([(2, b"one"), (3, b"two")], 4)
    (unread,), end = guard(bad)
    assert (unread.offsets, unread.reason, end) == (Range(0, 2), "unreadable", 2)


@pytest.mark.slow
@given(
    changes=st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(0, 255)), max_size=3),
    behind=st.binary(max_size=4),
    last=st.integers(0, 3),
    count=st.integers(1, 4),
    codec=st.sampled_from([0, GZIP]),
)
@settings(max_examples=400)
def test_whatever_the_bytes_are_tails_and_ingest_agree(changes, behind, last, count, codec):
    body = bytearray(BODY + behind)
    for place, byte in changes:
        body[place] = byte
    data = made(bytes(body), codec, counted(last, count))
    read, after = tail(data)
    aside, end = guard(data)
    assert after == end == last + 1
    assert [unread.offsets for unread in aside] == ([] if len(read) == count else [Range(0, end)])
    assert not read or not aside
    assert all(0 <= offset < end for offset, _ in read)


def test_a_batch_that_was_damaged_on_its_way_is_asked_for_again_and_nothing_of_it_is_set_aside():
    damaged = bytearray(made(UNSOUND["half a record"], base=2))
    damaged[-1] ^= 1
    part = _PartitionRecords(0, PLACE, MemoryRecords(TWO + damaged))
    assert [record.offset for record in part.take(10)] == [0, 1]
    assert (part.next_fetch_offset, bool(part)) == (2, False), "what comes then is fetched"
    with pytest.raises(CorruptRecordError):
        _PartitionRecords(2, PLACE, MemoryRecords(bytes(damaged))).take(10)
    with pytest.raises(CorruptRecordError):
        guard(bytes(damaged))


def test_out_of_memory_is_no_fault_of_a_batch(monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(batch_records, "unpacked", full)
    with pytest.raises(MemoryError):
        tail(made(BODY))
    with pytest.raises(MemoryError):
        guard(made(BODY))


def test_a_batch_of_more_records_than_an_honest_one_can_hold_is_too_large(monkeypatch):
    monkeypatch.setattr(batch_records, "MOST_RECORDS", 1)
    assert tail(TWO) == ([], 2)
    ((_, reason, detail),), _ = guard(TWO)
    assert (reason, detail) == ("too_large", f"a plain batch of {len(TWO)} bytes holds more than 1 records")


def test_one_huge_record_among_many_small_ones_is_heavy():
    small = [(b"k", b"v", [])] * 3000
    large = [*small, (b"k", b"x" * (HEAVY_RECORD + 1), [])]
    for codec, records, heavy in ((LZ4, small, False), (LZ4, large, True), (LZ4, large[-2:], True), (0, large, False)):
        look = _Look({0: 1 << 40})
        look.batch(0, memoryview(batch(codec, *records)), 0)
        assert (look.heavy, look.found) == (heavy, {})


def test_records_beyond_a_thousand_are_read_the_same():
    many = batch(LZ4, *((b"k", str(number).encode(), []) for number in range(2500)))
    part = _PartitionRecords(7, PLACE, MemoryRecords(many))
    read = []
    while part:
        read += [(record.offset, record.value) for record in part.take(100)]
    assert read == [(number, str(number).encode()) for number in range(7, 2500)]


@pytest.mark.slow
def test_a_take_ends_when_there_is_no_room_and_the_next_goes_on():
    large = batch(GZIP, *[(b"k", b"x" * 1_000_000, [])] * 40)
    data = b"".join(struct.pack(">q", 40 * number) + large[8:] for number in range(3))
    room = Room()
    part = _PartitionRecords(0, PLACE, MemoryRecords(data), room=room)
    offsets = []
    while part:
        room.left = MOST_TAKEN
        taken = [record.offset for record in part.take(5000)]
        assert len(taken) * 1_000_000 <= MOST_TAKEN + 1_000_000
        assert bool(taken) is (room.left < MOST_TAKEN)
        offsets += taken
    assert offsets == list(range(120))
