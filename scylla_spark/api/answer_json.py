"""JSON of the answers of the API. It is always valid JSON, also for records that other programs wrote."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from scylla_spark.clock import iso_of


def answer_json(value: Any) -> str:
    """Returns compact JSON of plain values, instants and models. A number that JSON cannot hold (`1e400` is one for Python) is null."""
    try:
        return _text(value)
    except ValueError:
        return _text(_finite(value))


def _plain(value: Any) -> Any:
    """Converts what the encoder does not know."""
    if isinstance(value, BaseModel):
        return dict(value)
    if isinstance(value, datetime):
        return iso_of(value)
    raise TypeError(f"An answer holds a {type(value).__name__}.")


_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode


def _finite(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _finite(dict(value))
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
