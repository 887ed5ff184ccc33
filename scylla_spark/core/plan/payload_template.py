"""Templates of payloads: texts with places such as `{{ planned | add("-1d") | date("%Y-%m-%d") }}`.

The grammar is closed: names, fields and three filters, no code. Definitions come from whoever may put schedules, so a template can
read what a fire knows and nothing else; a name that no fire of the schedule has is refused when the schedule is put.

    place  = "{{" ( name { "." field } { "|" filter } | text ) "}}"
    filter = "date" "(" format [ "," zone ] ")" | "add" "(" shift [ "," zone ] ")" | "default" "(" text ")"

A place that is a JSON text stands for this text, so `{{ "{{" }}` is two braces.
A shift by days, weeks, months or years (`d w mo y`) is one in a calendar: that of the zone of `add`, or of the `date` after it, or UTC.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.times import zone
from scylla_spark.core.plan.times.shift import shift
from scylla_spark.core.tasks.task import MAX_PAYLOAD_BYTES
from scylla_spark.errors import ArgumentError

MAX_PLACES: Final = 1_000
_MOST_LEVELS: Final = 50  # besides those of values, so that a task's readers can follow
_NAME: Final = re.compile(r"\s*([a-z_][a-z0-9_]*(?:\.[A-Za-z0-9_-]+)*)\s*")
_FILTER: Final = re.compile(r'\|\s*([a-z]+)\s*\(\s*("(?:[^"\\]|\\.)*"(?:\s*,\s*"(?:[^"\\]|\\.)*")*)\s*\)\s*')
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_DIRECTIVE: Final = re.compile(r"%(.)", re.DOTALL)
_DIRECTIVES: Final = frozenset("YmdHMSfjuaAbBGVyezZsp%IFT")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Instant(int):
    """A value of a fire that is a time: microseconds since the epoch; as text in ISO form."""

    __slots__ = ()


class Null:
    """A value of a fire that is there, and is null: a text that is nothing but its place becomes null."""

    __slots__ = ()


NULL: Final = Null()


class Filter(NamedTuple):
    """What is done with a value."""

    name: str
    arguments: tuple[str, ...]


class Place(NamedTuple):
    """Where a value goes.

    Attributes:
        path: name and fields.
        filters: applied from left to right.
        source: as it was written.
    """

    path: tuple[str, ...]
    filters: tuple[Filter, ...]
    source: str


class Template:
    """A JSON value whose texts may hold places.

    Args:
        value: of the template; keys of objects are no templates.
        names: what fires of the schedule know.

    Raises:
        ArgumentError: a place is not of the grammar or names what no fire knows; the hint lists the names.
    """

    __slots__ = ("_texts", "value")

    def __init__(self, value: Any, names: Collection[str]) -> None:
        self.value = value
        self._texts: dict[str, tuple[str | Place, ...]] = {}
        for text in _texts_of(value):
            if "{{" in text and text not in self._texts:
                self._texts[text] = tuple(_parsed(text, names))
        if sum(len(parts) for parts in self._texts.values()) > 2 * MAX_PLACES:
            raise ArgumentError(f"A template has at most {MAX_PLACES} places.")

    def places(self) -> Iterator[Place]:
        """All places of its texts."""
        for parts in self._texts.values():
            yield from (part for part in parts if isinstance(part, Place))

    def render(self, values: Mapping[str, Any]) -> Any:
        """The value with all places filled.

        Args:
            values: by name; objects have fields. A text that is one place only becomes the value itself, with its type.

        Raises:
            ArgumentError: a value has no such field, or a filter cannot take it.
        """
        return self._filled(self.value, values, [MAX_PAYLOAD_BYTES], _MOST_LEVELS) if self._texts else self.value

    def _filled(self, value: Any, values: Mapping[str, Any], left: list[int], levels: int) -> Any:
        if levels == 0:
            raise ArgumentError(f"A template that names values has at most {_MOST_LEVELS} levels.")
        if isinstance(value, str):
            parts = self._texts.get(value)
            return value if parts is None else _joined(parts, values, left)
        if isinstance(value, dict):
            return {key: self._filled(item, values, left, levels - 1) for key, item in value.items()}
        return [self._filled(item, values, left, levels - 1) for item in value] if isinstance(value, list) else value


def _texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_of(item)


def _parsed(text: str, names: Collection[str]) -> Iterator[str | Place]:
    end = 0
    while (begin := text.find("{{", end)) >= 0:
        if begin > end:
            yield text[end:begin]
        end = text.find("}}", begin + 2) + 2
        if end < 2:
            raise ArgumentError(f"A place in {text[:100]!r} has no end.", hint="Close it with }}.")
        source = text[begin + 2 : end - 2]
        yield _arguments(source, source)[0] if _TEXT.fullmatch(source.strip()) else _place(source, names)
    if end < len(text):
        yield text[end:]


def _place(source: str, names: Collection[str]) -> Place:
    found = _NAME.match(source)
    if found is None:
        raise _bad(source, "Begin with a name, as in {{ planned }}.")
    path = tuple(found[1].split("."))
    if path[0] not in names:
        raise ArgumentError(
            f"No fire of this schedule knows {path[0][:100]!r}.", hint=f"Known are: {', '.join(sorted(names))}."
        )
    filters: list[Filter] = []
    at = found.end()
    while at < len(source):
        piece = _FILTER.match(source, at)
        if piece is None:
            raise _bad(source, 'After the name come filters, as in | date("%Y-%m-%d").')
        filters.append(_checked(piece[1], _arguments(piece[2], source), source))
        at = piece.end()
    return Place(path, tuple(_with_zones(filters)), source.strip())


def _with_zones(filters: Sequence[Filter]) -> Iterator[Filter]:
    """The filters, each of times with a zone: a shift that names none is one in the zone in which the result is written."""
    for number, one in enumerate(filters):
        if one.name == "default" or len(one.arguments) > 1:
            yield one
        else:
            written = next(
                (later for later in filters[number:] if later.name == "date" and len(later.arguments) > 1), None
            )
            yield Filter(
                one.name,
                (one.arguments[0], written.arguments[1] if written is not None and one.name == "add" else "UTC"),
            )


def _arguments(texts: str, source: str) -> list[str]:
    try:
        return [json.loads(text) for text in _TEXT.findall(texts)]
    except ValueError as error:
        raise _bad(source, "Texts in filters are written as in JSON.") from error


def _checked(name: str, arguments: list[str], source: str) -> Filter:
    most = {"date": 2, "add": 2, "default": 1}.get(name)
    if most is None or len(arguments) > most:
        raise _bad(
            source, 'Filters are date("%Y-%m-%d") or date("%H:%M", "Europe/Berlin"), add("-1d"), default("text").'
        )
    if name == "date":
        unknown = [letter for letter in _DIRECTIVE.findall(arguments[0]) if letter not in _DIRECTIVES]
        if unknown or (arguments[0].endswith("%") and not arguments[0].endswith("%%")):
            raise _bad(source, f"There is no %{unknown[0] if unknown else ''} in a date; write %% for a percent sign.")
        try:
            _EPOCH.strftime(arguments[0])
        except ValueError as error:
            raise _bad(source, "The format holds characters that no text can.") from error
    elif name == "add":
        shift(arguments[0])
    if len(arguments) > 1:
        zone.zone(arguments[1])
    return Filter(name, tuple(arguments))


def _bad(source: str, hint: str) -> ArgumentError:
    return ArgumentError(f"The place {{{{{source[:100]}}}}} cannot be read.", hint=hint)


def _joined(parts: tuple[str | Place, ...], values: Mapping[str, Any], left: list[int]) -> Any:
    if len(parts) == 1 and isinstance(parts[0], Place):
        value = _value(parts[0], values)
        _spend(left, _text(value))
        return _iso(value) if isinstance(value, Instant) else _plain(value)
    return "".join(part if isinstance(part, str) else _spend(left, _text(_there(part, values))) for part in parts)


def _plain(value: Any) -> Any:
    """A value as payloads have it."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return None if value is NULL else value


