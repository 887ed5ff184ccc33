"""What lines of attempts are made of: text that comes in pieces, and the level and fields of records of `logging`."""

from __future__ import annotations

import json
import logging
import math
from typing import Final

from scylla_spark.core.leases.lines import LEVELS

_MOST_FIELDS_BYTES: Final = 4 * 1024
_MOST_FIELDS: Final = 32
_MOST_VALUE_CHARS: Final = 1_000
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class OpenLine:
    """A line whose end was not written yet, as far as it can be kept.

    Args:
        most: characters beyond which it is not kept.
    """

    __slots__ = ("_chars", "_most", "_pieces", "begun")

    def __init__(self, most: int) -> None:
        self._most = most + 1  # one more, so that it is seen to be cut
        self._pieces: list[str] = []
        self._chars = 0
        self.begun = False

    def add(self, text: str, start: int, stop: int) -> None:
        """Adds a piece of a text.

        Args:
            text: of which it is a piece.
            start: where it begins.
            stop: behind its last character.
        """
        self.begun = self.begun or stop > start
        room = self._most - self._chars
        if room > 0 and stop > start:
            self._pieces.append(text[start : min(stop, start + room)])
            self._chars += len(self._pieces[-1])

    def take(self) -> str:
        """The line so far; the next one begins."""
        text = "".join(self._pieces)
        self._pieces, self._chars, self.begun = [], 0, False
        return text


def level_of(record: logging.LogRecord) -> str:
    """The level of a record, or the nearest that is known."""
    level = record.levelname.lower()
    return level if level in LEVELS else LEVELS[min(max(record.levelno // 10 - 1, 0), len(LEVELS) - 1)]


def fields_of(record: logging.LogRecord) -> str:
    """Text of a JSON object: the logger's name, and what `extra=` holds; bounded."""
    found: dict[str, object] = {"logger": record.name[:_MOST_VALUE_CHARS]}
    for name, value in vars(record).items():
        if name not in _PLAIN and len(found) < _MOST_FIELDS:
            found[str(name)[:100]] = value if _is_plain(value) else _shown(value)
    text = json.dumps(found, ensure_ascii=False).encode(errors="replace").decode()
    return text if len(text.encode()) <= _MOST_FIELDS_BYTES else json.dumps({"logger": found["logger"]})


def _is_plain(value: object) -> bool:
    """Whether JSON has the value as it is, and in few letters."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1 << 63)


def _shown(value: object) -> str:
    try:
        return str(value)[:_MOST_VALUE_CHARS]
    except Exception as error:
        return f"<no text: {type(error).__name__}>"
