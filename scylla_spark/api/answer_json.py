"""JSON of what the API answers: always JSON, whatever stands in records that other programs wrote."""

from __future__ import annotations

import json
import math
from typing import Any


def answer_json(value: Any) -> str:
    """Compact JSON of plain values; a number that no JSON can hold (`1e400` is one for Python) is null."""
    try:
        return _text(value)
    except ValueError:
        return _text(_finite(value))


_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
