"""Files of schedules: TOML, YAML and JSON. Names may be snake_case or camelCase; triggers may be written in short.

A file holds a list `schedule` of objects with the fields of a definition. Instead of `trigger` an object may name one by a key of its
own, such as `cron = "0 2 * * *"` with `tz = "Europe/Berlin"` beside it; within `any` and `all` likewise.
"""

from __future__ import annotations

import difflib
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final, NamedTuple

from scylla_spark.client.schedules.schedule import Schedule
from scylla_spark.client.schedules.trigger_shorthand import BY_KEY, OPTIONS, camel, trigger_of
from scylla_spark.errors import ArgumentError, SetupError, shown
from scylla_spark.handlers.registry import Handler

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_FIELDS: Final = frozenset({
    "name", "handler", "trigger", "payload", "queue", "priority", "lane", "timeout", "expires", "retry", "constraints", "overlap",
    "maxRunning", "catchUp", "catchUpWindow", "pauseAfterFailures", "lateAfter", "endWithin", "expectEvery", "jobTimeout", "onJobTimeout",
    "onPause", "paused", "note", "owner", "tags",
})  # fmt: skip


class FileSchedule(NamedTuple):
    """One schedule of a file.

    Attributes:
        place: the file and the schedule, for messages.
        name: of the schedule; empty: it has none that could be read.
        schedule: what it defines; None: nothing.
        error: why.
    """

    place: str
    name: str
    schedule: Schedule | None
    error: ArgumentError | None = None

    def read(self) -> Schedule:
        """Returns the schedule.

        Raises:
            ArgumentError: there is none.
        """
        if self.schedule is None:
            assert self.error is not None
            raise self.error
        return self.schedule


def read_files(paths: list[str]) -> list[Schedule]:
    """All schedules of some files.

    Raises:
        ArgumentError: a file cannot be read, or one of the schedules is none; the message names file, schedule and field.
        SetupError: a package that reads the format is missing.
    """
    return [one.read() for path in paths for one in read_file(path)]


def read_file(path: str) -> list[FileSchedule]:
    """The schedules of a file, also those that are none.

    Raises:
        ArgumentError: the file cannot be read, or has no list of schedules.
        SetupError: a package that reads the format is missing.
    """
    content = content_of(path)
    values = content.get("schedule") if isinstance(content, Mapping) else None
    if not isinstance(values, list) or not values:
        raise ArgumentError(
            f"{path} has no list `schedule`.", hint="TOML: [[schedule]] before each; YAML: schedule: and a list."
        )
    foreign = sorted(map(str, content.keys() - {"schedule"}))
    if foreign:
        raise ArgumentError(
            f"{path}: there is no {foreign[0]!r} beside `schedule`.", hint="A file holds schedules only."
        )
    return [_judged(path, number, value) for number, value in enumerate(values, 1)]


def schedules_of_handlers(module: str, handlers: Iterable[Handler]) -> list[Schedule]:
    """Returns the schedules that the handlers of a module bring along; their owner is `owner_of(module)`.

    Args:
        module: that defines the handlers.
        handlers: of the module.

    Raises:
        ArgumentError: a schedule is wrong; the message names module, handler, schedule and field.
    """
    found = []
    for one in handlers:
        name = one.info.name
        for number, value in enumerate(one.schedules, 1):
            fields = {**value, "handler": name, "owner": owner_of(module)}
            found.append(_judged(f"{module}, handler {name!r}", number, fields).read())
    return found


def owner_of(module: str) -> str:
    """Returns the owner of the schedules of a module: its dotted name, or the whole path of its file, which no other file has."""
    return f"module:{Path(module).resolve() if module.endswith('.py') or '/' in module else module}"


def definition_of(value: Any) -> dict[str, Any]:
    """The JSON definition of an object of a file.

    Raises:
        ArgumentError: a field is unknown, or the trigger is written wrongly.
    """
    if not isinstance(value, Mapping):
        raise ArgumentError(f"A schedule is an object with fields, not {shown(value)}.")
    fields, trigger = dict[str, Any](), dict[str, Any]()
    for key, item in value.items():
        name = camel(str(key))
        if name in _FIELDS:
            _set(fields, name, item, str(key))
        elif name in BY_KEY or name in OPTIONS:
            _set(trigger, name, item, str(key))
        else:
            raise _unknown(str(key), name)
    if "trigger" in fields and trigger:
        raise ArgumentError(
            f"{next(iter(trigger))}: the schedule has a `trigger` already.", hint="Write the one or the other."
        )
    if "trigger" in fields or trigger:
        fields["trigger"] = trigger_of(fields.get("trigger", trigger))
    if isinstance(fields.get("constraints"), list):
        fields["constraints"] = [_constraint(one) for one in fields["constraints"]]
    if "retry" in fields:
        fields["retry"] = _plain(fields["retry"])
    return fields


