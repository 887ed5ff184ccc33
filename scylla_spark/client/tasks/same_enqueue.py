"""Whether the task of an enqueue exists already or has ended: a client that had no answer sends the same again, also after the grace."""

from __future__ import annotations

import json
from typing import Final

from scylla_spark.client.connection import Connection
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.core.records.command import TOO_LATE, Command
from scylla_spark.errors import ArgumentError, NotFoundError, UnreachableError

_COMPARED: Final = ("key", "queue", "priority", "timeout_ms", "retry", "expires_ms", "tags", "unique")


def is_same(before: Command, wanted: Command, default_handler: str | None) -> bool:
    """Returns True if two enqueues of a key mean the same task; when and in which trace each was sent makes no difference.

    Args:
        before: the one that stands.
        wanted: the other.
        default_handler: of tasks that name none.
    """
    return (
        (before.handler or default_handler) == (wanted.handler or default_handler)
        and all(getattr(before, name) == getattr(wanted, name) for name in _COMPARED)
        and json.loads(before.payload) == json.loads(wanted.payload)
    )


def has_ended(connection: Connection, command: Command) -> bool:
    """Returns True if the task of a key has ended, so that another enqueue of the key would run nothing.

    A task whose time is yet to come is not looked up, because the look takes some milliseconds. If it was cancelled, it stays so.
    If the tables cannot be reached, the answer is False: an enqueue needs Kafka only.

    Args:
        connection: to the deployment, whose tables and logs are read.
        command: enqueues the key.
    """
    if command.key.time_us > command.enqueued_us:
        return False
    try:
        return TaskHandle(connection, command.key).has_ended()
    except UnreachableError:
        return False


def stands(connection: Connection, command: Command, refusal: ArgumentError) -> bool:
    """Returns True if a task that was refused as too late is one that was accepted before.

    Args:
        connection: to the deployment, whose tables and logs are asked.
        command: that was refused.
        refusal: why.
    """
    if refusal.fields.get("reason") != TOO_LATE:
        return False
    try:
        before = TaskHandle(connection, command.key).command()
    except NotFoundError:
        return False
    return is_same(before, command, connection.rules.default_handler)
