"""The form of a payload, made from the JSON schema that its handler declares: a field by type, and what is wrong beside it.

Schemas come from handlers, so nothing is believed of them: what is not understood becomes a field for JSON, and a schema that is no
object with a bounded number of fields becomes no form at all. The handler judges the payload again when it runs.

What is filled in is what would be sent: a value that its field cannot show and read back to the same JSON makes that field one for
JSON, and a payload with parts that the schema does not name makes no form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, date
from typing import Any, Final, NamedTuple

from scylla_spark.clock import iso, read_instant, to_us
from scylla_spark.json_text import read_json

PREFIX: Final = "payload."
_AS_JSON: Final = "as_json."
"""A form says so of fields that are written as JSON though their schema is understood."""
_MOST_FIELDS: Final = 60
_MOST_CHOICES: Final = 200
_MOST_STEPS: Final = 10  # from one reference to the next
_MOST_TEXT: Final = 300
_PLAIN: Final = {"string": "text", "integer": "whole", "number": "number", "boolean": "flag"}
_FORMATS: Final = {"date-time": "moment", "date": "day"}
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_FRACTION: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_UNSHOWN: Final = re.compile("[\r\0]")  # which no field of a page brings back as they were


class Field(NamedTuple):
    """A field of the form.

    Attributes:
        name: of the part of the payload.
        kind: "text", "whole", "number", "flag", "choice", "moment", "day" or "json"; "kept": it only keeps what was typed.
        label: for people.
        about: what the schema says of it.
        needed: whether it has to be given.
        choices: of "choice": JSON texts.
        default: JSON text of what the handler takes where it is left empty; empty: nothing.
        limits: of the schema, such as {"minimum": 1}.
    """

    name: str
    kind: str
    label: str
    about: str
    needed: bool
    choices: tuple[str, ...]
    default: str
    limits: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The name of the field in the form."""
        return PREFIX + self.name

    @property
    def as_json(self) -> str:
        """The name of the field that marks the value as JSON."""
        return _AS_JSON + self.name


def fields_of(schema: object) -> list[Field] | None:
    """The fields of a payload; None: the schema does not say which there are, so that it is written as JSON.

    Args:
        schema: JSON schema as a dispatcher tells it.
    """
    if not isinstance(schema, dict):
        return None
    whole = _resolved(schema, schema)
    parts = whole.get("properties")
    if not isinstance(parts, dict) or not 0 < len(parts) <= _MOST_FIELDS:
        return None
    needed = whole.get("required")
    names = set(map(str, needed)) if isinstance(needed, list) else set()
    return [_field(name, part, schema, needed=name in names) for name, part in parts.items()]


def filled(fields: list[Field], given: Mapping[str, str]) -> tuple[list[Field], dict[str, str]] | None:
    """The fields, and what each shows: what was typed, else what a payload says that came as JSON; None: it has parts that are no fields.

    Args:
        fields: of the form.
        given: what was typed, or `payload`.
    """
    try:
        payload = read_value(given.get("payload") or "{}")
    except ValueError:
        return None
    if not isinstance(payload, dict) or not payload.keys() <= {one.name for one in fields}:
        return None
    fitting = [
        one._replace(kind="json") if one.name in payload and not _shows(one, payload[one.name]) else one
        for one in fields
    ]
    shown = {one.id: _text_of(one, payload[one.name]) for one in fitting if one.name in payload}
    marks = {one.as_json: "1" for one, before in zip(fitting, fields, strict=True) if one.kind != before.kind}
    return as_sent(fitting, given), shown | marks | dict(given)


def as_sent(fields: list[Field], form: Mapping[str, str]) -> list[Field]:
    """The fields, as a form that was sent had them: some for JSON."""
    return [one._replace(kind="json") if form.get(one.as_json) else one for one in fields]


def are_all_known(fields: list[Field], form: Mapping[str, str]) -> bool:
    """Returns whether every part of the payload in a form is one of the fields. The schema may have changed since the page was made."""
    return {name for name in form if name.startswith(PREFIX)} <= {one.id for one in fields}


def fields_sent(form: Mapping[str, str]) -> list[Field]:
    """Fields that keep what was typed where nobody tells by which schema it is to be read."""
    names = [name.removeprefix(PREFIX) for name in form if name.startswith(PREFIX)]
    return [Field(name, "kept", name, "", False, (), "", {}) for name in names[:_MOST_FIELDS]]


