"""What receivers get: a CloudEvent for webhooks, and a few lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from scylla_spark.core.notifications.proof import PROOF

SOURCE: Final = "/scylla-spark/notifications"
CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
_SHOWN: Final = ("queue", "handler", "schedule", "planned", "key", "status", "attempts", "why", "description", "link")


def cloud_event(payload: Mapping[str, Any]) -> bytes:
    """The message as a CloudEvent 1.0 in JSON; the same bytes whenever it is made.

    Args:
        payload: of the task that carries the message; its proof is for us alone.
    """
    payload = {name: value for name, value in payload.items() if name != PROOF}
    subject = payload.get("key") or payload.get("schedule") or payload["rule"]
    event = {
        "specversion": "1.0", "id": payload["id"], "source": SOURCE, "type": f"scylla-spark.{payload['event']}.{payload['notice']}",
        "subject": subject, "time": payload["at"], "datacontenttype": "application/json", "data": payload,
    }  # fmt: skip
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def title(payload: Mapping[str, Any]) -> str:
    """The message in one line."""
    what = payload.get("schedule") or payload.get("handler") or f"rule {payload['rule']}"
    event, count = payload["event"], payload["count"]
    said = {
        "first": f"{what}: {event}",
        "repeated": f"{what}: {event} {count} times more",
        "resolved": f"{what}: well again after {event} ({count} times)",
    }
    return str(said.get(str(payload["notice"]), f"{what}: {payload['notice']}"))


def text(payload: Mapping[str, Any]) -> str:
    """The message in some lines, one a field."""
    lines = [f"{name}: {payload[name]}" for name in _SHOWN if payload.get(name)]
    error = payload.get("error")
    if isinstance(error, Mapping):
        lines.insert(0, f"{error.get('kind')}: {error.get('message')}")
    return "\n".join([*lines, f"rule: {payload['rule']}, since {payload['since']}"])
