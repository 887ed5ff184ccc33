"""Batches in Kafka's own format, made by hand: with any codec, and sent as they are."""

from __future__ import annotations

import gzip
import socket
import struct
import time

import lz4.frame
import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

from scylla_spark.io.kafka.decompression import GZIP, LZ4, SNAPPY, ZSTD

HEAD = 61
PACK = {
    GZIP: lambda data: gzip.compress(data, 6),
    SNAPPY: lambda data: pa.Codec("snappy").compress(data, asbytes=True),
    LZ4: lambda data: lz4.frame.compress(data, block_linked=False),
    ZSTD: lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


def batch(codec, *records):
    """A batch of (key, value, headers) records."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 40,
    )  # fmt: skip
    for number, (key, value, headers) in enumerate(records):
        builder.append(number, int(time.time() * 1000), key, value, headers)
    plain = bytes(builder.build())
    packed = PACK[codec](plain[HEAD:]) if codec else plain[HEAD:]
    return sealed(plain[:HEAD] + packed, codec)


def sealed(data, codec):
    """The same bytes with the right length, codec and checksum in their head."""
    data = bytearray(data)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, codec)
    struct.pack_into(">I", data, 17, calc_crc32c(bytes(data[21:])))
    return bytes(data)


def send_batch(bootstrap, topic, partition, data):
    """Sends one batch; returns its first offset."""
    name = topic.encode()
    body = struct.pack(">hhi", 0, 7, 1) + struct.pack(">h", 4) + b"test" + struct.pack(">hhi", -1, -1, 120_000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(data)) + data
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        answer = _read(connection, struct.unpack(">i", _read(connection, 4))[0])
    error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    assert error == 0, f"the broker refuses it: error {error}"
    return offset


def _read(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data
