"""Compressed batches are unpacked within a bound, whatever the codec and whatever the bytes."""

import contextlib
import gzip
import struct
import tracemalloc

import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scylla_spark.io.kafka.decompression import GZIP, LZ4, SNAPPY, ZSTD, TooLarge, unpacked


def xerial(data):
    """Snappy as Java's clients frame it."""
    blocks = [data[at : at + 32768] for at in range(0, len(data), 32768)]
    packed = [pa.Codec("snappy").compress(block, asbytes=True) for block in blocks]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in packed)


PACKED = {
    "gzip": (GZIP, gzip.compress),
    "snappy": (SNAPPY, xerial),
    "raw snappy": (SNAPPY, lambda data: pa.Codec("snappy").compress(data, asbytes=True)),
    "lz4": (LZ4, lz4.frame.compress),
    "zstd": (ZSTD, lambda data: pa.Codec("zstd").compress(data, asbytes=True)),
}


@pytest.mark.parametrize("name", PACKED)
@given(data=st.binary(min_size=1, max_size=100_000) | st.integers(1, 300_000).map(lambda n: b"x" * n))
@settings(max_examples=30)
def test_what_was_packed_comes_back(name, data):
    codec, pack = PACKED[name]
    packed = pack(data)
    assert unpacked(codec, packed, len(data)) == data
    with pytest.raises(TooLarge):
        unpacked(codec, packed, len(data) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_a_bomb_is_refused_within_the_bound(name):
    codec, pack = PACKED[name]
    packed = pack(b"x" * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            unpacked(codec, packed, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD, 7])
@given(data=st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_unpacked_or_refused(codec, data):
    for packed in (data, b"\x82SNAPPY\0" + data):
        with contextlib.suppress(TooLarge, ValueError):
            assert len(unpacked(codec, packed, 10_000)) <= 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4), cut=st.integers(0, 40))
@settings(max_examples=100)
def test_what_was_packed_and_damaged_is_unpacked_or_refused(name, changes, cut):
    codec, pack = PACKED[name]
    packed = bytearray(pack(b"hello records " * 50))
    for place, byte in changes:
        packed[place % len(packed)] = byte
    with contextlib.suppress(TooLarge, ValueError):
        assert len(unpacked(codec, bytes(packed[: len(packed) - cut]), 10_000)) <= 10_000


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_what_ends_early_is_refused(name):
    codec, pack = PACKED[name]
    packed = pack(b"hello records " * 50)
    for cut in range(1, 9):
        with pytest.raises(ValueError, match=r"."):  # each codec has words of its own
            unpacked(codec, packed[:-cut])


@pytest.mark.parametrize("behind", [b"\0", b"\0" * 40, b"junk", b"junk" * 40])
def test_what_begins_no_member_of_gzip_is_passed_over_as_java_does(behind):
    data = b"hello records " * 50
    assert unpacked(GZIP, gzip.compress(data) + behind) == data
    assert unpacked(GZIP, gzip.compress(data) + gzip.compress(b"more") + behind) == data + b"more"


@pytest.mark.parametrize("behind", [b"\0", b"\0\0\0"])
def test_what_is_too_short_for_a_block_of_snappy_is_passed_over_as_java_does(behind):
    data = b"hello records " * 50
    assert unpacked(SNAPPY, xerial(data) + behind) == data


@pytest.mark.parametrize("size", [-1, -4, -1000, 5, 1 << 30])
def test_blocks_of_snappy_lie_within_their_data(size):
    with pytest.raises(ValueError, match="does not fit in"):
        unpacked(SNAPPY, xerial(b"hello") + struct.pack(">i", size) + b"\0")
