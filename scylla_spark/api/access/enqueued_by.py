"""Signs into each task that a request enqueues the name of the token of the request.

The sender of the process signs each task on its way. So no route can forget it, neither those of copies nor those of bulks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final

from scylla_spark.core.records.command import Command
from scylla_spark.core.records.enqueued_by import signed
from scylla_spark.core.tasks.about import MAX_LABEL_CHARS

if TYPE_CHECKING:
    from scylla_spark.api.access.access import Caller
    from scylla_spark.client.connection import Connection

_by: Final[ContextVar[str]] = ContextVar("enqueued_by", default="")


def note_caller(caller: Caller | None) -> None:
    """Notes who makes the request that this task of the event loop and its threads serve; None, or no token: the name is not known."""
    _by.set("" if caller is None or not caller.id else label_of(caller.name) or caller.id)


def label_of(name: str) -> str:
    """The name of a token as a record can have it: printable, and not too long."""
    return "".join(char for char in name if char.isprintable())[:MAX_LABEL_CHARS].strip()


def signer(connection: Connection, secret: str) -> Callable[[Command], Command]:
    """Returns what signs the tasks of requests with tokens.

    Args:
        connection: to the deployment.
        secret: that its services share.
    """
    return partial(_signed, connection, secret)


def _signed(connection: Connection, secret: str, command: Command) -> Command:
    by = _by.get()
    return signed(command, by, secret, connection.rules.default_handler) if by else command
