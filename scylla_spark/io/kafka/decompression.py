"""Compressed batches of Kafka, unpacked within a bound.

What limits a record on its way in, `max.message.bytes`, is the size of its compressed batch: 900 MB of one letter pass a limit
of 2 MiB. So before a batch is unpacked, or while it is, its size is bounded; a batch that is larger counts as unreadable.
All codecs are read without packages of their own: a topic takes whatever codec a producer chooses.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

MOST_UNPACKED: Final = 64 << 20
"""Bytes of one batch; an honest one has a few MiB."""
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
NAMES: Final = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16
_MOST_RATIO: Final = {GZIP: 1032, SNAPPY: 32, LZ4: 255, ZSTD: 1 << 20}  # what a byte can become at most


class TooLarge(Exception):
    """A batch unpacks to more than the bound."""


def most_it_can_be(codec: int, size: int) -> int:
    """An upper bound of what so many bytes unpack to, from the codec alone."""
    return size * _MOST_RATIO.get(codec, 1 << 20) + 1


def unpacked(codec: int, data: bytes, most: int = MOST_UNPACKED) -> bytes:
    """The records of a batch.

    Args:
        codec: number in the batch's attributes.
        data: compressed records.
        most: bytes.

    Raises:
        TooLarge: there are more; no more than that is held in memory meanwhile.
        ValueError: no such codec, or the data is damaged.
    """
    if codec not in _READERS:
        raise ValueError(f"there is no codec {codec}")
    found = _READERS[codec](data, most)
    if len(found) > most:
        raise TooLarge
    return found


def _gzip(data: bytes, most: int) -> bytes:
    parts, size = [], 0
    while data and size <= most:
        reader = zlib.decompressobj(31)
        try:
            parts.append(reader.decompress(data, most + 1 - size))
        except zlib.error as error:
            raise ValueError(str(error)) from None
        size += len(parts[-1])
        data = reader.unused_data
    return b"".join(parts)


def _lz4(data: bytes, most: int) -> bytes:
    import lz4.frame  # type: ignore[import-untyped]

    try:
        found: bytes = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=most + 1)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    return found


def _zstd(data: bytes, most: int) -> bytes:
    import pyarrow as pa

    try:
        with pa.input_stream(pa.BufferReader(data), compression="zstd") as stream:
            found: bytes = stream.read(most + 1)
    except OSError as error:
        raise ValueError(str(error)) from None
    return found


def _snappy(data: bytes, most: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _snappy_block(data, most)
    parts, size, at = [], 0, _XERIAL_HEADER
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        parts.append(_snappy_block(data[at + 4 : at + 4 + length], most - size))
        size += len(parts[-1])
        at += 4 + length
    return b"".join(parts)


def _snappy_block(block: bytes, most: int) -> bytes:
    """A raw block; it begins with its unpacked size, which its reader holds it to."""
    import pyarrow as pa

    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most:
        raise TooLarge
    try:
        found: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    except OSError as error:
        raise ValueError(str(error)) from None
    return found


_READERS: Final[dict[int, Callable[[bytes, int], bytes]]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}
