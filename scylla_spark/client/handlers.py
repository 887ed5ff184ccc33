"""The handlers that dispatchers can run now: asked of those that own partitions, so that the answer is of what runs and of nothing else."""

from __future__ import annotations

import difflib
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scylla_spark.client.tasks.explain import ask, told_rows
from scylla_spark.core.tasks.state import NO_HANDLER, NO_WORKER
from scylla_spark.errors import ArgumentError, SchedulerError

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from scylla_spark.client.connection import Connection

_MOST: Final = 10_000  # handlers of a dispatcher that are believed
_MOST_NAMED: Final = 10  # schedules of a handler that no dispatcher has
_MOST_WORDS: Final = 500  # of what is wrong with a payload
_MOST_MISMATCHES: Final = 100  # of a payload, of which the best one is reported
_Text = Annotated[str, Field(max_length=1_000)]
_Number = Annotated[int, Field(ge=0, le=2**53)]


class HandlerRetry(BaseModel):
    """When failed tasks of a handler run again; "inherited" and null: as their queue or the deployment says."""

    model_config = ConfigDict(strict=True)

    max_retries: Annotated[
        int | Literal["inherited"] | None, Field(description="Attempts after the first; null: for ever")
    ]
    base_ms: _Number | None
    cap_ms: _Number | None


class KnownHandler(BaseModel):
    """A handler, as a dispatcher tells of it."""

    model_config = ConfigDict(strict=True)

    name: Annotated[str, Field(min_length=1, max_length=300, description="By which tasks name it")]
    registered_as: Annotated[_Text, Field(description="With its version, if it has one")]
    runs_on: _Text
    isolation: Annotated[_Text | None, Field(description="Level that it asks for; null: none")]
    max_batch: Annotated[int | None, Field(description="Most tasks of one call; null: one task a call")]
    concurrency: Annotated[int | None, Field(description="Of an `async def` handler: how many share a loop")]
    rate_keys: Annotated[
        list[_Text], Field(max_length=100, description="Of rate limits that its tasks share: RateLimited")
    ] = Field(default_factory=list)
    timeout_ms: Annotated[_Number | None, Field(description="null: as the deployment says, as with `retry`")]
    retry: HandlerRetry | None
    module: _Text
    function: _Text
    about: Annotated[_Text, Field(description="First line of its docstring")]
    payload: Annotated[dict[str, Any] | None, Field(description="JSON schema of its payload; null: any JSON object")]
    result: Annotated[dict[str, Any] | None, Field(description="JSON schema of its result; null: any JSON")]


class Holder(NamedTuple):
    """A dispatcher that has a handler.

    Attributes:
        address: where it serves its state.
        since: when it began to have it, RFC 3339; empty: it does not say.
    """

    address: str
    since: str


class Catalogue(NamedTuple):
    """What dispatchers have told of their handlers.

    Attributes:
        handlers: name → the handler, and the dispatchers that have it, by name.
        differs: names of handlers of which dispatchers tell different things, as while a new version is rolled out.
        asked: addresses of the dispatchers that own partitions.
        silent: those of them that did not answer.
        waiting: queue and handler of tasks that wait → why: NO_HANDLER, or NO_WORKER.
        channels: name of a channel of notifications → True if tasks may name it; None: not all dispatchers report the same.
    """

    handlers: dict[str, tuple[KnownHandler, list[Holder]]]
    differs: frozenset[str]
    asked: list[str]
    silent: list[str]
    waiting: Mapping[tuple[str, str], str] = MappingProxyType({})
    channels: Mapping[str, bool] | None = None


def catalogue(connection: Connection) -> Catalogue:
    """Asks every dispatcher that owns a partition.

    Args:
        connection: to the deployment.
    """
    owners = (connection.owner_address(number) for number in range(connection.rules.partitions))
    return gathered((address, ask(address, "handlers")) for address in sorted({one for one in owners if one}))


def known_handlers(connection: Connection) -> Catalogue:
    """The same; empty if dispatchers cannot be asked."""
    try:
        return catalogue(connection)
    except SchedulerError:
        return gathered(())


