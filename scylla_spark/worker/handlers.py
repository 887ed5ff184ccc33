"""The handlers of a worker: given as functions by name, or as modules of `@handler` functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from scylla_spark.errors import ArgumentError, ConfigError, SchedulerError
from scylla_spark.handlers.call import describe, stack_of
from scylla_spark.handlers.description import AUTO, LOCAL
from scylla_spark.handlers.registry import Handler, defined_in, load, unregistered

ANY: Final = "*"
"""The name of a handler for all tasks that have none of their own here, and for those that name none at all."""

Source = Mapping[str, Callable[..., Any]] | tuple[str, ...]
"""Functions by name, or names of modules and paths of files; either can be sent to another process."""


def source_of(handlers: Mapping[str, Callable[..., Any]] | Sequence[str] | str) -> Source:
    """Returns what handlers are made of, in a form that can be sent to another process."""
    if isinstance(handlers, Mapping):
        return dict(handlers)
    return (handlers,) if isinstance(handlers, str) else tuple(handlers)


def resolved(source: Source) -> dict[str, Handler]:
    """The handlers by the names that tasks may use; of modules only those that need nothing of a dispatcher.

    Batches, Spark and isolation are there beside a dispatcher alone, so handlers that ask for one of them are left to it.

    Raises:
        ArgumentError: there is none, or a module file is missing.
        ConfigError: a module cannot be imported (the message holds the stack).
    """
    found = _by_name(source) if isinstance(source, Mapping) else imported(source)
    ours = {
        name: entry
        for name, entry in found.items()
        if entry.info.max_batch is None and entry.info.runs_on in (AUTO, LOCAL) and entry.info.isolation is None
    }
    if not ours:
        raise ArgumentError(
            "There is no handler that a worker could run.",
            hint='Pass {"render": render}, or modules of @handler functions without max_batch, runs_on and isolation.',
        )
    return ours


def asked_for(handlers: Mapping[str, Handler]) -> tuple[str, ...] | None:
    """The names that a worker asks for; None: all tasks."""
    return None if ANY in handlers else tuple(sorted(handlers))


def imported(modules: Sequence[str]) -> dict[str, Handler]:
    """The handlers of modules, by the names that tasks may use.

    Raises:
        ArgumentError: a module file is missing.
        ConfigError: a module cannot be imported (the message holds the stack).
    """
    with _named_errors():
        return load(modules)


def defined_by(module: str) -> list[Handler]:
    """The handlers that a module and its submodules define. Raises the errors of `imported`."""
    with _named_errors():
        return defined_in(module)


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except SchedulerError:
        raise
    except (Exception, SystemExit) as error:  # whatever a module does while it is imported
        raise ConfigError(
            f"A handler module cannot be imported: {describe(error)}\n{stack_of(error)}\n",
            hint="Pass paths of .py files, and modules of the current folder or of installed packages.",
        ) from error


def _by_name(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Handler]:
    return {name: unregistered(name, function) for name, function in functions.items()}
