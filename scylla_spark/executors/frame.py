"""Length-prefixed JSON: how a pool and its child processes talk."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

PREFIX: Final = struct.Struct(">I")
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def pack(value: Any) -> bytes:
    """One frame: four bytes of length, then the JSON text of `value`."""
    return pack_text(_encode(value).encode())


def pack_text(body: bytes) -> bytes:
    """One frame around text that is JSON already."""
    return PREFIX.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames, whatever the pieces in which it arrives."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

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
            values.append(_decode(buffer[at + 4 : end].decode()))
            at = end
        if at:
            del buffer[:at]
        return values
