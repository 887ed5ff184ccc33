"""Why a task is not running: asked of the dispatcher that owns its partition, else read from tables and logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from scylla_spark.clock import iso
from scylla_spark.core.state import READY, RETRY_WAIT, RUNNING, SCHEDULED

if TYPE_CHECKING:
    from scylla_spark.core.view import TaskStatus
    from scylla_spark.handle import TaskHandle

_TIMEOUT_S: Final = 5.0


def explain(handle: TaskHandle, address: str) -> dict[str, Any]:
    """The owner's answer where it holds the task, else a sentence drawn from its status.

    Args:
        handle: the task.
        address: where its owner serves its state; "" if none is known.
    """
    status = handle.status()
    answer = {"key": str(status.key), "state": status.state, "attempts": status.attempts, "source": "tables and logs"}
    if not status.open:
        return answer | {
            "why": f"It has ended: {status.state}"
            + (f", {status.error.kind}: {status.error.message}." if status.error else ".")
        }
    time_us, ordering_id, uniqueness_key = status.key
    asked = ask(address, "explain", scheduled_time=iso(time_us), ordering_id=ordering_id, uniqueness_key=uniqueness_key)
    if asked is not None and asked.get("known", True):
        told = {name: value for name, value in asked.items() if name != "known"}
        return answer | told | {"source": f"the dispatcher at {address}"}
    return answer | {"why": _why(status, address, asked)}


def ask(address: str, path: str, **query: str) -> dict[str, Any] | None:
    """One read-only question to a dispatcher; None if nobody answers."""
    if not address:
        return None
    try:
        with urlopen(f"{address}/{path}?{urlencode(query)}", timeout=_TIMEOUT_S) as reply:
            answer = json.load(reply)
    except (URLError, OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _why(status: TaskStatus, address: str, asked: dict[str, Any] | None) -> str:
    texts = {
        SCHEDULED: f"It is scheduled for {status.key.scheduled_time:%Y-%m-%d %H:%M:%S} UTC.",
        READY: "It is due.",
        RUNNING: f"Attempt {status.attempts} was started and has not ended.",
        RETRY_WAIT: f"Attempt {status.attempts} did not succeed; the next may start at {status.next_attempt_at:%Y-%m-%d %H:%M:%S} UTC."
        if status.next_attempt_at
        else "",
    }
    if not status.fresh:
        return f"{texts[status.state]} Kafka does not answer, so this is what the tables say."
    if not address:
        return f"{texts[status.state]} No dispatcher owns its partition: start `scylla-spark up` or `scylla-spark run dispatch`."
    if asked is None:
        return (
            f"{texts[status.state]} The dispatcher at {address} owns its partition but does not answer; it may be gone."
        )
    return f"{texts[status.state]} Its dispatcher loads it when it comes within the look-ahead."
