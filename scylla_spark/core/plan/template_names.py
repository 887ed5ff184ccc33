"""What templates of a payload may name: with any trigger, and with one that waits for tables, events, runs and so on."""

from __future__ import annotations

from typing import Final

from scylla_spark.core.plan.payload_template import Place
from scylla_spark.core.plan.triggers.trigger import (
    OnAbsence,
    OnBatch,
    OnEvent,
    OnPartitions,
    OnRuns,
    OnTable,
    OnTopic,
    Trigger,
    nodes,
)
from scylla_spark.errors import ArgumentError

_FIELDS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(("planned", "started", "schedule", "revision", "generation"), frozenset[str]()),
    "absent": frozenset({"of", "since"}),
    "batch": frozenset({"tag", "ended", "succeeded", "failed", "cancelled"}),
    "partitions": frozenset({"dataset", "values", "all", "more", "count", "rows", "bytes"}),
    "table": frozenset(
        {"name", "table_id", "from_version", "to_version", "rows", "commits", "bytes", "partition", "alone"}
    ),
    "topic": frozenset({"name", "topic_id", "partitions", "records", "bytes", "lost"}),
    "upstream": frozenset({"schedule", "handler", "key", "outcome", "result", "error", "attempts", "planned"}),
}
"""Fields of what templates may name. Those of events are the events' own."""
_OPEN_FIELDS: Final = frozenset({"values", "result", "error", "partition"})
_OF_ALL: Final = frozenset({"planned", "started", "schedule", "revision", "generation"})
_OF_KIND: Final[dict[type, tuple[str, ...]]] = {
    OnTable: ("table", "tables"),
    OnTopic: ("topic", "topics"),
    OnPartitions: ("partitions", "datasets"),
    OnEvent: ("event", "events"),
    OnRuns: ("upstream", "upstreams"),
    OnBatch: ("batch", "batches"),
    OnAbsence: ("absent",),
}
"""What templates may name: with any trigger, and with one that waits for such a thing."""
EVERY_NAME: Final = _OF_ALL.union(*_OF_KIND.values())


def names_of(trigger: Trigger) -> frozenset[str]:
    """Returns what fires of such a trigger know, for templates."""
    return _OF_ALL.union(*(_OF_KIND.get(type(node), ()) for node, _ in nodes(trigger)))


def check_fields(place: Place) -> None:
    """Whether what a place names can be there: what events, results and partitions hold is theirs, all else is known.

    Raises:
        ArgumentError: there is no such field.
    """
    name, *path = place.path
    known = _FIELDS.get(name)
    if known is None or not path:
        return
    if not known:
        raise ArgumentError(f"{name!r} has no fields, such as {'.'.join(place.path)[:100]!r}.")
    if path[0] not in known or (len(path) > 1 and path[0] not in _OPEN_FIELDS):
        raise ArgumentError(
            f"No fire knows {'.'.join(place.path)[:100]!r}.",
            hint=f"Fields of {name!r} are: {', '.join(sorted(known))}.",
        )
