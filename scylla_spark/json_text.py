"""Reads JSON that others have written, strictly: NaN and Infinity, which Python reads, are no JSON."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def read_json(text: str) -> Any:
    """The value of a JSON text; a number beyond the range of floats is infinite.

    Raises:
        ValueError: it is no JSON, or nested too deep to be read.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("It is nested too deep.") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON.")
