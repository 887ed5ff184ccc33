"""A handle on one task: how it stands, how it ended, and the wish to end it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from typing import Any, Final, Generic, NamedTuple

from typing_extensions import TypeVar

from scylla_spark.client.connection import Connection
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.client.tasks.enqueue_arguments import new_key
from scylla_spark.client.tasks.explain import explain, told_by_owner, with_word_of_owner
from scylla_spark.client.tasks.logs import LineFilter, TaskLine, followed, lines_of
from scylla_spark.client.tasks.outputs import TaskOutput, outputs_of
from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.records.fact import TOO_LATE, Fact
from scylla_spark.core.tasks.fold_commands import Folded
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.core.tasks.state import attempts_of, completion_of
from scylla_spark.core.tasks.status import DETAILS, Attempt, TaskStatus, attempt_of, status_of, task_failed
from scylla_spark.core.tasks.task import CANCELLED, SUCCEEDED
from scylla_spark.duration import duration_ms, duration_shown
from scylla_spark.errors import (
    ConflictError,
    NotFoundError,
    SchedulerError,
    UnreachableError,
    WaitTimeoutError,
)
from scylla_spark.handlers.value_type import ValueType
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.output_files import OutputFiles
from scylla_spark.io.kafka.command_sender import line_of
from scylla_spark.io.kafka.records_reader import LogReader

_ROUND_US: Final = 10_000_000  # a waiting client looks into the tables again this often
_AGAIN_US: Final = 500_000  # between two questions to a broker that does not answer
_CATCH_UP_US: Final = 10_000_000

R_co = TypeVar("R_co", default=Any, covariant=True)


class _Answered(NamedTuple):
    """What became of a cancel.

    Attributes:
        outcome: of the task; "" where it has not ended.
        by_request: whether this very request has ended it.
    """

    outcome: str
    by_request: bool


class TaskHandle(Generic[R_co]):
    """One task, by its key; making one asks nobody.

    Args:
        connection: to the deployment.
        key: identity of the task.
        returns: the type of its result; None: plain JSON.
        repeated: see the attribute.

    Attributes:
        key: identity of the task.
        repeated: the `enqueue` that made this handle sent nothing, because the task has ended or the same was enqueued before.
            The payload of the earlier enqueue counts, and `result` is that of its run.
    """

    def __init__(
        self, connection: Connection, key: TaskKey, returns: ValueType | None = None, *, repeated: bool = False
    ) -> None:
        self.key = key
        self.repeated = repeated
        self._returns = returns
        self._connection = connection
        self._asked_for_move = set[str]()  # ids of cancels that were sent for a move that is not finished

    def __repr__(self) -> str:
        return f"TaskHandle({self.key})"

    def __reduce__(self) -> tuple[type[TaskKey], tuple[object, ...]]:
        """Is pickled as its key, from which `Scheduler.task` makes a handle."""
        return TaskKey, tuple(self.key)

    def status(self, *, live: bool = True) -> TaskStatus:
        """Returns how the task stands now: tables and both logs.

        Args:
            live: of an attempt under way its dispatcher is asked, for a second at most, how far it is.

        Raises:
            NotFoundError: no such task was ever enqueued or cancelled, or it was purged.
        """
        folded, facts, fresh = self._look()
        status = status_of(self.key, folded, facts, now_us(), fresh=fresh, secret=self._connection.known_secret)
        if not live:
            return status
        return with_word_of_owner(status, lambda: self._connection.owner_address(self._partition))

    def attempts(self, newest: int | None = None, before: int | None = None) -> list[Attempt]:
        """The recorded attempts in order: one entry each, with how it ended, or how far it is by the word of its dispatcher.

        Args:
            newest: only so many, the last ones: of a task that is tried for ever there may be very many; None: all.
            before: only those with smaller numbers.
        """
        with self._log.watching(self.key):
            self._caught_up()
            facts = self._facts()
        attempts = [attempt_of(fact) for fact in attempts_of(self._stored(newest, before) + facts, newest, before)]
        return told_by_owner(attempts, self.key, lambda: self._connection.owner_address(self._partition))

    def result(self, timeout: object = None) -> R_co:
        """Waits for the end of the task and returns what its handler returned, as the type that the handler declares.

        Args:
            timeout: how long to wait (duration); None: for ever.

        Raises:
            ArgumentError: the handler returned, where it ran, what does not fit the type that it declares here.
            TaskFailed: it ended otherwise; the fields hold outcome, attempt, error_class, error_message and error_stack.
            WaitTimeoutError: it has not ended in time; it goes on.
            UnreachableError: Kafka does not answer at the begin, or when the time is over; meanwhile it is waited for.
        """
        with self._log.watching(self.key):
            ended = self._end(enqueue_arguments.deadline_of(timeout))
        if ended is None:
            raise not_ended(self.key, timeout)
        return self.value_of(ended)

    def value_of(self, ended: Fact) -> R_co:
        """Returns what the handler returned, as the type that it declares.

        Args:
            ended: the end of the task.

        Raises:
            TaskFailed: it ended otherwise than succeeded.
            ArgumentError: the value does not fit the type.
        """
        if ended.outcome != SUCCEEDED:
            raise _failed(self.key, ended)
        text = ended.result or "null"
        value: R_co = json.loads(text) if self._returns is None else self._returns.read(text)
        return value

    def cancel(self, timeout: object = "10s", *, running: bool = False, grace: object = "10s") -> str:
        """Ends the task without running it (again), and waits for the owner's answer. One that a worker has leased ends at once, too.

        Args:
            timeout: how long to wait for the answer (duration).
            running: end it also where a dispatcher runs it: it is asked to (`ctx.cancelled`; `async def` handlers get a
                CancelledError), and killed after the grace. Tasks of batch handlers are left alone all the same.
            grace: how long it may go on (duration); it is waited for that, too. A leased task has no grace.

        Returns:
            "cancelled", or "too_late" where it runs on in a dispatcher or has ended otherwise.

        Raises:
            WaitTimeoutError: no answer in time; the cancel stands and is honoured when a dispatcher runs. A broker that is started
                again is waited for within that time.
            UnreachableError: Kafka has not acknowledged the cancel within 15 s.
        """
        ended = self._ask_to_end(new_key(now_us()), timeout, max(1, duration_ms(grace)) if running else None)
        return CANCELLED if ended.outcome == CANCELLED else "too_late"

    def reschedule(
        self, at: datetime | str | None = None, *, delay: object = None, timeout: object = "10s"
    ) -> TaskHandle[R_co]:
        """Moves the task to another time: cancels it, and then enqueues a copy.

        The copy keeps lane and uniqueness key; its field `moveOf` names this task. Where its name has had that very time before, it is
        due some microseconds later, since what was cancelled or replaced would not run. Of several calls at once one moves the task.

        Args:
            at: the new time, as `enqueue` takes it.
            delay: or how long from now (duration).
            timeout: how long to wait for the cancel to be answered.

        Returns:
            A handle on the copy.

        Raises:
            ArgumentError: the copy would be refused; nothing was sent.
            ConflictError: it runs, has ended, or somebody else has cancelled or moved it; nothing was enqueued.
            NotFoundError: there is no such task.
            WaitTimeoutError: the cancel was not answered in time, and no copy was enqueued. The cancel stands; the same call
                on this handle finishes the move, also if the task was cancelled meanwhile.
            UnreachableError: Kafka does not answer. If the task was cancelled before, the message says so, and
                `fields["record"]` is the copy as a line for `task import`.
        """
        now = now_us()
        copy = self.copy_for_move(enqueue_arguments.moment(now, at, delay), now)
        status = self.status(live=False)
        if not self._is_cut_short(status):
            if not status.open:
                raise self._immovable()
            self._cancel_for_move(timeout)
        self._asked_for_move.clear()
        copy = enqueue_arguments.stamped_anew(copy, now_us())
        try:
            self._connection.send(copy)
        except UnreachableError as error:
            raise self._without_copy(copy, error) from error
        return TaskHandle(self._connection, copy.key, self._returns)

    def copy_for_move(self, time_us: int, now: int) -> Command:
        """The copy that moves the task to another time, under a key that nobody has used. It will not be refused.

        Args:
            time_us: the new time, microseconds since the epoch.
            now: when that was asked for.

        Raises:
            ArgumentError: it would be refused, or the task has that time.
            ConflictError: the keys of very many moments in a row were used.
            NotFoundError: there is no such task.
        """
        copy = enqueue_arguments.moved(self.command(), time_us, now)
        self._connection.sender.record(copy)
        return enqueue_arguments.under_unused_key(copy, lambda key: TaskHandle(self._connection, key).is_known())

    def is_known(self) -> bool:
        """Returns True if the key was ever enqueued or cancelled, and not purged."""
        try:
            self._look()
        except NotFoundError:
            return False
        return True

    def _cancel_for_move(self, timeout: object) -> None:
        request_id = new_key(now_us())
        self._asked_for_move.add(request_id)
        try:
            ended = self._ask_to_end(request_id, timeout)
        except WaitTimeoutError as error:
            raise WaitTimeoutError(
                f"{self.key} is not moved yet: {error.message}",
                hint="Its cancel stands. Call reschedule of this handle again when a dispatcher runs, which enqueues the copy; "
                "or, once it is cancelled, `task retry`.",
                key=str(self.key),
            ) from error
        if ended.outcome != CANCELLED or not ended.by_request:
            self._asked_for_move.clear()
            raise self._immovable()

    def _is_cut_short(self, status: TaskStatus) -> bool:
        """Returns True if a cancel that an earlier call sent has ended the task since, as far as is known, and no copy was enqueued."""
        if not self._asked_for_move or status.state != CANCELLED or status.attempts:
            return False
        with self._log.watching(self.key):
            self._caught_up()
            ended = completion_of(self._facts())
        return ended is None or ended.request_id is None or ended.request_id in self._asked_for_move

    def _immovable(self) -> ConflictError:
        return ConflictError(
            f"{self.key} cannot be moved: it runs, has ended, or was cancelled by another request.",
            hint="No copy was enqueued. `task retry` enqueues an ended task again.",
        )

    def _without_copy(self, copy: Command, error: UnreachableError) -> UnreachableError:
        return UnreachableError(
            f"{self.key} is cancelled, but its copy {copy.key} was not acknowledged: {error.message}",
            hint="`task show` of that key says whether it came. If it did not, `task import` takes `record` as a line, or `task retry` "
            "makes a copy that is due now.",
            key=str(copy.key),
            record=line_of(copy),
        )

    def _ask_to_end(self, request_id: str, timeout: object, grace_ms: int | None = None) -> _Answered:
        """Sends a cancel, and waits until it is answered or the task has ended.

        Raises:
            WaitTimeoutError: neither happened in time.
        """
        deadline = enqueue_arguments.deadline_of(timeout) + (grace_ms or 0) * 1000
        self._connection.request_cancel(self.key, grace_ms, request_id)

        def look() -> Fact | None:
            return completion_of(self._facts()) or self._log.answer(self._partition, request_id)

        why = ""
        try:
            with self._log.watching(self.key):
                found = self._awaited(look, deadline, has_answered=True)
        except UnreachableError as error:
            found, why = None, f" {error.message}"
        if found is None:
            raise WaitTimeoutError(
                f"No dispatcher answered the cancel of {self.key} within {duration_shown(timeout)}.{why}",
                hint="The cancel stands: the task ends as cancelled when a dispatcher runs, unless it has already ended.",
                key=str(self.key),
            )
        if found.outcome != TOO_LATE:
            return _Answered(found.outcome, by_request=found.request_id == request_id)
        stored = self._readers.completion(self.key)  # it runs, or it ended before what we read
        return _Answered(stored.outcome if stored is not None else "", by_request=False)

    def retry(self) -> TaskHandle[R_co]:
        """Enqueues a copy of the ended task, due now, under a new uniqueness key; its field `retryOf` names this one.

        Raises:
            ConflictError: the task has not ended; nothing was enqueued.
            NotFoundError: there is no such task.
        """
        folded, facts, fresh = self._look()
        status = status_of(self.key, folded, facts, now_us(), fresh=fresh)
        if folded.data is None or status.open:
            raise ConflictError(
                f"{self.key} has not ended: {status.state}.",
                hint="Cancel it first, or wait for it.",
                state=status.state,
            )
        copy = enqueue_arguments.retried(folded.data, now_us())
        self._connection.send(copy)
        return TaskHandle(self._connection, copy.key, self._returns)

    def logs(self, attempt: int | None = None, *, follow: bool = False) -> Iterator[TaskLine]:
        """Yields what the attempts of the task have printed and logged, line by line.

        Args:
            attempt: only this one; None: all.
            follow: also what comes from now on, until the task has ended.

        Raises:
            NotFoundError: there is no such task.
            UnreachableError: Kafka does not answer.
        """
        self.status(live=False)
        wanted = LineFilter(attempt)
        if not follow:
            return lines_of(self._connection, self.key, wanted)
        return chain.from_iterable(followed(self._connection, self.key, wanted, self.has_ended))

    def outputs(self, attempt: int | None = None) -> list[TaskOutput]:
        """The files that attempts of the task have left behind, in order; they are read from the folder `outputs.path`.

        Args:
            attempt: only of this one; None: of all.

        Raises:
            NotFoundError: there is no such task.
        """
        self.status(live=False)
        attempts = (
            self.attempts()
            if attempt is None
            else [one for one in self.attempts(1, attempt + 1) if one.number == attempt]
        )
        files = OutputFiles(self._connection.settings.outputs_path)
        return outputs_of(attempts, self.key, files, self._connection.rules.partitions)

    def explain(self) -> dict[str, Any]:
        """Returns why the task is not running: the owner's answer, or what tables and logs say.

        Returns:
            At least `state`, and `why` as a sentence for people.

        Raises:
            NotFoundError: there is no such task.
        """
        return explain(self.status(live=False), self._connection.owner_address(self._partition))

    # -- below: how the answers are found -------------------------------------------------------------------------------

    @property
    def _partition(self) -> int:
        return partition_of(self.key.ordering_id, self._connection.rules.partitions)

    @property
    def _readers(self) -> TableReader:
        return self._connection.readers

    @property
    def _log(self) -> LogReader:
        return self._connection.log_reader

    def command(self) -> Command:
        """The newest enqueue of the key; whether its name is unique is what the first one said.

        Raises:
            NotFoundError: there is none.
        """
        folded, _, _ = self._look()
        if folded.data is None or folded.first is None:
            raise NotFoundError(f"{self.key} was never enqueued, only cancelled.", hint="Enqueue it under another key.")
        return folded.data._replace(unique=folded.first.unique)

    def _look(self) -> tuple[Folded, list[Fact], bool]:
        """Everything known of the key, and whether the logs answered."""
        with self._log.watching(self.key):
            fresh = self._caught_up()
            facts = self._facts()  # log before tables: what ingest moves meanwhile is seen twice, never not at all
        commands = self._log.commands(self._partition, self.key) if fresh else []
        facts = self._stored(DETAILS) + facts
        row, folded = self._readers.task(self.key), Folded()
        for command in (
            [] if row is None else [row.command, *_cancels(row.command, cancelled=row.cancelled)]
        ) + commands:
            folded.add(command)
        if folded.data is None and folded.cancel is None and not facts:
            if not fresh:  # it may stand in the log only
                raise UnreachableError(
                    f"The tables do not hold {self.key}, and Kafka did not answer in time: it may be there all the same.",
                    hint="Ask again once Kafka answers; `scylla-spark doctor kafka` looks closer.",
                )
            raise NotFoundError(
                f"There is no task {self.key}.",
                hint="Check all three parts of the key; `scylla-spark task list` shows what is there.",
            )
        return folded, facts, fresh

    def _facts(self) -> list[Fact]:
        return self._log.facts(self._partition, self.key)

    def _stored(self, newest: int | None, before: int | None = None) -> list[Fact]:
        ended = self._readers.completion(self.key)
        return [*self._readers.attempts(self.key, newest, before), *([ended] if ended is not None else [])]

    def _caught_up(self) -> bool:
        try:
            self._log.catch_up(self._partition, boot_us() + _CATCH_UP_US)
        except UnreachableError:
            return False
        return True

    def has_ended(self) -> bool:
        """Returns True if the task has ended, by the logs if Kafka answers, and by the tables."""
        with self._log.watching(self.key):
            self._caught_up()
            ended = completion_of(self._facts())
        return ended is not None or self._readers.completion(self.key) is not None

    def _end(self, deadline: int) -> Fact | None:
        return self._awaited(lambda: completion_of(self._facts()), deadline, lambda: self._readers.completion(self.key))

    def _awaited(
        self,
        look: Callable[[], Fact | None],
        deadline: int,
        stored: Callable[[], Fact | None] = lambda: None,
        *,
        has_answered: bool = False,
    ) -> Fact | None:
        """Reads the log until `look` finds something in it, or `stored` in the tables; None if the deadline passes.

        Args:
            look: at what was read.
            deadline: boot clock, microseconds.
            stored: asks the tables, after each time the log was read to its end.
            has_answered: the broker has answered this call already. One that has, and is started again, is waited for.

        Raises:
            UnreachableError: Kafka does not answer at the begin, or when the time is over.
        """
        while (ended := look()) is None:
            try:
                self._log.catch_up(self._partition, boot_us() + _CATCH_UP_US)
                has_answered = True
                ended = look() or stored()
                if ended is not None:
                    break
                ended = self._log.until(self._partition, look, min(deadline, boot_us() + _ROUND_US))
            except UnreachableError:  # a broker that is started again is waited for
                if has_answered:
                    threading.Event().wait(max(0, min(_AGAIN_US, deadline - boot_us())) / 1e6)
                if not has_answered or boot_us() >= deadline:
                    raise
            if ended is not None or boot_us() >= deadline:
                break
        return ended


def _cancels(command: Command, *, cancelled: bool) -> list[Command]:
    return [command._replace(kind="cancel")] if cancelled and command.kind == ENQUEUE else []


def not_ended(key: TaskKey, timeout: object) -> WaitTimeoutError:
    """The error for a caller that has waited for the end of a task.

    Args:
        key: of the task.
        timeout: how long it was waited for.
    """
    return WaitTimeoutError(
        f"{key} has not ended within {duration_shown(timeout)}.",
        hint="It goes on; `.explain()` says why it waits.",
        key=str(key),
    )


def _failed(key: TaskKey, ended: Fact) -> SchedulerError:
    return task_failed(key, ended.outcome, ended.attempt, ended.failure)