# -- one schedule -------------------------------------------------------------------------------------------------------


def _judged(path: str, number: int, value: Any) -> FileSchedule:
    given = value.get("name") if isinstance(value, Mapping) else None
    name = given if isinstance(given, str) else ""
    place = f"{path}, schedule {shown(name) if name else f'number {number}'}"
    try:
        return FileSchedule(place, name, Schedule.of(definition_of(json_value(value))))
    except ArgumentError as error:
        return FileSchedule(place, name, None, ArgumentError(f"{place}: {error.message}", hint=error.hint))


def _set(fields: dict[str, Any], name: str, item: Any, key: str) -> None:
    if name in fields:
        raise ArgumentError(f"{key}: it stands there twice, as {camel(key)} and otherwise.", hint="Leave one out.")
    fields[name] = item


def _unknown(key: str, name: str) -> ArgumentError:
    near = difflib.get_close_matches(name, [*_FIELDS, *BY_KEY, *OPTIONS], 1)
    hint = (
        f"Did you mean {near[0]}?" if near else f"Fields: {', '.join(sorted(_FIELDS))}; triggers: {', '.join(BY_KEY)}."
    )
    return ArgumentError(f"{key}: there is no such field.", hint=hint)


def _plain(value: Any) -> Any:
    return {camel(str(key)): item for key, item in value.items()} if isinstance(value, Mapping) else value


def _constraint(value: Any) -> Any:
    """A constraint; one that is called as in Python is the same."""
    found = _plain(value)
    called = isinstance(found, dict) and found.get("kind") == "max_running"
    return found | {"kind": "concurrency"} if called else found


def json_value(value: Any) -> Any:
    """A value of a file as JSON has it: times as texts.

    Raises:
        ArgumentError: a key is no text.
    """
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise ArgumentError(f"{shown(wrong[0])}: the name of a field is a text.", hint="Put it in quotes.")
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_value(item) for item in value]
    return value.isoformat() if isinstance(value, datetime | date | time) else value


# -- formats ------------------------------------------------------------------------------------------------------------


def content_of(path: str) -> Any:
    """Returns what a file holds, by the ending of its name.

    Raises:
        ArgumentError: it cannot be read, or is too large.
        SetupError: a package that reads the format is missing.
    """
    read = _READERS.get(Path(path).suffix.lower())
    if read is None:
        raise ArgumentError(f"{path}: files of definitions end in {', '.join(_READERS)}.", hint="Name it so.")
    text = text_of(path, MAX_FILE_BYTES, "Divide it.")
    try:
        return read(text)
    except RecursionError:
        raise ArgumentError(f"{path} is nested too deep.") from None
    except ArgumentError:
        raise
    except ValueError as error:
        raise ArgumentError(f"{path} cannot be read: {' '.join(str(error).split())}.") from None


def text_of(path: str, most_bytes: int, hint: str) -> str:
    """Returns the text of a file in UTF-8; "-" is stdin.

    Args:
        path: of the file.
        most_bytes: a larger one is refused.
        hint: what to do then.

    Raises:
        ArgumentError: it cannot be read, or is too large.
    """
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            raw = file.read(most_bytes + 1)
        if len(raw) > most_bytes:
            raise ArgumentError(f"{path} has more than {most_bytes} bytes.", hint=hint)
        return raw.decode()
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path} is no text in UTF-8: {error.reason} at byte {error.start}.") from None


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise SetupError(
            "YAML files need the package pyyaml.", hint="Install scylla-spark[yaml], or write the file in TOML."
        ) from error
    from scylla_spark.client.schedules.strict_yaml import loader

    try:
        return yaml.load(text, Loader=loader())
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    ".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml, ".json": json.loads,
}  # fmt: skip
