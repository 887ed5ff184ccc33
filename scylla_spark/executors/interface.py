"""The one interface of everything that runs tasks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import Invocation, Outcome
from scylla_spark.handlers.description import HandlerInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.config.settings import Settings

Sink = Callable[[Sequence[Outcome]], None]


class LogTerms(NamedTuple):
    """How much is kept of what handlers write, in bytes.

    Attributes:
        head: of the beginning of an attempt.
        tail: of its end, beyond that.
        line: of a line.
    """

    head: int
    tail: int
    line: int

    @property
    def most(self) -> int:
        """Of an attempt in all."""
        return self.head + self.tail + self.line


class LogKeeper(Protocol):
    """What reads the lines that children write; neither call waits for anything."""

    def open(self, child: Hashable) -> int:
        """A descriptor of the memory for the lines of a child (see `LogMemory`), which the caller closes."""

    def close(self, child: Hashable) -> None:
        """The child is dead: what it has left is read, and then let go of."""


@runtime_checkable
class HearsLines(Protocol):
    """A keeper to which lines may come from children on other machines."""

    def terms(self) -> LogTerms:
        """Returns how much is kept."""

    def hear(self, children: Sequence[Sequence[bytes]]) -> None:
        """Takes what children have written, without waiting for anything; more than may wait is dropped, and counted.

        Args:
            children: of each of them the frames that its memory held, in order (see `handlers.log_writer`).
        """


class Executor(Protocol):
    """Runs invocations and reports each exactly once to the sink.

    Guarantees: `submit` never blocks and never raises for a bad task; every invocation ends in exactly one Outcome
    (after a crash of the child that ran it too); no outcome after `stop` has returned.
    """

    def start(self, sink: Sink) -> None:
        """Begins to accept work; `sink` is called from threads of the executor."""

    def handlers(self) -> dict[str, HandlerInfo]:
        """Every handler it can run; after `start`."""

    def rooms(self) -> Mapping[str, int]:
        """Returns how many more invocations it would like now, by each executor name that it serves; 0 means: hold back."""

    def running(self) -> Mapping[int, int]:
        """Returns which invocations a child has begun, and when (id → microseconds since the epoch), until they are reported.

        Of a batch call all tasks are named, with one start. What waits for a child, or in one, is not named, and nothing that
        is named comes back as not_started: only this is a start. It never waits for user code or imports.
        """

    def notes(self) -> Mapping[int, WorkNote]:
        """Returns what invocations that run say of their work, by id; of those that have said something since the last time."""

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes invocations; those of one lane run in the order given."""

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Ends these invocations, running or not; they are reported as timed_out or not_started.

        Args:
            ids: of which nothing is done where they are over.
            grace_ms: how long those that run are only asked to end (`TaskContext.cancelled`), where the executor can.
        """

    def stop(self, *, drain_s: float) -> None:
        """Takes no more work, lets what runs finish for `drain_s` seconds, then ends it and all children."""


@runtime_checkable
class OnSession(Protocol):
    """An executor that runs tasks with Spark: it has room once it was started and attached, in either order."""

    def attach(self, spark: SparkSession) -> None:
        """Gives it the session to run on."""


@runtime_checkable
class KeepsLogs(Protocol):
    """An executor that can hand on what handlers write."""

    def keep_logs(self, keeper: LogKeeper) -> None:
        """Hands lines to a keeper; before `start`."""


@runtime_checkable
class KeepsOutputs(Protocol):
    """An executor whose handlers can leave files behind."""

    def keep_outputs(self, terms: OutputTerms) -> None:
        """Says where; before `start`."""


class Shortage(NamedTuple):
    """An executor has no worker that could run its tasks, so that they wait.

    Attributes:
        why: as a sentence.
        since_us: boot clock since when a worker has been wanted in vain, microseconds; 0: none has been.
        held: ids of attempts that do not wait: workers have them that finish what has begun and take no more.
        handlers: only tasks of these handlers wait, because no worker has them; None: all tasks.
    """

    why: str
    since_us: int
    held: frozenset[int] = frozenset()
    handlers: frozenset[str] | None = None

    def covers(self, handler: str) -> bool:
        """Returns True if tasks of a handler wait."""
        return self.handlers is None or handler in self.handlers


class SparkFigures(NamedTuple):
    """Counts of the Spark workers of a dispatcher.

    Attributes:
        states: `running`, `starting` and `draining` → workers.
        without_core: jobs of workers that have waited for a free core of an executor for more than 10 s.
        starts: jobs of workers that were started.
        ends: cause → jobs of workers that have ended.
        events: what happened on the connections of workers → how often.
    """

    states: Mapping[str, int]
    without_core: int
    starts: int
    ends: Mapping[str, int]
    events: Mapping[str, int]


@runtime_checkable
class OnWorkers(Protocol):
    """An executor whose tasks run in Spark workers, of which there may be none."""

    def shortage(self) -> Shortage | None:
        """Returns why none of its tasks can start now; None: a worker is there."""

    def figures(self) -> SparkFigures:
        """Counts of its workers."""

    def workers(self) -> list[dict[str, Any]]:
        """Its workers, as fields of `SparkWorkerView` of the API."""

    def drain(self, worker_id: str) -> bool:
        """Gives a worker no more work, so that it ends; False: there is none of that id."""


class Kind(NamedTuple):
    """What is known of an executor before it is made.

    Attributes:
        make: from the settings to an executor that is not started.
        wanted: whether the settings ask for it.
        turned_on_by: what to set where they do not; the end of a sentence.
        needs_session: whether it waits for a session of Spark in this process, as an `OnSession`.
    """

    make: Callable[[Settings], Executor]
    wanted: Callable[[Settings], bool]
    turned_on_by: str
    needs_session: Callable[[Settings], bool]
