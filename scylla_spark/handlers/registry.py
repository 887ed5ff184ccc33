"""The allow-list of handlers: functions that tasks may name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from scylla_spark.core.tasks.tags import MOST_TAGS, is_tag
from scylla_spark.core.tasks.task import Retry
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.handlers import signature as handler_signature
from scylla_spark.handlers.description import AUTO, CONNECT, EXECUTOR_NAMES, HandlerInfo
from scylla_spark.handlers.isolation import SANDBOX, Isolation, Wishes, asked_by
from scylla_spark.handlers.signature import Signature
from scylla_spark.name import RULE, is_name

_PLAIN_OR_VERSION = re.compile(r"[^@]+(?:@[0-9]+)?")
AT_ONCE = 100
MOST_AT_ONCE = 10_000

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function.

    Attributes:
        info: what the dispatcher knows of it.
        function: the function itself.
        signature: how it is called, and which types its payload and its result have.
        schedules: that it brings along, as objects of a file of schedules.
        module: that registered it; the function itself may be of another one.
    """

    info: HandlerInfo
    function: Callable[..., Any]
    signature: Signature
    schedules: tuple[Mapping[str, Any], ...] = ()
    module: str = ""


_registered: dict[str, Handler] = {}


def handler(
    name: str,
    *,
    retry: Retry | None = None,
    timeout: object = None,
    runs_on: str | None = None,
    max_batch: int | None = None,
    concurrency: int | None = None,
    isolation: str | None = None,
    memory: str | int | None = None,
    cpu: object = None,
    processes: int | None = None,
    open_files: int | None = None,
    environment: Mapping[str, str] | None = None,
    rate_key: str | Sequence[str] = (),
    schedules: Sequence[Mapping[str, Any]] = (),
) -> Callable[[F], F]:
    """Registers a function under `name` and returns it unchanged, so that tests can call it directly.

    The function takes `(task)` or `(task, ctx)`. Where its first parameter is annotated with a type that is not `Task`, it gets
    the payload as a value of that type: a pydantic model, a dataclass, a TypedDict. With `max_batch` it takes one
    pyarrow.Table (or pandas.DataFrame, if its parameter is annotated so) with a row per task; see `handlers.batch` for
    the columns.

    Args:
        name: 1 to 200 ASCII letters, digits and `_ . / : -`; a version may follow, as in "charge@2". A task that names
            "charge" gets the function registered as "charge", or else the one with the highest version.
        retry: when failed tasks run again; default: the deployment's policy.
        timeout: how long one call may run (duration, more than 0); default: the deployment's.
        runs_on: "local" (a child process beside the dispatcher), "spark" (a Spark worker) or "connect" (a child process with a
            session of Spark Connect, `ctx.spark`). Default: as `dispatch.runs_on` says.
        max_batch: most tasks in one call, from 1.
        concurrency: of an `async def` function: how many of its tasks share the event loop of its child process, from 1 to
            10,000. Default: 100.
        isolation: "process" (the default) or "sandbox": no network, no files but what it needs to be imported, no other
            process in sight. With this or any of the following the handler has children of its own kind.
        memory: how much a process of it may take beyond what its imports have taken, such as "512MB", from 16 MB.
        cpu: seconds of CPU that a call may take (duration, rounded up to whole seconds).
        processes: how many processes and threads its tasks may have together besides their children; only in a sandbox.
        open_files: how many descriptors a process of it may have, from 32.
        environment: variables that it gets beside those that all handlers get.
        rate_key: name of a rate limit that all its tasks share, or several: none of them starts while one has to wait for it,
            whose attempt raised `RateLimited` with that key.
        schedules: of this handler, each with the fields of a file of schedules, such as {"name": "nightly", "cron": "0 2 * * *"}.
            `schedule apply --from MODULE` stores them.

    Raises:
        ArgumentError: a setting or the function's signature is not usable, or another function has this name.
    """
    if not (is_name(name) and _PLAIN_OR_VERSION.fullmatch(name)):
        raise ArgumentError(
            f"{shown(name)} is not a handler name.",
            hint=f'Use {RULE}, the @ only before a version: "mail.send" or "charge@2".',
        )
    if runs_on is not None and runs_on not in EXECUTOR_NAMES:
        raise ArgumentError(
            f"Handler {name!r} has runs_on={runs_on!r}.", hint=f"Choose one of: {', '.join(EXECUTOR_NAMES)}."
        )
    if max_batch is not None and max_batch < 1:
        raise ArgumentError(f"Handler {name!r} has max_batch={max_batch}.", hint="Pass 1 or more, or leave it out.")
    apart = asked_by(name, Wishes(isolation, memory, cpu, processes, open_files, environment))
    timeout_ms = None if timeout is None else duration_ms(timeout)
    if timeout_ms == 0:
        raise ArgumentError(f"Handler {name!r} has a timeout of 0.", hint='Pass a duration such as "30s".')

    rate_keys, brought = _rate_keys(name, rate_key), tuple(schedules)
    if not all(isinstance(one, Mapping) and not one.keys() & {"handler", "owner"} for one in brought):
        raise ArgumentError(
            f"Handler {name!r} has schedules={shown(schedules)}.",
            hint='Pass a list of objects without handler and owner, such as {"name": "nightly", "cron": "0 2 * * *"}.',
        )

    def register(function: F) -> F:
        taken = handler_signature.read(name, function, batch=max_batch is not None)
        at_once = _concurrency(name, concurrency, runs_on, is_async=taken.is_async)
        _check_apart(name, apart, runs_on, is_async=taken.is_async)
        _check_session(name, runs_on, taken, max_batch)
        info = HandlerInfo(name, runs_on or AUTO, max_batch, timeout_ms, retry, at_once, apart, rate_keys=rate_keys)
        caller = inspect.currentframe()
        place = caller.f_back.f_globals.get("__name__", "") if caller is not None and caller.f_back is not None else ""
        _add(Handler(info, function, taken, brought, place))
        return function

    return register


