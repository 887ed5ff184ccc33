"""Which handlers a test means, and calling one as a child process would, in this one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.clock import now_us
from scylla_spark.core.tasks.key import instant_us
from scylla_spark.core.tasks.task import Failure, Invocation, Notes, Session
from scylla_spark.errors import ArgumentError, NotFoundError
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.handlers.batch import call_batch
from scylla_spark.handlers.call import call as call_one
from scylla_spark.handlers.call import failed
from scylla_spark.handlers.messages import Verdict
from scylla_spark.handlers.registry import Handler

Handlers = Iterable[ModuleType | str | Callable[..., Any]] | None
"""Modules (themselves, their names, or paths of .py files) and functions; None: all that are registered in this process."""

_TIMEOUT_MS: Final = 300_000


class Called(NamedTuple):
    """How a handler has ended.

    Attributes:
        outcome: succeeded, failed, aborted or yielded.
        result: what it returned, as it is kept: a JSON value.
        error: class, message and stack of what it raised.
        after: how long a handler that yielded wants to wait.
    """

    outcome: str
    result: Any = None
    error: Failure | None = None
    after: timedelta = timedelta(0)


def call(
    handler: Callable[..., Any],
    payload: Any = None,
    *,
    attempt: int = 1,
    now: datetime | None = None,
    spark: object = None,
    **task: Any,
) -> Called:
    """Calls one handler as a child process does: the payload has been JSON, the result becomes JSON, and nothing is raised.

    Args:
        handler: a function, registered or not; a batch handler gets a table of one row.
        payload: what would be enqueued.
        attempt: number of the attempt, from 1.
        now: when it begins (aware datetime). Default: now.
        spark: the session that it finds in `ctx.spark`; None: none.
        **task: anything else that `Scheduler.enqueue` takes, such as `ordering_id`, `queue` or `timeout`.

    Returns:
        How it has ended.

    Raises:
        ArgumentError: no task could be enqueued with these arguments, or the function cannot be a handler.
    """
    if attempt < 1:
        raise ArgumentError(f"The attempt is {attempt}.", hint="Attempts are numbered from 1.")
    begin = now_us() if now is None else instant_us(now)
    ((name, found),) = _of_function(handler, handler_registry.load(())).items()
    by_name = payload is None or isinstance(payload, Mapping)
    target: Any = name if by_name else handler  # what is no JSON object, is for the function to say
    command = enqueue_arguments.command(begin, target, payload, **task)
    timeout_ms = found.info.timeout_ms or _TIMEOUT_MS
    item = command.invocation(1, attempt, 1, command.key.time_us, handler=name, timeout_ms=timeout_ms)
    (verdict,) = verdicts({name: found}, [item], begin, session=opens(spark))
    return Called(
        verdict.outcome, decoded(verdict.result), failure_in(verdict), timedelta(milliseconds=verdict.after_ms)
    )


def verdicts(
    handlers: Mapping[str, Handler],
    items: Sequence[Invocation],
    now: int,
    notes: Notes | None = None,
    session: Session | None = None,
) -> Sequence[Verdict]:
    """Makes one call: a task, or several for a batch handler; a verdict for each, in their order.

    Args:
        handlers: what tasks may name.
        items: of one handler.
        now: when the call begins, microseconds since the epoch.
        notes: where a task says how far it is; None: nobody listens.
        session: opens the session of Spark of the call; None: it has none.

    Raises:
        KeyboardInterrupt: somebody wants the test to end, and not the handler to be tried again.
    """
    handler = handlers.get(items[0].handler)
    if handler is None:
        return [failed("handler_unknown", f"No handler {items[0].handler!r} is registered here.")] * len(items)
    if handler.info.max_batch is not None:
        found: Sequence[Verdict] = call_batch(handler, list(items))
    else:
        found = [call_one(handler, items[0], now, notes, session=session)]
    if any(one.failure is not None and one.failure[0] == "KeyboardInterrupt" for one in found):
        raise KeyboardInterrupt
    return found


def opens(spark: object) -> Session | None:
    """Returns what opens the session that a test hands over; None: there is none."""
    return None if spark is None else lambda: spark


def failure_in(verdict: Verdict) -> Failure | None:
    """Returns why a call did not succeed."""
    return Failure(*verdict.failure) if verdict.failure is not None else None


def decoded(text: str | None) -> Any:
    """The value of a result."""
    return None if text is None else json.loads(text)


def chosen(handlers: Handlers) -> dict[str, Handler]:
    """The handlers that a test means, by the names that tasks may use.

    Args:
        handlers: modules, names and paths of modules, functions; a function without `@handler` goes by its own name.

    Raises:
        ArgumentError: something is no handler, or a module has none.
    """
    if handlers is None:
        return handler_registry.load(())
    if isinstance(handlers, str) or not isinstance(handlers, Iterable):
        raise ArgumentError(
            f"handlers is {handlers!r}.", hint="Pass a list, such as [my_handlers] or [remind, report]."
        )
    listed = list(handlers)
    registered = handler_registry.load([one for one in listed if isinstance(one, str)])
    found: dict[str, Handler] = {}
    for one in listed:
        if isinstance(one, str | ModuleType):
            found |= _of_module(_module(one) if isinstance(one, str) else one, registered)
        else:
            found |= _of_function(one, registered)
    return found


def check_known(handlers: Mapping[str, Handler], name: str) -> None:
    """Whether there is a handler of that name.

    Raises:
        NotFoundError: there is none; the hint names the nearest, or all.
    """
    if name not in handlers:
        from difflib import get_close_matches

        near = get_close_matches(name, handlers, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Its handlers: {', '.join(sorted(handlers)) or 'none'}."
        raise NotFoundError(f"This world has no handler {name!r}.", hint=hint)


def _of_module(module: ModuleType, registered: Mapping[str, Handler]) -> dict[str, Handler]:
    inside = [value for value in vars(module).values() if callable(value)]
    found = {name: entry for name, entry in registered.items() if any(entry.function is one for one in inside)}
    if not found:
        raise ArgumentError(
            f"The module {module.__name__} has no handlers.", hint="Register its functions with @handler(NAME)."
        )
    return found


def _of_function(function: Callable[..., Any], registered: Mapping[str, Handler]) -> dict[str, Handler]:
    if not callable(function) or not hasattr(function, "__name__"):
        raise ArgumentError(f"{function!r} is no handler.", hint="Pass modules and functions.")
    found = {name: entry for name, entry in registered.items() if entry.function is function}
    return found or {function.__name__: handler_registry.unregistered(function.__name__, function)}


def _module(name: str) -> ModuleType:
    """A module that was just loaded, by its name or by the path of its file."""
    if name in sys.modules:
        return sys.modules[name]
    path = str(Path(name).resolve())
    return next(module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == path)
