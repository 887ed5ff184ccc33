"""What the planner holds of one queue, and how a change of it stands in the planner's log.

Dispatchers follow the log, too, for these changes alone.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.state.plan_log import Change

QUEUE: Final = "queue"
"""Kind of the change by which a definition is put, or deleted."""
QUEUE_ENTRY: Final = "queue_entry"
"""Kind of the part of a snapshot that repeats a definition."""


class StoredQueue(NamedTuple):
    """A definition that was put.

    Attributes:
        text: the definition, a JSON object that `read_queue` takes.
        revision: of all queues together, and it only grows: no two definitions have the same.
        author: who put it.
        changed_us: when, microseconds since the epoch.
    """

    text: str
    revision: int
    author: str
    changed_us: int


class QueueChange(NamedTuple):
    """A change as it was recorded.

    Attributes:
        name: of the queue.
        revision: by this change.
        stored: what is stored now; None: nothing any more.
        author: who asked for it.
        changed_us: when it was decided.
        request: id of the request; empty: it had none.
    """

    name: str
    revision: int
    stored: StoredQueue | None
    author: str
    changed_us: int
    request: str


def queue_change(change: QueueChange) -> Change:
    """The change as it stands in the log."""
    fields: dict[str, Any] = {
        "text": change.stored.text if change.stored is not None else None, "revision": change.revision, "author": change.author,
        "changed_us": change.changed_us, "request": change.request,
    }  # fmt: skip
    return [QUEUE, change.name, fields]


def read_queue_change(change: Change) -> QueueChange:
    """A change of kind `QUEUE` or `QUEUE_ENTRY`.

    Raises:
        KeyError: a field is missing: no planner wrote it. TypeError, IndexError: likewise.
    """
    name, fields = change[1], change[2]
    text, revision, author, changed_us = (fields[field] for field in ("text", "revision", "author", "changed_us"))
    if not isinstance(name, str) or not isinstance(text, str | None) or type(revision) is not int:
        raise TypeError("a change of a queue has a name, a text and a number")
    stored = StoredQueue(text, revision, author, changed_us) if text is not None else None
    return QueueChange(name, revision, stored, author, changed_us, fields.get("request", ""))
