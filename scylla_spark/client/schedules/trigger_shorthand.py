"""Triggers as people write them in files: `cron = "0 2 * * *"`, `event = "stock"`, `all = [{…}, {…}]`; as JSON they have a kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scylla_spark.core.plan.times.recurrence import default_start
from scylla_spark.errors import ArgumentError, shown

BY_KEY: Final = {
    "cron": "expression", "every": "period", "at": "times", "rrule": "rule", "event": "name", "partitions": "dataset",
    "table": "table", "topic": "topic", "after": "work", "batch": "tag", "absent": "of", "any": "of", "all": "of",
}  # fmt: skip
"""Key of a trigger in short → the field that its value goes to."""
OPTIONS: Final = frozenset({
    "tz", "gap", "fold", "phase", "start", "startAt", "endAt", "count", "jitter", "calendar", "onHoliday", "blackout", "where", "atLeast",
    "rows", "records", "bytes", "minRows", "minCommits", "minBytes", "operations", "settle", "atMostEvery",
    "atLeastEvery", "per", "on", "size", "within",
})  # fmt: skip
"""What may stand beside such a key."""
_MOST_DEEP: Final = 60


def camel(name: str) -> str:
    """`at_least` as `atLeast`; other names stay as they are."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others) if first else name


def trigger_of(value: Any, depth: int = 0) -> Any:
    """The JSON object of a trigger that may be written in short.

    Raises:
        ArgumentError: it names no trigger or two.
    """
    if depth > _MOST_DEEP:
        raise ArgumentError("trigger: it is nested too deep.", hint="Split the schedule in two.")
    if not isinstance(value, Mapping):
        raise ArgumentError(f"trigger: {shown(value)} is no object.", hint='Such as { cron = "0 2 * * *" }.')
    found = {camel(str(key)): item for key, item in value.items()}
    if "kind" not in found:
        found = _long(found)
    if found["kind"] == "rrule" and "start" not in found:
        found["start"] = default_start(str(found.get("rule", "")))
    if isinstance(found.get("on"), str):
        found["on"] = [found["on"]]
    if isinstance(found.get("of"), list):
        found["of"] = [trigger_of(one, depth + 1) for one in found["of"]]
    elif "of" in found:
        found["of"] = trigger_of(found["of"], depth + 1)
    return found


def _long(found: dict[str, Any]) -> dict[str, Any]:
    keys = [key for key in BY_KEY if key in found]
    if len(keys) != 1:
        said = f"it names two triggers, {keys[0]} and {keys[1]}" if keys else "it names no trigger"
        hint = "Join them with all = […] or any = […]." if keys else f"Say one of {', '.join(BY_KEY)}."
        raise ArgumentError(f"trigger: {said}.", hint=hint)
    kind = keys[0]
    item = found.pop(kind)
    if kind == "cron" and isinstance(item, str) and "|" in item:
        item = [part.strip() for part in item.split("|")]
    if kind == "at" and not isinstance(item, list):
        item = [item]
    return {"kind": kind, BY_KEY[kind]: item} | found
