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

from scylla_spark.io.kafka.decompression import GZIP, LZ4, SNAPPY, ZSTD, TooLarge, most_it_can_be, unpacked


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
    assert len(data) <= most_it_can_be(codec, len(packed))
    with pytest.raises(TooLarge):
        unpacked(codec, packed, len(data) - 1)


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
    with contextlib.suppress(TooLarge, ValueError):
        assert len(unpacked(codec, data, 10_000)) <= 10_000
