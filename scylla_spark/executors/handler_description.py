"""What a handler looks like from outside: where it is written, what it says of itself, and the JSON schemas of its payload and its result.

It is found where handlers are imported, and travels with what the dispatcher knows of them, so that forms and catalogues can be made
without importing anything.
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from scylla_spark.executors.handler_signature import Signature

_MOST_NAME: Final = 300
_MOST_ABOUT: Final = 300
MOST_SCHEMA: Final = 12_000  # characters; twice that, with quotes escaped, fits into a message of a forkserver


class HandlerForm(NamedTuple):
    """What a handler looks like from outside.

    Attributes:
        module: in which its function is written.
        function: its name there.
        about: the first line of its docstring; empty: it has none.
        payload: JSON text of the schema of its payload; None: it takes any JSON object.
        result: likewise of what it returns; None: any JSON.
    """

    module: str = ""
    function: str = ""
    about: str = ""
    payload: str | None = None
    result: str | None = None


def form_of(function: Callable[..., Any], said: Signature) -> HandlerForm:
    """What a registered function looks like.

    Args:
        function: of the handler.
        said: what its signature says.
    """
    about = (inspect.getdoc(function) or "").partition("\n")[0]
    return HandlerForm(
        str(getattr(function, "__module__", ""))[:_MOST_NAME], str(getattr(function, "__qualname__", ""))[:_MOST_NAME],
        about[:_MOST_ABOUT],
        None if said.payload is None else said.payload.schema(MOST_SCHEMA, of_result=False),
        None if said.result is None else said.result.schema(MOST_SCHEMA, of_result=True),
    )  # fmt: skip


def heard_form(told: Any) -> HandlerForm:
    """The form that a message tells of.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(told, list) or len(told) != len(HandlerForm._fields):
        raise ValueError("a form of a handler has five parts")
    texts, schemas = told[:3], told[3:]
    if not all(isinstance(one, str) for one in texts) or not all(one is None or _is_schema(one) for one in schemas):
        raise ValueError("a form of a handler consists of texts and schemas")
    return HandlerForm(*told)


def _is_schema(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
