"""Length-prefixed JSON: how a pool and its child processes talk."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, Final

PREFIX: Final = struct.Struct(">I")
MAX_FRAME_BYTES: Final = 32 * 1024 * 1024  # from a child; a longer record is replaced by one that says so


class ProtocolError(ValueError):
    """Bytes or records that no process of ours would send; the message says what is wrong with them."""


def pack(body: bytes) -> bytes:
    """One frame: four bytes of length, then JSON text."""
    return PREFIX.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames, whatever the pieces in which it arrives.

    The other end may be user code. So a frame that is too long or no JSON is no exception, which would take the frames
    before it along: it is noted in `fault`, and nothing that comes later is read.

    Args:
        load: reads JSON text.
        longest: most bytes of a frame.

    Attributes:
        longest: see above; it may be changed between two frames.
        fault: what was wrong with the bytes, or empty.
    """

    __slots__ = ("_buffer", "_load", "fault", "longest")

    def __init__(self, load: Callable[[bytes], Any] = json.loads, *, longest: int = (1 << 32) - 1) -> None:
        self._buffer = bytearray()
        self._load = load
        self.longest = longest
        self.fault = ""

    def feed(self, data: bytes) -> list[Any]:
        """Takes bytes as they came and returns the values of all frames that are complete now."""
        values: list[Any] = []
        if self.fault:
            return values
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            size = PREFIX.unpack_from(buffer, at)[0]
            end = at + 4 + size
            if size > self.longest:
                self.fault = f"a frame of {size} bytes; at most {self.longest} are allowed"
                break
            if end > len(buffer):
                break
            try:
                values.append(self._load(bytes(buffer[at + 4 : end])))
            except (ValueError, RecursionError):
                self.fault = f"a frame of {size} bytes that is not JSON"
                break
            at = end
        if self.fault:
            buffer.clear()
        elif at:
            del buffer[:at]
        return values
