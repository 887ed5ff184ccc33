"""Sending tasks whose uniqueness key nobody else in their lane may bear: a key that is held is refused, instead of a second task.

The key of a task has its time in it, so the same uniqueness key at another time is another task. Who wants one at a time, and wants
to be told at once, asks here: the log and the tables are looked at before the send. Within a process that is exact. Of two processes
that send at the same moment both may be told that the key was free; what they send says `unique`, so the owner of the partition lets
the first run and ends the other as a duplicate.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.client.connection import Connection
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.client.tasks.enqueue_result import EnqueueResult, Refused
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.tasks.key import Name, TaskKey, name_of, partition_of
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from scylla_spark.io.delta.rows import IDENTITY, in_us
from scylla_spark.io.kafka.command_sender import Place
from scylla_spark.schemas import TASKS
from scylla_spark.task_states import OPEN

if TYPE_CHECKING:
    import polars as pl

KEY_EXISTS: Final = "key_exists"


class UniqueKeys:
    """Sends tasks whose keys are free; thread safe.

    Args:
        connection: to the deployment.
        is_reusable: whether keys of a queue are free again once their task has ended.
    """

    def __init__(self, connection: Connection, is_reusable: Callable[[str], bool]) -> None:
        self._connection = connection
        self._is_reusable = is_reusable
        self._lock = threading.Lock()

    def send(self, command: Command) -> Place:
        """Sends one task.

        Args:
            command: it enqueues a task.

        Raises:
            ConflictError: its key is held; `fields["reason"]` is "key_exists", and `fields["holder"]` who has it.
            UnreachableError: Kafka does not answer; if it was asked to store the task, that may exist all the same.
        """
        with self._lock:
            (holder,) = self._holders([command])
            if holder is not None:
                raise key_exists(command, holder)
            return self._connection.send(command._replace(unique=True))

    def send_all(self, commands: Sequence[Command]) -> tuple[dict[int, int], dict[int, ConflictError]]:
        """Sends those whose keys are free; of several with one name the first.

        Args:
            commands: each enqueues a task.

        Returns:
            Partition → offset behind the last that was sent; and place among the commands → that its key is held.

        Raises:
            UnreachableError: as in `send`.
        """
        with self._lock:
            sender, seen = self._connection.sender, dict[Name, TaskKey]()
            futures, held = [], dict[int, ConflictError]()
            for index, (command, known) in enumerate(zip(commands, self._holders(commands), strict=True)):
                holder = known or seen.setdefault(name_of(command.key), command.key)
                if holder is command.key:
                    futures.append(sender.begin(sender.record(command._replace(unique=True))))
                else:
                    held[index] = key_exists(command, holder)
            return sender.finish(futures), held  # within the lock, so that whoever looks next sees them

    def _holders(self, commands: Sequence[Command]) -> list[TaskKey | None]:
        """Returns who holds the key of each; None: nobody."""
        known = self._known({name_of(one.key) for one in commands})
        reusable = {queue: self._is_reusable(queue) for queue in {one.queue for one in commands if known}}

        def holder(one: Command) -> TaskKey | None:
            keys = sorted(known.get(name_of(one.key), ()), reverse=True)
            held = (key for key in keys if key == one.key or not reusable[one.queue] or self._is_open(key))
            return next(held, None)

        return [holder(one) for one in commands]

    def _known(self, names: set[Name]) -> Mapping[Name, set[TaskKey]]:
        """All tasks of these names, by the log beyond the tables and then by the tables."""
        shares: dict[int, set[Name]] = defaultdict(set)
        partitions = self._connection.rules.partitions
        for name in names:
            shares[partition_of(name.lane, partitions)].add(name)
        found: dict[Name, set[TaskKey]] = defaultdict(set)
        for partition, some in shares.items():
            lanes = {name.lane.encode() for name in some}
            logged = self._connection.log_reader.commands_of_lanes(partition, lanes)
            keys = (one.key for one in logged if one.kind == ENQUEUE)
            for key in (*keys, *self._stored(partition, some)):
                if name_of(key) in some:
                    found[name_of(key)].add(key)
        return found

    def _stored(self, partition: int, names: set[Name]) -> Iterator[TaskKey]:
        import polars as pl

        readers, own = self._connection.readers, [("partition_id", "=", partition)]
        wanted = pl.LazyFrame(list(names), schema=dict.fromkeys(IDENTITY[1:], pl.String), orient="row")
        parts: list[pl.LazyFrame] = [readers.deferred([], [own]), readers.frame(TASKS, [own])]
        for rows in parts:  # what is folded meanwhile is seen twice, never not at all
            known = rows.filter(pl.col("data_offset").is_not_null()).join(wanted, on=IDENTITY[1:], how="semi")
            yield from (TaskKey(*row) for row in in_us(known.select(*IDENTITY)).collect().iter_rows())

    def _is_open(self, key: TaskKey) -> bool:
        try:
            return TaskHandle(self._connection, key).status(live=False).state in OPEN
        except NotFoundError:
            return False  # purged meanwhile


def sent_if_free(
    connection: Connection, keys: UniqueKeys, tasks: Iterable[Mapping[str, Any]], now: int
) -> EnqueueResult:
    """Returns what becomes of tasks that are given as `Scheduler.enqueue_many` takes them, each with its `uniqueness_key`.

    Args:
        connection: to the deployment.
        keys: of the same.
        tasks: keyword arguments of `Scheduler.enqueue`.
        now: microseconds since the epoch.

    Raises:
        UnreachableError: some were not acknowledged; those that were, stand.
    """
    refused: list[Refused] = []
    commands: dict[int, Command] = {}
    for index, task in enumerate(tasks):
        try:
            command = enqueue_arguments.command(now, **enqueue_arguments.keywords(task))
            connection.sender.record(command)
            check_named(command, task.get("uniqueness_key"))
        except ArgumentError as error:
            refused.append(Refused(index, str(error.fields.get("reason", "wrong_value")), str(error)))
        else:
            commands[index] = command
    ends, held = keys.send_all(list(commands.values()))
    places = list(commands)
    refused += [Refused(places[number], KEY_EXISTS, str(error)) for number, error in held.items()]
    refused.sort(key=lambda one: one.index)
    sent = tuple(command.key for number, command in enumerate(commands.values()) if number not in held)
    return EnqueueResult(connection, len(sent), ends, tuple(refused), keys=sent)


def check_named(command: Command, uniqueness_key: object) -> None:
    """Refuses to look for a key that was made up a moment ago.

    Raises:
        ArgumentError: none was given.
    """
    if uniqueness_key is None:
        raise ArgumentError(
            "A unique task needs a uniqueness_key.",
            hint="Without one a new key is made up, which nobody has.",
            reason="missing_field",
            key=str(command.key),
        )


def key_exists(command: Command, holder: TaskKey) -> ConflictError:
    """Returns what somebody is told whose key is held.

    Args:
        command: of theirs.
        holder: the task that has the key.
    """
    return ConflictError(
        f"The key {command.key.uniqueness_key!r} exists in the lane {command.key.ordering_id!r}: {holder} has it.",
        hint="It is free once that has ended, if the queue says key_reuse = when_done.",
        reason=KEY_EXISTS,
        holder=str(holder),
    )