def _spend(left: list[int], text: str) -> str:
    """The text of a value, if the payload has room for it: a short template may name a long value a thousand times."""
    left[0] -= len(text)
    if left[0] < 0:
        raise ArgumentError(f"The payload would have more than {MAX_PAYLOAD_BYTES} bytes.", hint="Name fewer values.")
    return text


def _value(place: Place, values: Mapping[str, Any]) -> Any:
    value: Any = values.get(place.path[0])
    path = place.path[1:]
    while path and value is not None:
        value, path = _field(value, path)
    if value is None and not any(one.name == "default" for one in place.filters):
        raise _lacks(place)
    for one in place.filters:
        value = _applied(one, value, place)
    return value


def _there(place: Place, values: Mapping[str, Any]) -> Any:
    """A value that is a part of a text, where null says nothing."""
    value = _value(place, values)
    if value is NULL:
        raise _lacks(place)
    return value


def _lacks(place: Place) -> ArgumentError:
    return ArgumentError(
        f"This fire has no {'.'.join(place.path)[:100]}.", hint='Say what stands in for it, as in | default("none").'
    )


def _field(value: Any, path: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """The field that a path begins with, and the rest of the path: names of events and schedules may hold dots."""
    if isinstance(value, Mapping):
        for end in range(1, len(path) + 1):
            name = ".".join(path[:end])
            if name in value:
                return value[name], path[end:]
    return None, ()


def _applied(one: Filter, value: Any, place: Place) -> Any:
    if one.name == "default":
        return one.arguments[0] if value is None or value is NULL else value
    if not isinstance(value, Instant):
        raise ArgumentError(
            f"{{{{ {place.source[:100]} }}}} is no time.", hint=f"The filter {one.name} takes times only."
        )
    what, tz = one.arguments
    try:
        if one.name == "add":
            return Instant(shift(what).applied(value, tz))
        return _datetime(value).astimezone(zone.zone(tz)).strftime(what)
    except (OverflowError, ValueError) as error:
        raise ArgumentError(
            "A time of this fire lies outside of what calendars know.", hint="Look at add(…)."
        ) from error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return _iso(value) if isinstance(value, Instant) else json.dumps(_plain(value), ensure_ascii=False)


def _iso(value: Instant) -> str:
    return _datetime(value).isoformat().replace("+00:00", "Z")


def _datetime(value: Instant) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=value)
    except OverflowError as error:
        raise ArgumentError(
            "A time of this fire lies outside of what calendars know.", hint="Look at add(…)."
        ) from error
