"""Files of queues: TOML, YAML and JSON, as `[queues.NAME]` like in the settings, or as a list `queues` of objects with a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scylla_spark.client.queues.queue import Queue
from scylla_spark.client.schedules.files import content_of, json_value
from scylla_spark.client.schedules.trigger_shorthand import camel
from scylla_spark.errors import ArgumentError, shown

FOREVER = "forever"


def read_queue_file(path: str) -> list[Queue]:
    """The queues of a file.

    Raises:
        ArgumentError: it cannot be read, or one of its queues is none; the message names file, queue and field.
        SetupError: a package that reads the format is missing.
    """
    content = content_of(path)
    values = content.get("queues") if isinstance(content, Mapping) else None
    if not isinstance(values, Mapping | list) or not values:
        raise ArgumentError(
            f"{path} has no `queues`.", hint="TOML: [queues.NAME] before each; YAML: queues: and NAME:."
        )
    foreign = sorted(map(str, content.keys() - {"queues"}))
    if foreign:
        raise ArgumentError(f"{path}: there is no {foreign[0]!r} beside `queues`.", hint="A file holds queues only.")
    if isinstance(values, list):
        return [_judged(path, f"number {number}", value) for number, value in enumerate(values, 1)]
    return [_judged(path, shown(name), _named(name, value)) for name, value in values.items()]


def _named(name: object, value: Any) -> Any:
    if isinstance(value, Mapping) and "name" in value:
        raise ArgumentError(f"The queue {shown(name)} has its name already.", hint="Leave out `name`.")
    return {"name": name, **value} if isinstance(value, Mapping) else value


def _judged(path: str, which: str, value: Any) -> Queue:
    try:
        plain = json_value(value)
        if not isinstance(plain, Mapping):
            raise ArgumentError(f"A queue is an object with fields, not {shown(plain)}.")
        fields: dict[str, Any] = {}
        for key, item in plain.items():
            if camel(key) in fields:
                raise ArgumentError(f"{key}: it stands there twice.", hint="Leave one out.")
            fields[camel(key)] = item
        if fields.get("maxRetries") == FOREVER:
            fields["maxRetries"] = None
        return Queue.of(fields)
    except ArgumentError as error:
        raise ArgumentError(f"{path}, queue {which}: {error.message}", hint=error.hint) from None
