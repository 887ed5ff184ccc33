"""Length-prefixed JSON: how a pool and its child processes talk."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, Final

PREFIX: Final = struct.Struct(">I")


def pack(body: bytes) -> bytes:
    """One frame: four bytes of length, then JSON text."""
    return PREFIX.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames, whatever the pieces in which it arrives.

    Args:
        load: reads JSON text.
    """

    __slots__ = ("_buffer", "_load")

    def __init__(self, load: Callable[[bytes], Any] = json.loads) -> None:
        self._buffer = bytearray()
        self._load = load

    def feed(self, data: bytes) -> list[Any]:
        """Takes bytes as they came and returns the values of all frames that are complete now."""
        buffer = self._buffer
        buffer += data
        values = []
        at = 0
        while len(buffer) - at >= 4:
            end = at + 4 + PREFIX.unpack_from(buffer, at)[0]
            if end > len(buffer):
                break
            values.append(self._load(bytes(buffer[at + 4 : end])))
            at = end
        if at:
            del buffer[:at]
        return values
