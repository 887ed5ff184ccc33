"""What a handler looks like from outside: where it is written, what it says of itself, and the JSON schemas of its payload and its result.

It is found where handlers are imported, and travels with what the dispatcher knows of them, so that forms and catalogues can be made
without importing anything.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.core.tasks.task import Retry
from scylla_spark.handlers.isolation import Isolation

if TYPE_CHECKING:
    from collections.abc import Callable

    from scylla_spark.handlers.signature import Signature

_MOST_NAME: Final = 300
_MOST_ABOUT: Final = 300
MOST_SCHEMA: Final = 12_000  # characters; twice that, with quotes escaped, fits into a message of a forkserver


LOCAL: Final = "local"
SPARK: Final = "spark"
CONNECT: Final = "connect"
AUTO: Final = "auto"
"""Stands in `HandlerInfo.runs_on` until the settings of a dispatcher replace it by `local` or `spark`."""
EXECUTOR_NAMES: Final = (LOCAL, SPARK, CONNECT)
"""What a handler may choose by `runs_on`; `services.dispatch.executor_catalog` names the module of each."""


class HandlerForm(NamedTuple):
    """What a handler looks like from outside.

    Attributes:
        module: in which its function is written.
        function: its name there.
        about: the first line of its docstring; empty: it has none.
        payload: JSON text of the schema of its payload; None: it takes any JSON object.
        result: likewise of what it returns; None: any JSON.
        digest: of its definition, decorator included: processes whose digests differ run different versions of it. Empty: not known.
    """

    module: str = ""
    function: str = ""
    about: str = ""
    payload: str | None = None
    result: str | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """What the dispatcher knows of a handler without importing it.

    Attributes:
        name: registered name.
        runs_on: name of its executor (see `services.dispatch.executor_catalog`), or `AUTO`.
        max_batch: None for one task a call; else the most tasks one call takes (a batch handler).
        timeout_ms: None means the deployment's default.
        retry: None means the deployment's default.
        concurrency: None for one call at a time in a child; else (an `async def` handler) how many share the loop of its child.
        isolation: what children of its own kind are kept to; None: it runs in those that all share.
        form: what it looks like from outside; None: nobody has told.
        rate_keys: of the rate limits that its tasks share.
    """

    name: str
    runs_on: str = LOCAL
    max_batch: int | None = None
    timeout_ms: int | None = None
    retry: Retry | None = None
    concurrency: int | None = None
    isolation: Isolation | None = None
    form: HandlerForm | None = None
    rate_keys: tuple[str, ...] = ()

    @property
    def executor(self) -> str:
        """The name of the executor that its tasks are handed to: each `async def` or isolated handler has one of its own."""
        if self.isolation is not None:
            return f"own/{self.name}"
        return self.runs_on if self.concurrency is None else f"async/{self.name}"

    @property
    def digest(self) -> str:
        """The digest of its definition; empty: not known."""
        return "" if self.form is None else self.form.digest


def form_of(function: Callable[..., Any], said: Signature) -> HandlerForm:
    """Returns what a registered function looks like.

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
        _digest(function),
    )  # fmt: skip


def _digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the source of a function, 32 hexadecimal digits; empty where there is no source."""
    try:
        definition = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(definition.encode(errors="surrogateescape")).hexdigest()[:32]


def heard_form(told: Any) -> HandlerForm:
    """The form that a message tells of.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(told, list) or len(told) != len(HandlerForm._fields):
        raise ValueError("a form of a handler has six parts")
    texts, schemas = [*told[:3], told[5]], told[3:5]
    if not all(isinstance(one, str) for one in texts) or not all(one is None or _is_schema(one) for one in schemas):
        raise ValueError("a form of a handler consists of texts and schemas")
    return HandlerForm(*told)


def _is_schema(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