def _rate_keys(name: str, asked: str | Sequence[str]) -> tuple[str, ...]:
    keys = (asked,) if isinstance(asked, str) else tuple(asked)
    if len(keys) > MOST_TAGS or not all(map(is_tag, keys)):
        raise ArgumentError(
            f"Handler {name!r} has rate_key={shown(asked)}.",
            hint=f'Pass a text that may be a tag, such as "api.acme", or up to {MOST_TAGS}.',
        )
    return keys


def _concurrency(name: str, asked: int | None, runs_on: str | None, *, is_async: bool) -> int | None:
    if is_async and runs_on == CONNECT:
        raise ArgumentError(
            f"Handler {name!r} is `async def` and has runs_on={runs_on!r}.",
            hint="Sessions of Spark Connect are for plain functions: leave out runs_on, or make it a plain function.",
        )
    if asked is not None and not is_async:
        raise ArgumentError(
            f"Handler {name!r} has a concurrency and is no `async def` function.",
            hint="Leave it out; limits of plain handlers are those of their queue.",
        )
    if asked is not None and not (type(asked) is int and 1 <= asked <= MOST_AT_ONCE):
        raise ArgumentError(f"Handler {name!r} has concurrency={shown(asked)}.", hint=f"Pass 1 to {MOST_AT_ONCE}.")
    return (asked or AT_ONCE) if is_async else None


def _check_apart(name: str, asked: Isolation | None, runs_on: str | None, *, is_async: bool) -> None:
    if asked is None or (runs_on != CONNECT and not is_async):
        return
    what = 'isolation="sandbox"' if asked.level == SANDBOX else "limits of its own"
    raise ArgumentError(
        f"Handler {name!r} asks for {what}, and " + ("is `async def`." if is_async else f"has runs_on={runs_on!r}."),
        hint="Only plain functions without a session of Spark Connect have children of their own kind.",
    )


def _check_session(name: str, runs_on: str | None, taken: Signature, max_batch: int | None) -> None:
    if runs_on != CONNECT or (max_batch is None and taken.parameters == 2):
        return
    raise ArgumentError(
        f'Handler {name!r} has runs_on="connect" and ' + ("max_batch." if max_batch else "takes no context."),
        hint="Its session of Spark is in its context: write it as a function of (task, ctx), without max_batch.",
    )


