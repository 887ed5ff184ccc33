"""The records of a batch in Kafka's format (since 0.11), all of which are looked at before the first is given.

A broker looks only at what it needs: in compressed batches it passes over keys and values without adding up the size of their
record, in others it does not ask for the offsets. So what it acknowledges may stop whoever reads it, for ever. Who acts on
records (`bounded_fetch`) and who guards Spark's client (`batch_guard`) ask here: what the first passes over the second sets
aside, and what is let pass Java's client reads, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, NoReturn, TypeAlias

from scylla_spark.io.kafka.decompression import MOST_UNPACKED, TooLarge, unpacked

MOST_RECORDS: Final = MOST_UNPACKED // 64
"""Records of one batch; an honest one takes more than 64 bytes."""
_FEW: Final = 1000  # of which it is kept where their fields are; the fields of more are looked for twice
_INT, _LONG = 5, 10  # bytes that a number of so many bits takes at most

Fields: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Of a record: its size; milliseconds and offset beyond those of its batch; where key and value begin, and the size of each
(below 0: it is null), in the order key, its size, value, its size."""


class Records:
    """The records of a batch, all of them sound.

    Attributes:
        data: their bytes, unpacked.

    Args:
        codec: with which they are packed; 0: they are not.
        packed: their bytes.
        count: how many they are said to be.
        last: offset of the last beyond that of the batch.

    Raises:
        TooLarge: they are more, or take more bytes, than are read.
        ValueError: they are damaged, or were made wrong.
        IndexError: they end early.
    """

    __slots__ = ("_few", "_largest", "_many", "data")

    def __init__(self, codec: int, packed: bytes, count: int, last: int) -> None:
        if count > MOST_RECORDS:
            raise TooLarge(f"holds more than {MOST_RECORDS} records")
        if count < 0:
            _refuse(f"it is said to hold {count} records")
        self.data = unpacked(codec, packed) if codec else packed
        self._many = (self.data, count, last)
        self._few = list(_fields(*self._many)) if count <= _FEW else None
        self._largest = _largest(self) if self._few is None else None

    def __iter__(self) -> Iterator[Fields]:
        return _fields(*self._many) if self._few is None else iter(self._few)

    def has_larger(self, size: int) -> bool:
        """Returns True if one of them is larger than so many bytes."""
        return len(self.data) > size and (self._largest or _largest(self)) > size


def _largest(records: Iterable[Fields]) -> int:
    return max(map(itemgetter(0), records), default=0)


def _fields(data: bytes, count: int, last: int) -> Iterator[Fields]:
    """Goes over records; each holds exactly what its size says, and their offsets rise within the batch."""
    at, before = 0, -1
    for _ in range(count):
        size, begin = _number(data, at, _INT)
        late_ms, pos = _number(data, begin + 1, _LONG)  # one byte of attributes, of which no bit means anything
        delta, pos = _number(data, pos, _INT)
        key, key_at = _number(data, pos, _INT)
        value, value_at = _number(data, key_at + key if key > 0 else key_at, _INT)
        pos = value_at + value if value > 0 else value_at
        if data[pos]:
            pos = _past_headers(data, pos)
        else:
            pos += 1
        at = begin + size
        if pos != at:
            _refuse(f"a record of {size} bytes holds {pos - begin}")
        if not before < delta <= last:
            _refuse(f"offset {delta} comes after {before} in a batch that ends with {last}")
        before = delta
        yield size, late_ms, delta, key_at, key, value_at, value
    if at != len(data):
        _refuse(f"records end at byte {at} of {len(data)}")


def _number(data: bytes, at: int, most: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    found = data[at]
    if found < 0x80:
        return (found >> 1) ^ -(found & 1), at + 1
    more = data[at + 1]
    found = found & 0x7F | more << 7
    if more < 0x80:
        return (found >> 1) ^ -(found & 1), at + 2
    return _long_number(data, at, most)


def _long_number(data: bytes, at: int, most: int) -> tuple[int, int]:
    found = 0
    for place in range(most):
        byte = data[at + place]
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if most == _INT and found >> 32:
                _refuse("a number has more than 32 bits")
            return (found >> 1) ^ -(found & 1), at + place + 1
    _refuse(f"a number has more than {most} bytes")


def _past_headers(data: bytes, at: int) -> int:
    """Returns where the headers end; nobody here reads them, and a name may be any bytes."""
    count, at = _number(data, at, _INT)
    if count < 0:
        _refuse(f"a record has {count} headers")
    for _ in range(count):
        name, at = _number(data, at, _INT)
        if name < 0:
            _refuse(f"the name of a header has {name} bytes")
        value, at = _number(data, at + name, _INT)
        at += max(value, 0)
    return at


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)
