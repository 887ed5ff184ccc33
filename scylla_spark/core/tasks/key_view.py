"""A key as answers of the API have it: its parts, and one id of letters that nothing on the way changes."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from scylla_spark.clock import iso
from scylla_spark.core.tasks.key import TaskKey

_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def id_of(key: TaskKey) -> str:
    """The opaque id of a key: letters, digits, "-" and "_" only, so that no proxy or shell changes it."""
    parts = [iso(key.time_us), key.ordering_id, key.uniqueness_key]
    return base64.urlsafe_b64encode(_compact(parts).encode()).rstrip(b"=").decode()


def key_view(key: TaskKey) -> dict[str, Any]:
    """The parts of a key, and the id that names it in paths."""
    return {
        "id": id_of(key),
        "scheduled_time": iso(key.time_us),
        "ordering_id": key.ordering_id,
        "uniqueness_key": key.uniqueness_key,
    }
