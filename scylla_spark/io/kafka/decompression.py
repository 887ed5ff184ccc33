"""Compressed batches of Kafka, unpacked within a bound.

What limits a record on its way in, `max.message.bytes`, is the size of its compressed batch: 900 MB of one letter pass a limit
of 2 MiB. So before a batch is unpacked, or while it is, its size is bounded; a batch that is larger counts as unreadable.
All codecs are read without packages of their own: a topic takes whatever codec a producer chooses.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

MOST_UNPACKED: Final = 64 << 20
"""Bytes of one batch; an honest one has a few MiB."""
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
NAMES: Final = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16
_GZIP_MEMBER: Final = b"\x1f\x8b\x08"


class TooLarge(Exception):
    """A batch unpacks to more than a bound; the text says to how much."""


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
        raise _too_large(most)
    return found


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"unpacks to more than {most} bytes")


def _gzip(data: bytes, most: int) -> bytes:
    parts, size, whole = [], 0, False
    while size <= most and not (
        whole and not data.startswith(_GZIP_MEMBER)
    ):  # Java, too, passes over what begins no member
        reader = zlib.decompressobj(31)
        try:
            parts.append(reader.decompress(data, most + 1 - size))
        except zlib.error as error:
            raise ValueError(str(error)) from None
        size += len(parts[-1])
        data, whole = reader.unused_data, reader.eof
        if not whole and size <= most:
            raise ValueError("it ends early")
    return b"".join(parts)


def _lz4(data: bytes, most: int) -> bytes:
    import lz4.frame  # type: ignore[import-untyped]

    reader = lz4.frame.LZ4FrameDecompressor()
    try:
        found: bytes = reader.decompress(data, max_length=most + 1)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    if not reader.eof and len(found) <= most:
        raise ValueError("it ends early")
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
    while at + 4 <= len(data):  # Java, too, passes over what is too short for the size of a block
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if not 0 <= length <= len(data) - at:
            raise ValueError(f"a block of {length} bytes does not fit in")
        parts.append(_snappy_block(data[at : at + length], most - size))
        size += len(parts[-1])
        at += length
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
        raise _too_large(most)
    try:
        found: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    except OSError as error:
        raise ValueError(str(error)) from None
    return found


_READERS: Final[dict[int, Callable[[bytes, int], bytes]]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}
