"""JSON that is kept of an attempt: results, checkpoints, metrics, and what lines hold besides. One rule, wherever that is said.

What one place takes, all others have to: a dispatcher's child, a worker in any language, the API, and whoever reads it later.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, Final

MAX_LEVELS: Final = 190
"""So deep may a value be: readers of JSON take two hundred levels, and messages and records stand around it."""

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = [0] * 256
for _opens, _closes in b"[]", b"{}":
    _STEPS[_opens], _STEPS[_closes] = 1, -1


def kept_text(value: Any) -> str:
    """The JSON text of a value, as it is kept.

    Args:
        value: plain JSON: numbers are finite, texts hold whole characters, and nothing is nested deeper than `MAX_LEVELS`.

    Raises:
        TypeError: JSON has no such values.
        ValueError: one of them is not as it has to be; the message says which.
    """
    try:
        text = _encode(value)
    except RecursionError:
        raise _too_deep() from None
    if not text.isascii():
        text.encode()
    check_levels(text)
    return text


def check_levels(text: str) -> None:
    """Refuses what is nested too deep.

    Args:
        text: JSON.

    Raises:
        ValueError: it is.
    """
    if text.count("[") + text.count("{") > MAX_LEVELS and _levels(text) > MAX_LEVELS:
        raise _too_deep()


def size_of(text: str) -> int:
    """Returns how many bytes a text takes."""
    return len(text) if text.isascii() else len(text.encode())


def _levels(text: str) -> int:
    brackets = _STRING.sub("", text).encode(errors="replace").translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {MAX_LEVELS} levels")