def read_payload(fields: list[Field], form: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The payload of a form, and what is wrong by the names of fields; what is left empty is left out.

    Args:
        fields: of the form.
        form: what was sent.
    """
    payload, wrong = {}, {}
    for one in fields:
        text = form.get(one.id, "")
        if not text.strip():
            if one.needed:
                wrong[one.id] = "It is needed."
            continue
        try:
            payload[one.name] = value = _value(one, text)
        except ValueError as error:
            wrong[one.id] = str(error)
        else:
            if why := _beyond(value, one.limits):
                wrong[one.id] = why
    return payload, wrong


# -- from schema to field -------------------------------------------------------------------------------------------------


def _field(name: str, part: object, root: dict[str, Any], *, needed: bool) -> Field:
    said = _resolved(part if isinstance(part, dict) else {}, root)
    choices = _choices(said)
    kind = "choice" if choices else _kind(said)
    default = json.dumps(said["default"], ensure_ascii=False) if said.get("default") is not None else ""
    return Field(
        name,
        kind,
        _short(said.get("title")) or name,
        _short(said.get("description")),
        needed,
        choices,
        default[:_MOST_TEXT],
        {word: said[word] for word in _LIMITS if _is_number(said.get(word))},
    )


def _kind(said: dict[str, Any]) -> str:
    named = said.get("type")
    if named == "string":
        return _FORMATS.get(str(said.get("format")), "text")
    return _PLAIN.get(named, "json") if isinstance(named, str) else "json"


def _choices(said: dict[str, Any]) -> tuple[str, ...]:
    values = [said["const"]] if "const" in said else said.get("enum")
    if not isinstance(values, list) or not 0 < len(values) <= _MOST_CHOICES:
        return ()
    return tuple(json.dumps(value, ensure_ascii=False) for value in values)


def _resolved(part: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """A schema without references, and without the null of what may be left out; what else it says beside them stays."""
    for _ in range(_MOST_STEPS):
        if isinstance(reference := part.get("$ref"), str):
            part = _without(part, "$ref") | (_at(reference, root) or {"type": "unknown"})
            continue
        for word in ("anyOf", "oneOf", "allOf"):
            some = part.get(word)
            real = (
                [one for one in some if isinstance(one, dict) and one.get("type") != "null"]
                if isinstance(some, list)
                else []
            )
            if len(real) == 1:
                part = real[0] | _without(part, word)
                break
        else:
            return part
    return {}


def _at(reference: str, root: dict[str, Any]) -> dict[str, Any] | None:
    place: Any = root
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [""]:
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else None


def _without(part: dict[str, Any], word: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != word}


def _short(text: object) -> str:
    return text[:_MOST_TEXT] if isinstance(text, str) else ""


# -- from text to value ---------------------------------------------------------------------------------------------------


def _value(field: Field, text: str) -> Any:
    """Returns the value of a field.

    Raises:
        ValueError: it cannot be read; says what to write.
    """
    plain = text.strip()
    if field.kind == "text":
        return text.replace("\r\n", "\n")  # as browsers send the ends of lines
    if field.kind == "choice":
        return read_value(plain) if plain in field.choices else _refuse("Choose one of those that are offered.")
    if field.kind == "flag":
        return plain == "true" if plain in ("true", "false") else _refuse("Choose yes or no.")
    if field.kind == "whole":
        return _whole(plain, "It is no whole number.")
    if field.kind == "number":
        return _whole(plain, "") if _WHOLE.fullmatch(plain) else _fraction(plain)
    if field.kind == "moment":
        return _moment(plain)
    return _day(plain) if field.kind == "day" else read_value(text)


def _whole(text: str, why: str) -> int:
    try:
        return int(text) if _WHOLE.fullmatch(text) else _refuse(why)
    except ValueError:  # Python reads no more than 4,300 digits
        raise ValueError(why or "It has too many digits.") from None


def _fraction(text: str) -> float:
    value = float(text) if _FRACTION.fullmatch(text) else math.nan
    return value if math.isfinite(value) else _refuse("It is no number.")


def _moment(text: str) -> str:
    """An instant: as it was typed where it is RFC 3339; without a zone it is UTC."""
    try:
        us = to_us(read_instant(text, UTC))
        return text if _RFC3339.fullmatch(text) else iso(us)
    except (ValueError, OverflowError):
        raise ValueError("It is no instant, such as 2026-01-31T09:00:00.") from None


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError("It is no day, such as 2026-01-31.") from None


def read_value(text: str) -> Any:
    """The value of a JSON text that can be sent as JSON.

    Raises:
        ValueError: it is none, or it holds numbers or letters that no JSON can hold; a sentence.
    """
    try:
        value = read_json(text)
        _written(value).encode()
    except (ValueError, RecursionError):
        raise ValueError("It is not JSON.") from None
    return value


_written = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _refuse(why: str) -> Any:
    raise ValueError(why)


_LIMITS: Final[dict[str, tuple[str, Any]]] = {
    "minimum": ("It must be at least {}.", lambda value, bound: value >= bound),
    "maximum": ("It must be at most {}.", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("It must be more than {}.", lambda value, bound: value > bound),
    "exclusiveMaximum": ("It must be less than {}.", lambda value, bound: value < bound),
    "minLength": ("It must have {} characters or more.", lambda value, bound: len(value) >= bound),
    "maxLength": ("It must have {} characters or fewer.", lambda value, bound: len(value) <= bound),
}
"""The limits of a schema: a text for people, and a check of values."""


def _beyond(value: Any, limits: Mapping[str, Any]) -> str:
    """Returns why a value is beyond the limits of its field; empty: it is within. Limits apply to values of their own type."""
    for word, bound in limits.items():
        says, keeps = _LIMITS[word]
        concerns = isinstance(value, str) if word.endswith("Length") else _is_number(value)
        if concerns and not keeps(value, bound):
            return says.format(bound)
    return ""


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _shows(field: Field, value: Any) -> bool:
    """Returns whether a field can show a value without changing it. Browsers change some characters, and fields omit empty texts."""
    text = _text_of(field, value)
    try:
        return bool(text.strip()) and not _UNSHOWN.search(text) and _written(_value(field, text)) == _written(value)
    except ValueError:
        return False


def _text_of(field: Field, value: Any) -> str:
    """Returns the text of a value of a payload in its field."""
    if field.kind in ("text", "moment", "day") and isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
