"""Finds the one task that a name means: the only open task of the name, or else the only one that has ended.

Duplicates never ran, so an ended duplicate counts only if the name has no other task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from scylla_spark.client.connection import Connection
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.clock import now_us
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.records.command import ENQUEUE
from scylla_spark.core.tasks.filter import OneOf, TaskFilter
from scylla_spark.core.tasks.key import Name, TaskKey, partition_of
from scylla_spark.core.tasks.status import TaskStatus
from scylla_spark.core.tasks.task import DUPLICATE
from scylla_spark.errors import ConflictError, NotFoundError
from scylla_spark.task_states import ENDED, OPEN

if TYPE_CHECKING:
    from scylla_spark.io.delta.task_pages import TaskPages

AMBIGUOUS: Final = "name_not_unique"
MOST_SHOWN: Final = 20  # tasks of a name that several have, in the error


def key_of_name(connection: Connection, pages: TaskPages, name: Name, own: QueueBounds = ALL_QUEUES) -> TaskKey:
    """Returns the key of the task that a name means. Tasks in queues outside `own` do not exist.

    Args:
        connection: to the deployment.
        pages: lists of its tasks.
        name: lane and uniqueness key.
        own: queues that the caller may see.

    Raises:
        NotFoundError: no task has the name.
        ConflictError: several do; `fields["reason"]` is "name_not_unique", and `fields["tasks"]` has the ids of the newest 20.
        UnreachableError: Kafka does not answer, so newer tasks may exist.
    """
    logged = connection.log_reader.commands_of_lanes(
        partition_of(name.lane, connection.rules.partitions), {name.lane.encode()}
    )  # the log before the tables: what ingest moves meanwhile is seen twice, and never missed
    named = (one for one in logged if one.kind == ENQUEUE and one.key[1:] == name)
    beyond = {one.key for one in named if own.has(one.queue)}  # what others enqueue must not slow a caller down
    open_keys, ended = list[TaskKey](), dict[TaskKey, str]()
    for one in _statuses(connection, beyond | _stored(pages, name, own, OPEN)):
        if own.has(one.queue) and one.open:
            open_keys.append(one.key)
        elif own.has(one.queue):
            ended[one.key] = one.state
        if len(open_keys) > MOST_SHOWN:
            break
    if open_keys:
        return _only(open_keys, name)
    ran = {key for key, state in ended.items() if state != DUPLICATE}
    ran |= _stored(pages, name, own, tuple(state for state in ENDED if state != DUPLICATE))
    return _only(ran or ended.keys() | _stored(pages, name, own, (DUPLICATE,)), name)


def _stored(pages: TaskPages, name: Name, own: QueueBounds, states: tuple[str, ...]) -> set[TaskKey]:
    """The newest tasks of a name that the tables show in some states."""
    terms = OneOf("lane", (name.lane,)), OneOf("key", (name.unique,)), OneOf("state", states)
    rows = pages.newest_page(TaskFilter(terms, queues=own), MOST_SHOWN + 1, now=now_us())
    return {TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]) for row in rows}


def _statuses(connection: Connection, keys: set[TaskKey]) -> Iterator[TaskStatus]:
    for key in sorted(keys, reverse=True):
        try:
            yield TaskHandle(connection, key).status(live=False)
        except NotFoundError:  # it was purged meanwhile
            continue


def _only(keys: Collection[TaskKey], name: Name) -> TaskKey:
    if not keys:
        raise NotFoundError(
            f"No task has the name {name}.",
            hint="A name is ordering id and uniqueness key; without an ordering id both are the same.",
        )
    newest = sorted(keys, reverse=True)
    if len(newest) > 1:
        shown = [str(key) for key in newest[:MOST_SHOWN]]
        more = ", and more" if len(newest) > MOST_SHOWN else ""
        raise ConflictError(
            f"Several tasks have the name {name}: {', '.join(shown)}{more}.",
            hint="Use the id of one of them.",
            reason=AMBIGUOUS,
            tasks=shown,
        )
    return newest[0]
