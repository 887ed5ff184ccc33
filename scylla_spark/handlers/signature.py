"""What a handler's signature says: how it is called, and which types its payload and its result have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, get_type_hints

from scylla_spark.core.tasks.task import Task
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers.value_type import ValueType, is_plain

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signature(NamedTuple):
    """How a handler is called.

    Attributes:
        parameters: how many of (task, ctx) it takes: 1 or 2.
        payload: the type of its first parameter, where that is the payload; None: it takes the whole task.
        result: the type that it returns; None: it returns plain JSON.
        pandas: a batch handler that wants a pandas.DataFrame instead of a pyarrow.Table.
        is_async: it is an `async def` function.
    """

    parameters: int
    payload: ValueType | None = None
    result: ValueType | None = None
    pandas: bool = False
    is_async: bool = False


def read(name: str, function: Callable[..., Any], *, batch: bool) -> Signature:
    """The signature of a handler.

    Args:
        name: of the handler, for errors.
        function: of the handler.
        batch: it takes many tasks in one call.

    Raises:
        ArgumentError: the function cannot be called as a handler, or a type that it declares has no form in JSON.
    """
    if batch:
        if inspect.iscoroutinefunction(function):
            raise ArgumentError(
                f"Handler {name!r} has max_batch and is `async def`.",
                hint="Leave one of them out: async tasks run together anyway.",
            )
        return Signature(_parameters(name, function, 1, "(tasks)"), pandas=_wants_pandas(function))
    parameters = _parameters(name, function, 2, "(task) or (task, ctx)")
    first = next(iter(inspect.signature(function).parameters))
    taken = _annotation(name, function, first, "Task")
    returned = _annotation(name, function, "return", "")
    try:
        return Signature(
            parameters,
            None if taken in (None, Any, object, Task) else ValueType(taken, "payload"),
            None if is_plain(returned) else ValueType(returned, "result"),
            is_async=inspect.iscoroutinefunction(function),
        )
    except ArgumentError as error:
        raise ArgumentError(f"Handler {name!r}: {error.message}", hint=error.hint) from None


def _parameters(name: str, function: Callable[..., Any], most: int, what: str) -> int:
    problem = ArgumentError(
        f"Handler {name!r} cannot be called with {what}.",
        hint=f"Declare it as `def {getattr(function, '__name__', 'f')}{what.split(' or ')[-1]}`.",
    )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ArgumentError(f"Handler {name!r} is a generator function.", hint="Return instead of yielding.")
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = [p for p in positional if p.default is p.empty]
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters) or len(required) > most:
        raise problem
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    if not positional:
        raise problem
    # a second parameter with a default is the function's own business, unless it is called ctx
    return 2 if most == 2 and (len(required) == 2 or [p.name for p in positional[1:2]] == ["ctx"]) else 1


def _annotation(name: str, function: Callable[..., Any], part: str, ours: str) -> Any:
    """Returns what a parameter, or "return", is annotated with, evaluated; None: nothing.

    Args:
        name: of the handler.
        function: of the handler.
        part: the parameter.
        ours: a name that need not be imported at run time, because nothing is to be checked by it.
    """
    plain = inspect.unwrap(function)
    written = getattr(plain, "__annotations__", {}).get(part)
    if not isinstance(written, str):
        return written
    if ours and written.strip("\"'").rpartition(".")[2] == ours:
        return None
    holder = SimpleNamespace(__annotations__={part: written})
    try:
        return get_type_hints(holder, getattr(plain, "__globals__", {}), include_extras=True)[part]
    except Exception as error:
        raise ArgumentError(
            f"Handler {name!r}: what {part!r} is annotated with, {written[:200]}, cannot be evaluated: {error}.",
            hint="Define or import it in the module of the handler, outside of `if TYPE_CHECKING` and of functions.",
        ) from None


def _wants_pandas(function: Callable[..., Any]) -> bool:
    annotations = getattr(function, "__annotations__", {})
    first = next((annotations[name] for name in inspect.signature(function).parameters if name in annotations), None)
    if isinstance(first, str):
        return first.strip("\"'") in ("pd.DataFrame", "pandas.DataFrame")
    return getattr(first, "__module__", "").partition(".")[0] == "pandas"
