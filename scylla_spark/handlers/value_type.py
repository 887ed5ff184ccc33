"""The type that a handler declares for its payload or its result, and the JSON text that stands for a value of it.

pydantic judges; it is imported only where a handler declares a type, so that workers with nothing but Python can do without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

from scylla_spark.errors import ArgumentError, SetupError

if TYPE_CHECKING:
    from pydantic import ValidationError

_MOST_FLAWS: Final = 5
_MOST_CHARS: Final = 300
_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class ValueType:
    """A declared type: a pydantic model, a dataclass, a TypedDict, or anything else that pydantic's TypeAdapter takes.

    Args:
        declared: the annotation, evaluated.
        what: "payload" or "result", for errors.

    Attributes:
        name: of the type, for people.

    Raises:
        ArgumentError: pydantic knows no JSON for it.
        SetupError: pydantic is not installed here.
    """

    def __init__(self, declared: Any, what: str) -> None:
        try:
            from pydantic import TypeAdapter
            from pydantic.errors import PydanticUserError
        except ImportError:
            raise SetupError(
                f"{_name(declared)} cannot be checked without pydantic.",
                hint="Install it, or take the whole task: def f(task, ctx).",
            ) from None
        self.name = _name(declared)
        self._misfit = f"The {what} does not fit {self.name}"
        try:
            self._adapter: Any = TypeAdapter(declared)
            self._adapter.rebuild(raise_errors=True)
        except (PydanticUserError, NameError, TypeError, RecursionError) as error:
            raise ArgumentError(
                f"{self.name} has no form in JSON: {str(error)[:_MOST_CHARS]}",
                hint="Use a pydantic model, a dataclass or a TypedDict whose parts are defined in their module.",
            ) from None

    def read(self, text: str) -> Any:
        """The value that a JSON text stands for.

        Raises:
            ArgumentError: it stands for none; the message names the fields that do not fit, and shows no values.
        """
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise ArgumentError(f"{self._misfit}: {_flaws(error)}.", reason="payload") from None
        except RecursionError:
            raise ArgumentError(f"{self._misfit}: it is nested too deep.", reason="payload") from None

    def of_json(self, value: Any) -> Any:
        """The value that a value of plain JSON (dict, list, text …) stands for.

        Raises:
            ArgumentError: as `read`, or it is no JSON.
        """
        try:
            text = _text(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise ArgumentError(f"{self._misfit}: {str(error)[:_MOST_CHARS]}.", reason="payload") from None
        return self.read(text)

    def plain(self, value: Any) -> Any:
        """A value of the type, or one of plain JSON that fits it, as plain JSON: checked, and with all defaults filled in.

        What `plain` returns, `of_json` reads: aliases are as the type reads them, and computed fields are left out.

        Raises:
            ArgumentError: it does not fit.
        """
        return self._dumped(self.of_json(self._dumped(value)))

    def schema(self, most_chars: int, *, of_result: bool) -> str:
        """JSON text of the JSON schema of the type; of one that has none, or too long a one, its name alone.

        Args:
            most_chars: of the text.
            of_result: of what is written, and not of what is read: fields with defaults are always there.
        """
        try:
            found = self._adapter.json_schema(mode="serialization" if of_result else "validation")
            text = json.dumps(found, allow_nan=False, separators=(",", ":"))
        except Exception:  # schemas may be made by user code, and some types have none
            text = ""
        return text if 0 < len(text) <= most_chars else json.dumps({"title": self.name})

    def _dumped(self, value: Any) -> Any:
        try:
            return self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
        except Exception as error:  # serializers are user code
            told = str(error)[:_MOST_CHARS]
            raise ArgumentError(f"{self._misfit}: {told}", reason="payload") from None


def _flaws(error: ValidationError) -> str:
    """Returns what does not fit, field by field; without values, which may be secrets."""
    flaws = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{_place(flaw['loc'])}{flaw['msg'][:_MOST_CHARS]}" for flaw in flaws[:_MOST_FLAWS]]
    left = len(flaws) - len(told)
    return "; ".join(told) + (f"; and {left} more" if left else "")


def _place(location: tuple[int | str, ...]) -> str:
    return f"field {'.'.join(str(step)[:60] for step in location)!r}: " if location else ""


def _name(declared: Any) -> str:
    return getattr(declared, "__name__", None) or str(declared)[:_MOST_CHARS]


def is_plain(declared: Any) -> bool:
    """Returns True if an annotation says nothing beyond plain JSON: such results are written as they are."""
    if declared in (None, Any, object, ...):
        return True
    arguments = get_args(declared)
    origin = get_origin(declared)
    if origin is None:
        return declared in _PLAIN
    return (origin in _PLAIN or _is_union(origin)) and all(map(is_plain, arguments))


def _is_union(origin: Any) -> bool:
    return origin is UnionType or origin is Union


_PLAIN: Final[frozenset[Any]] = frozenset({dict, list, tuple, str, int, float, bool, type(None), Mapping})
