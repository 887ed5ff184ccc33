"""JSON for the busiest paths: several times as fast as `json`, and as tolerant of what Python texts can hold."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json


def dump(value: Any) -> bytes:
    """Compact JSON of plain values."""
    try:
        return to_json(value)
    except PydanticSerializationError:  # a lone surrogate somewhere; only escaped can it be written
        return json.dumps(value, separators=(",", ":")).encode()


def load(data: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return from_json(data)
    except ValueError:  # an escaped lone surrogate somewhere, perhaps
        return json.loads(data)
