"""How a task is named in a path: by an opaque id, or by the three parts of its key."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Final
from urllib.parse import quote, unquote

from fastapi import Path

from scylla_spark.clock import iso, read_instant
from scylla_spark.core.key import TaskKey, instant_us
from scylla_spark.errors import ArgumentError

MOST_CHARS: Final = 24_000
_COMMAS: Final = 2  # between the three parts of a key
_HINT: Final = "Use the `id` of an answer, or TIME,ORDERING_ID,UNIQUENESS_KEY with each part percent-encoded."

TaskId = Annotated[
    str,
    Path(
        min_length=1,
        description="The `id` of an answer (base64url of the JSON list of the key's parts), or the parts themselves, "
        "each percent-encoded and set apart by commas: 2026-01-31T09:00:00Z,cust-9,inv-17",
        examples=["2026-01-31T09:00:00Z,cust-9,inv-17"],
    ),
]


def path_of(key: TaskKey) -> str:
    """The readable form of a key in a path."""
    return ",".join(
        (quote(iso(key.time_us), safe=":"), quote(key.ordering_id, safe=""), quote(key.uniqueness_key, safe=""))
    )


def key_of(text: str) -> TaskKey:
    """The key of an id, or of the parts, as they stand in the path of a request (not decoded).

    Clients that are made from a description encode what they put into a path as a whole, the commas too.

    Raises:
        ArgumentError: it is neither.
    """
    form = text if "," in text else _unquoted(text)
    parts = _decoded(text) if form.count(",") != _COMMAS else [_unquoted(part) for part in form.split(",")]
    time, ordering_id, uniqueness_key = parts
    try:
        moment = read_instant(time)
        key = TaskKey(instant_us(moment), ordering_id, uniqueness_key)
    except (ValueError, OverflowError):
        raise ArgumentError(f"{time[:100]!r} is not an instant such as 2026-01-31T09:00:00Z.", hint=_HINT) from None
    if not all(0 < len(part) <= 1024 for part in (ordering_id, uniqueness_key)):
        raise ArgumentError("The parts of a key have 1 to 1024 characters.", hint=_HINT)
    return key


def _decoded(text: str) -> list[str]:
    try:
        raw = _unquoted(text).encode("ascii")
        found = json.loads(base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True).decode())
    except (ValueError, RecursionError):
        found = None
    if not (isinstance(found, list) and len(found) == 3 and all(isinstance(part, str) for part in found)):
        raise ArgumentError("The path names no task.", hint=_HINT)
    try:
        "".join(found).encode()
    except UnicodeEncodeError:
        raise ArgumentError("The key is no text that travels.", hint=_HINT) from None
    return found


def _unquoted(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ArgumentError("The path is not UTF-8.", hint=_HINT) from None