def unregistered(name: str, function: Callable[..., Any]) -> Handler:
    """A function as a handler that only the caller knows, and no other part of this process.

    Raises:
        ArgumentError: the function's signature is not usable.
    """
    return Handler(HandlerInfo(name), function, handler_signature.read(name, function, batch=False))


def registered(function: Callable[..., Any]) -> Handler:
    """The handler that a function of this process is.

    Raises:
        ArgumentError: it is none, or it is registered under several names.
    """
    found = [entry for entry in _registered.values() if entry.function is function]
    if len(found) == 1:
        return found[0]
    names = [entry.info.name for entry in found]
    raise ArgumentError(
        f"{_place(function)} is registered as {names}." if names else f"{_place(function)} is no handler.",
        hint="Pass one of the names." if names else 'Decorate it with @handler("name"), or pass the name of a handler.',
        reason="wrong_value",
    )


def named_handler(handler: str | Callable[..., Any] | None, payload: Any) -> tuple[str | None, Any]:
    """The name of a handler, and the payload as JSON has it.

    Args:
        handler: name, or a registered function; None: the default handler, or a lease.
        payload: of a function that declares a type of payload, a value of that; else it stays as it is.

    Raises:
        ArgumentError: the function is no handler, or the payload does not fit its type.
    """
    if not callable(handler):
        return handler, payload
    known = registered(handler)
    declared = known.signature.payload
    return known.info.name, payload if declared is None else declared.plain({} if payload is None else payload)


def look_in_current_folder() -> None:
    """Lets modules of handlers be found in the current folder first, as `python -m` does; child processes find them there, too.

    Console scripts have the folder of the script there instead, and no module of a project that is not installed.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def load(modules: Sequence[str]) -> dict[str, Handler]:
    """Imports modules and returns every registered handler by the names that tasks may use.

    Args:
        modules: dotted names, or paths of .py files (their directory is then appended to sys.path, for their own
            imports).

    Returns:
        Name → handler; for "charge@2" also "charge", if that is its highest version and nobody is registered as
        "charge".

    Raises:
        ArgumentError: a path does not exist, or two functions claim one name. Other errors of the modules pass through.
    """
    for module in modules:
        if _is_path(module):
            _import_file(Path(module))
        else:
            importlib.import_module(module)
    versions: dict[str, tuple[int, Handler]] = {}
    for name, entry in _registered.items():
        plain, _, version = name.partition("@")
        if version and int(version) > versions.get(plain, (-1, entry))[0]:
            versions[plain] = (int(version), entry)
    return {plain: entry for plain, (_, entry) in versions.items()} | _registered


def defined_in(module: str) -> list[Handler]:
    """Imports a module, and returns the handlers that it and its submodules define or register.

    Args:
        module: dotted name, or path of a .py file.

    Raises:
        ArgumentError: as `load` does. Other errors of the module pass through.
    """
    load((module,))
    name = _import_file(Path(module)).__name__ if _is_path(module) else module
    return [
        one
        for one in _registered.values()
        if any(f"{place}.".startswith(f"{name}.") for place in (one.module, one.function.__module__))
    ]


def _is_path(module: str) -> bool:
    return module.endswith(".py") or "/" in module


def _add(entry: Handler) -> None:
    name = entry.info.name
    known = _registered.get(name)
    if known is not None and _place(known.function) != _place(entry.function):
        raise ArgumentError(
            f"Two functions are registered as handler {name!r}: {_place(known.function)} and {_place(entry.function)}.",
            hint="Give one of them another name, or a version such as " + f'"{name.partition("@")[0]}@2".',
            name=name,
        )
    _registered[name] = entry


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise ArgumentError(
            f"There is no handler file {path}.", hint="Pass a dotted module name or the path of a .py file."
        )
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    name = (
        path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"handlers_{abs(hash(str(path))):x}"
    )
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{path} cannot be imported.", hint="Pass the path of a .py file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
