"""JSON texts of what a worker sends, within the bounds of the server."""

from __future__ import annotations

import json
from typing import Any, Final

from scylla_spark.core.tasks.kept_json import kept_text, size_of
from scylla_spark.core.tasks.task import MAX_ERROR_CHARS
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers.call import clean, verdict_of

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_text(name: str, value: Any, most: int) -> str:
    """The JSON text of a value.

    Args:
        name: of it, for the error.
        value: what JSON can hold.
        most: bytes that are kept.

    Raises:
        ArgumentError: it has no such text, or too much of it.
    """
    try:
        text = kept_text(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"The {name} cannot be kept: {error}.", hint="Pass dict, list, str, int, finite float, bool or None."
        ) from None
    size = size_of(text)
    if size > most:
        raise ArgumentError(
            f"The {name} has {size} bytes; {most} are kept.", hint="Store it elsewhere, and pass where."
        )
    return text


def item_text(raw: dict[str, Any] | None = None, **fields: Any) -> str:
    """A JSON object of fields; those of `raw` are JSON texts or numbers already, and left out where they are None."""
    parts = [f'"{name}":{clean(_encode(value))}' for name, value in fields.items()]
    parts += [f'"{name}":{text}' for name, text in (raw or {}).items() if text is not None]
    return "{" + ",".join(parts) + "}"


def error_text(why: BaseException | str, description: str = "") -> str:
    """The `error` of a report: of an exception class, message and stack, else a code and a description."""
    if isinstance(why, BaseException):
        kind, message, stack = verdict_of(why).failure or (type(why).__name__, "", "")
        return item_text(code=kind or "failed", description=message, stack=stack)
    if not why:
        raise ArgumentError("A failure needs a code.", hint='Such as "card_declined", or pass the exception.')
    return item_text(code=why[:500], description=description[:MAX_ERROR_CHARS])
