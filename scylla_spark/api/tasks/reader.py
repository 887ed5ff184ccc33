"""The status of single tasks, from the tables and from the logs beyond them."""

from __future__ import annotations

from scylla_spark.api.follow.records_tail import LogTail
from scylla_spark.client.connection import Connection
from scylla_spark.client.tasks.explain import told_by_owner, with_word_of_owner
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.fold_commands import Folded
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.core.tasks.state import attempts_of
from scylla_spark.core.tasks.status import DETAILS, Attempt, TaskStatus, attempt_of, status_of
from scylla_spark.errors import NotFoundError
from scylla_spark.io.kafka.command_sender import Place

_OWN_S = 1.0
_OWNER_US = 10_000_000


class TaskReader:
    """Reads single tasks; thread safe. Where the tail cannot say, a handle asks the broker.

    Args:
        connection: to the deployment.
        tail: of both logs.
    """

    def __init__(self, connection: Connection, tail: LogTail) -> None:
        self._connection = connection
        self._tail = tail
        self._own: dict[int, int] = {}  # partition → the last record that was sent from here
        self._owners: dict[int, tuple[str, int]] = {}  # partition → address, and until when it is believed

    def sent(self, place: Place) -> None:
        """Remembers where a command of ours stands: whoever asks afterwards sees it."""
        self._own[place.partition] = max(self._own.get(place.partition, -1), place.offset)

    def partition(self, key: TaskKey) -> int:
        """Returns the partition of a key."""
        return partition_of(key.ordering_id, self._connection.rules.partitions)

    def status(self, key: TaskKey, *, live: bool = False) -> TaskStatus:
        """Returns the status of a task.

        Args:
            key: of the task.
            live: of an attempt under way its dispatcher is asked how far it is; that may take a second.

        Raises:
            NotFoundError: there is no such task.
        """
        found = self._look(key)
        if found is None:
            return TaskHandle(self._connection, key).status(live=live)
        status = status_of(key, *found, now_us(), secret=self._connection.known_secret)
        return with_word_of_owner(status, lambda: self._owner(key)) if live else status

    def ended(self, key: TaskKey, now: int) -> TaskStatus | None:
        """Returns the status of a task that has ended. None: it has not ended, or that is not known here.

        What is yet to come can have been cancelled long ago: there the tables, which cost some milliseconds, are not asked.

        Args:
            key: of the task.
            now: microseconds since the epoch.
        """
        known = self._tail.ended(key, self.partition(key)) is not None
        if not known and (key.time_us > now or self._connection.readers.completion(key) is None):
            return None
        try:
            return self.status(key)
        except NotFoundError:  # it was purged a moment ago
            return None

    def command(self, key: TaskKey) -> Command:
        """The newest enqueue of a key; whether its name is unique is what the first one said.

        Raises:
            NotFoundError: there is none.
        """
        found = self._look(key)
        if found is None or found[0].data is None or found[0].first is None:
            return TaskHandle(self._connection, key).command()
        return found[0].data._replace(unique=found[0].first.unique)

    def attempts(self, key: TaskKey, newest: int, before: int | None = None) -> list[Attempt]:
        """The last recorded attempts, in order.

        Args:
            key: of the task.
            newest: how many, at most.
            before: only those with smaller numbers.

        Raises:
            NotFoundError: there is no such task.
        """
        found = self._look(key, newest, before)
        if found is None:
            handle = TaskHandle(self._connection, key)
            handle.status(live=False)
            return handle.attempts(newest, before)
        chosen = [attempt_of(fact) for fact in attempts_of(found[1], newest, before)]
        return told_by_owner(chosen, key, lambda: self._owner(key))

    def _owner(self, key: TaskKey) -> str:
        """Returns the address of its dispatcher. It is looked up seldom, because calls of workers wait for the same look-up."""
        partition = self.partition(key)
        address, until_us = self._owners.get(partition, ("", 0))
        if boot_us() > until_us:
            address = self._connection.owner_address(partition)
            self._owners[partition] = address, boot_us() + _OWNER_US
        return self._tail.owner(partition) or address

    def _look(self, key: TaskKey, newest: int = DETAILS, before: int | None = None) -> tuple[Folded, list[Fact]] | None:
        """Everything known of a key, but for attempts of long ago; None where the tail does not know enough.

        Args:
            key: of the task.
            newest: of so many attempts of the tables, the last ones.
            before: of those with smaller numbers.
        """
        partition = self.partition(key)
        own = self._own.get(partition)
        if own is not None and not self._tail.passes(partition, own, _OWN_S):
            return None
        beyond = self._tail.beyond(key, partition, self._tail.marks().get(partition, Mark()))
        if beyond is None:
            return None
        # logs before tables: what ingest moves meanwhile is seen twice, never not at all
        readers, folded = self._connection.readers, Folded()
        ended, row = readers.completion(key), readers.task(key)
        facts = [*readers.attempts(key, newest, before), *([ended] if ended is not None else []), *beyond.facts]
        stored = [] if row is None else [row.command, *_cancel(row.command, cancelled=row.cancelled)]
        for command in [*stored, *beyond.commands]:
            folded.add(command)
        if folded.data is None and folded.cancel is None and not facts:
            return None  # perhaps somebody sent it a moment ago: the broker is asked
        return folded, facts


def _cancel(command: Command, *, cancelled: bool) -> list[Command]:
    return [command._replace(kind=CANCEL)] if cancelled and command.kind == ENQUEUE else []
