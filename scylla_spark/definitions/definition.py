"""The base of all definitions: strict fields, one reader of JSON values, and errors that name the field."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Self, get_args

from pydantic import (
    AfterValidator,
    AliasGenerator,
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from scylla_spark.duration import duration, duration_text
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.name import PATTERN, RULE, is_name

NONE: Final = "none"
"""The text of null on the command line."""

_SAID: Final = {
    "sequence_str": "it is a list of texts, not one text",
}
"""Messages by the type of pydantic's error, where its own message is not clear."""


def _checked_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"{shown(text)} is no name; names are {RULE}")
    return text


Name = Annotated[str, AfterValidator(_checked_name), WithJsonSchema({"type": "string", "pattern": f"^{PATTERN}$"})]
Span = Annotated[
    timedelta | str | float,
    PlainValidator(duration),
    PlainSerializer(duration_text, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["30s", "1h30m"]}),
]
"""A duration as callers write it: a timedelta, seconds, or a text such as "1h30m". A model holds it as a timedelta."""


class Definition(BaseModel):
    """A definition with a name. Names of its fields may also be written in camelCase, as they travel.

    Raises:
        ArgumentError: it is not valid; the message names the field and what is wrong with it.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        alias_generator=AliasGenerator(serialization_alias=to_camel),
    )
    noun: ClassVar[str]
    word: ClassVar[str]
    example: ClassVar[str]
    most_bytes: ClassVar[int]
    left_out: ClassVar[Mapping[str, object]] = {}
    """Name of a field as it travels → its default, where older versions refuse a stored definition that gives it."""

    name: Name

    def __init__(self, name: str | None = None, /, **fields: Any) -> None:
        if name is not None and "name" in fields:
            raise ArgumentError(f"The {self.noun} is given two names.", hint="Pass the name once.")
        named = self.by_name(fields if name is None else {"name": name, **fields})
        try:
            super().__init__(**named)
        except ValidationError as error:
            raise self._explained(named, error) from None

    @classmethod
    def of(cls, value: object) -> Self:
        """The definition that a JSON value holds.

        Raises:
            ArgumentError: it holds none, or one of more than `most_bytes`.
        """
        if not isinstance(value, Mapping):
            raise ArgumentError(
                f"A {cls.noun} is an object with fields, not {shown(value)}.", hint=f"Such as {cls.example}."
            )
        fields = cls.by_name(value)
        try:
            size = len(json.dumps(fields))
        except (RecursionError, OverflowError, TypeError, ValueError) as error:
            raise ArgumentError(f"{cls._called(value)} is no JSON value, or nested too deep.") from error
        if size > cls.most_bytes:
            raise ArgumentError(f"{cls._called(value)} has more than {cls.most_bytes} bytes.", hint="Shorten it.")
        return cls(**fields)

    @classmethod
    def of_settings(cls, value: object) -> object:
        """The definition that a table of the settings holds.

        Raises:
            ValidationError: it holds none; the places in it are those of the settings.
        """
        if not isinstance(value, Mapping):
            return value
        made = cls.__new__(cls)
        cls.__pydantic_validator__.validate_python(dict(value), self_instance=made)
        return made

    @classmethod
    def by_name(cls, values: Mapping[Any, Any]) -> dict[str, Any]:
        """Values by the names of the fields in Python.

        Raises:
            ArgumentError: there is no such field, or a field is given twice.
        """
        found: dict[str, Any] = {}
        for name, value in values.items():
            field = cls.field_named(name)
            if field in found:
                raise ArgumentError(f"{field}: it is given twice.", hint="Leave one out.")
            found[field] = value
        return found

    @classmethod
    def field_named(cls, name: object) -> str:
        """The name in Python of a field.

        Raises:
            ArgumentError: there is no such field; the hint names the nearest one.
        """
        known = {to_camel(field): field for field in cls.model_fields} | {field: field for field in cls.model_fields}
        if name in known:
            return known[str(name)]
        near = difflib.get_close_matches(str(name)[:100], known, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Fields: {', '.join(cls.model_fields)}."
        raise ArgumentError(f"{shown(name)}: a {cls.noun} has no such field.", hint=hint)

    @classmethod
    def wire_name(cls, name: object) -> str:
        """The name of a field as it travels. Raises the errors of `field_named`."""
        return to_camel(cls.field_named(name))

    @classmethod
    def value_of(cls, field: str, text: str) -> object:
        """The value that a text of the command line or of the environment stands for; the model judges it."""
        info = cls.model_fields[field]
        types = set(_types(info.annotation))
        if text == NONE and info.default is None and NoneType in types:
            return None
        if str in types:
            return text
        try:
            return json.loads(text)
        except ValueError:
            return text

    @property
    def definition(self) -> dict[str, Any]:
        """The given fields as the JSON object that travels: names in camelCase, durations as texts."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @property
    def text(self) -> str:
        """The one text by which it is stored. Older versions read it, too."""
        stored = {
            name: value
            for name, value in self.definition.items()
            if name not in self.left_out or value != self.left_out[name]
        }
        return json.dumps(stored, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

    @property
    def values(self) -> dict[str, Any]:
        """All fields by their names in Python, defaults included, as JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def _called(cls, value: Mapping[Any, Any]) -> str:
        name = value.get("name")
        return f"the {cls.noun} {shown(name)}" if isinstance(name, str) else f"the {cls.noun}"

    @classmethod
    def _explained(cls, fields: Mapping[str, Any], error: ValidationError) -> ArgumentError:
        first = error.errors(include_url=False, include_input=False)[0]
        cause = first.get("ctx", {}).get("error")
        if not first["loc"] and isinstance(cause, ArgumentError):
            return cause
        said = first["msg"].removeprefix("Value error, ").removesuffix(".")
        said = _SAID.get(first["type"], said)
        where = first["loc"][0] if first["loc"] else cls.noun
        return ArgumentError(f"{where}: {said}.", hint=f"Look at {where} of {cls._called(fields)}.")


def _types(annotation: Any) -> Iterator[Any]:
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for one in inner:
        yield from _types(one)
