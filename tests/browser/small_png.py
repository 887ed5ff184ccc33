"""Makes PNG pictures small: 256 colours are enough for a page of text."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEPT_BITS = 0xF8F8F8  # colours that differ in less than this look alike


def small(picture: bytes) -> bytes:
    """A PNG of 8 bits per point with a palette, of one with 8 bits for each of three or four channels, as browsers write them."""
    width, height, channels, raw = _read(picture)
    points = _unfiltered(raw, width, height, channels)[..., :3].astype(np.uint32)
    colours = (points[..., 0] << 16) | (points[..., 1] << 8) | points[..., 2]
    palette = _palette(colours)
    indices = _nearest(colours, palette)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), indices.astype(np.uint8)], axis=1)
    table = b"".join(struct.pack(">I", int(one))[1:] for one in palette)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", table), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _read(picture: bytes) -> tuple[int, int, int, bytes]:
    assert picture.startswith(_SIGNATURE), "it is no PNG"
    place, data = len(_SIGNATURE), b""
    width = height = channels = 0
    while place < len(picture):
        (size,), kind = struct.unpack(">I", picture[place : place + 4]), picture[place + 4 : place + 8]
        body = picture[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            width, height, bits, colour = struct.unpack(">IIBB", body[:10])
            assert bits == 8, "8 bits for each channel"
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += body
        place += 12 + size
    return width, height, channels, zlib.decompress(data)


def _unfiltered(raw: bytes, width: int, height: int, channels: int) -> np.ndarray:
    """The points of all rows, each of which says how it follows from its neighbours."""
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + width * channels)
    found = np.zeros((height, width, channels), np.uint8)
    above = np.zeros((width, channels), np.uint8)
    for number, line in enumerate(lines):
        above = found[number] = _row(int(line[0]), line[1:].reshape(width, channels), above)
    return found


def _row(kind: int, line: np.ndarray, above: np.ndarray) -> np.ndarray:
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind == 2:
        return line + above
    found = np.zeros_like(line).tolist()
    left = corner = [0] * line.shape[1]
    for place, (given, upper) in enumerate(zip(line.tolist(), above.tolist(), strict=True)):
        if kind == 3:
            now = [(g + (a + b) // 2) & 255 for g, a, b in zip(given, left, upper, strict=True)]
        else:
            now = [(g + _paeth(a, b, c)) & 255 for g, a, b, c in zip(given, left, upper, corner, strict=True)]
        found[place] = left = now
        corner = upper
    return np.array(found, np.uint8)


def _paeth(left: int, upper: int, corner: int) -> int:
    guess = left + upper - corner
    near = (abs(guess - left), abs(guess - upper), abs(guess - corner))
    return left if near[0] <= near[1] and near[0] <= near[2] else upper if near[1] <= near[2] else corner


def _palette(colours: np.ndarray) -> np.ndarray:
    """The most frequent colours, of such that look alike the most frequent."""
    values, counts = np.unique(colours, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    _, first = np.unique(values[order] & _KEPT_BITS, return_index=True)
    return values[order][np.sort(first)][:256]


def _nearest(colours: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """For each point the place of the palette that is nearest to it."""
    values, places = np.unique(colours, return_inverse=True)
    split = lambda some: np.stack([(some >> 16) & 255, (some >> 8) & 255, some & 255], axis=-1).astype(np.int32)  # noqa: E731
    far = np.abs(split(values)[:, None, :] - split(palette)[None, :, :]).sum(axis=2)
    return far.argmin(axis=1)[places].reshape(colours.shape)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