def warning_of(known: Catalogue, handler: str | None) -> str | None:
    """Returns what to say of a name by what dispatchers told; None: one has it, or nobody knows what all of them have.

    Args:
        known: what they told.
        handler: the name; None: none was given.
    """
    if not known.asked or known.silent or not handler or handler in known.handlers:
        return None
    near = difflib.get_close_matches(handler, known.handlers, 1)
    hint = f"Did you mean {near[0]!r}?" if near else "`scylla-spark handler list` shows those that are there."
    return f"No dispatcher that runs has a handler {handler!r}: unless workers run it, its tasks wait until one has. {hint}"


def channel_warning(known: Catalogue, channel: str) -> str | None:
    """Returns what to say of a channel that a task names; None: tasks may name it, or dispatchers do not report one and the same.

    Args:
        known: what dispatchers told.
        channel: its name.
    """
    channels = known.channels
    if channels is None or channels.get(channel):
        return None
    if channel in channels:
        hint = f"Set notify.channels.{channel}.tasks to true."
        return f"The channel {channel!r} is not open to tasks: it is not notified of the end of this one. {hint}"
    near = difflib.get_close_matches(channel, [name for name, is_open in channels.items() if is_open], 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Set notify.channels.{channel}, with tasks = true."
    return f"There is no channel {channel!r}: no message is sent at the end of the task. {hint}"


def check_payload(known: Catalogue, handler: str, payload: Mapping[str, Any]) -> None:
    """Checks a payload by the JSON schema of its handler. Without one schema that all dispatchers report, nothing is checked.

    Args:
        known: what they told.
        handler: its name.
        payload: of a task.

    Raises:
        ArgumentError: it does not match; the message names the field.
    """
    schema = known.handlers[handler][0].payload if handler in known.handlers else None
    if schema is None or handler in known.differs:
        return
    wrong = _mismatch(schema, payload)
    if wrong:
        raise ArgumentError(
            f"The payload does not match the schema of the handler {handler!r}: {wrong}.",
            hint=f"`scylla-spark handler show {handler}` prints the schema.",
            reason="payload_invalid",
        )


def _mismatch(schema: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
    """Returns what is wrong with a payload, after the field; empty: nothing, or the schema is none that can be checked.

    Callers choose the payload, so what can take more than linear time is left to the handler: `uniqueItems`, `patternProperties`, and
    patterns that only a backtracking engine knows.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from jsonschema.validators import extend
    from referencing import Registry

    registry: Any = Registry()  # resolves no reference to another document
    checks = extend(Draft202012Validator, {"uniqueItems": None, "pattern": _unlike_pattern})
    try:
        if "patternProperties" in json.dumps(schema):
            return ""
        found = best_match(islice(checks(schema, registry=registry).iter_errors(dict(payload)), _MOST_MISMATCHES))
    except Exception:  # a handler can declare any schema, and judges the payload itself when it runs
        _log.debug("a schema of a payload cannot be checked", exc_info=True)
        return ""
    if found is None:
        return ""
    place = ".".join(map(str, found.absolute_path))
    return f"{place}: {found.message}"[:_MOST_WORDS] if place else found.message[:_MOST_WORDS]


def _unlike_pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[Any]:
    """Yields what is wrong with a text that a pattern is declared for, found in linear time; see `jsonschema.validators.extend`."""
    from jsonschema.exceptions import ValidationError as Mismatch
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern, strict=True)).validate_python(value)
    except SchemaError:
        return
    except ValidationError as error:
        if isinstance(value, str):
            yield Mismatch(f"{value[:100]!r} does not match {pattern!r}", cause=error)


def warnings_of(known: Catalogue, handlers: Iterable[str | None], channels: Iterable[str] = ()) -> list[str]:
    """Returns what to say of several names, each once.

    Args:
        known: what dispatchers told.
        handlers: the names.
        channels: names of channels that tasks name.
    """
    found = [warning_of(known, name) for name in sorted({name for name in handlers if name})]
    found += [channel_warning(known, name) for name in sorted(set(channels))]
    return [warning for warning in found if warning is not None]


def missing_of(known: Catalogue, schedules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the handlers that no dispatcher has, each with the schedules that run it; none unless all dispatchers answered.

    Args:
        known: what they told.
        schedules: name and handler of each.
    """
    found: dict[str, list[str]] = {}
    for name, handler in sorted(schedules):
        if known.asked and not known.silent and handler not in known.handlers:
            found.setdefault(handler, []).append(name)
    return dict(sorted(found.items()))


def missing_words(missing: Mapping[str, list[str]]) -> list[str]:
    """Returns a sentence for each handler that no dispatcher has, with the schedules that run it.

    Args:
        missing: as `missing_of` gives it.
    """
    return [
        f"No dispatcher that runs has the handler {handler!r}, which {'these schedules run' if names[1:] else 'this schedule runs'}: "
        + ", ".join(names[:_MOST_NAMED])
        + (f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else "")
        + "."
        for handler, names in missing.items()
    ]


class HandlerWarnings:
    """Warns of handlers that no dispatcher has, and of channels that no task may name.

    Args:
        connection: to the deployment.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked: set[tuple[bool, str]] = set()

    def of(self, handlers: Iterable[str | None], channels: Iterable[str] = ()) -> list[str]:
        """Returns what to say of these names of handlers and channels; nothing where dispatchers cannot be asked."""
        return warnings_of(known_handlers(self._connection), handlers, channels)

    def of_schedules(self) -> list[str]:
        """Returns a sentence for each handler that stored schedules run and no dispatcher has."""
        entries = self._connection.plan.state().entries.values()
        return missing_words(missing_of(known_handlers(self._connection), ((one.name, one.handler) for one in entries)))

    def waiting(self) -> Mapping[tuple[str, str], str]:
        """Queue and handler of tasks that wait → why; see `Catalogue.waiting`.

        Raises:
            UnreachableError: Kafka does not answer, so that nobody can say who the dispatchers are.
        """
        reader, partitions = self._connection.log_reader, range(self._connection.rules.partitions)
        addresses = sorted({address for number in partitions if (address := reader.owner(number))})
        return gathered((address, ask(address, "handlers")) for address in addresses).waiting

    def log(self, handlers: Iterable[str | None], channels: Iterable[str] = ()) -> None:
        """Logs warnings, of each name once, from a thread of its own: who enqueues waits for no dispatcher."""
        new = {(False, name) for name in handlers if name}.union((True, name) for name in channels) - self._asked
        if new and len(self._asked) < _MOST:
            self._asked |= new
            threading.Thread(target=self._log, args=(new,), name="handler-warnings", daemon=True).start()

    def _log(self, names: set[tuple[bool, str]]) -> None:
        handlers, channels = ([name for is_channel, name in names if is_channel is wanted] for wanted in (False, True))
        try:
            for warning in self.of(handlers, channels):
                _log.warning(warning)
        except Exception:  # such as a connection that was closed meanwhile: nobody is warned then
            _log.debug("dispatchers cannot be asked for their handlers", exc_info=True)


def gathered(told: Iterable[tuple[str, dict[str, Any] | None]]) -> Catalogue:
    """Returns what some dispatchers tell, put together; any program may have said so, and what is no handler is passed over.

    Args:
        told: address → its answer; None: it gave none.
    """
    found: dict[str, tuple[KnownHandler, list[Holder]]] = {}
    differs, asked, silent = set(), [], []
    waiting: dict[tuple[str, str], str] = {}
    channels: list[dict[str, bool] | None] = []
    for address, answer in told:
        asked.append(address)
        if answer is None:
            silent.append(address)
            channels.append(None)
            continue
        channels.append(_channels(answer.get("channels")))
        for field, reason in (("waiting_for_workers", NO_WORKER), ("waiting", NO_HANDLER)):
            waiting |= dict.fromkeys(told_rows(answer.get(field), {"queue": str, "handler": str}), reason)
        since = answer.get("since")
        for one in _handlers(answer.get("handlers")):
            first, holders = found.setdefault(one.name, (one, []))
            holders.append(Holder(address.removeprefix("http://"), since[:40] if isinstance(since, str) else ""))
            if one != first:
                differs.add(one.name)
    agreed = channels[0] if channels and all(one == channels[0] for one in channels) else None
    return Catalogue(dict(sorted(found.items())), frozenset(differs), asked, silent, waiting, agreed)


def _channels(value: object) -> dict[str, bool] | None:
    """The channels that a dispatcher reports; None: it reports none that can be believed."""
    if not isinstance(value, dict) or len(value) > _MOST:
        return None
    return value if all(isinstance(is_open, bool) for is_open in value.values()) else None


def _handlers(value: object) -> list[KnownHandler]:
    found = []
    for one in value[:_MOST] if isinstance(value, list) else ():
        try:
            found.append(KnownHandler.model_validate(one))
        except ValidationError:
            continue
    return found
