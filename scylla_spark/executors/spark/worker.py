"""What a Spark Python worker does with a chunk of invocations: run it in child processes, give outcomes back as rows.

Rows travel as Arrow, in the columns of `INPUT` (one invocation) and `OUTPUT` (one outcome, as in
`core.tasks.task.Outcome`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scylla_spark.clock import boot_us, both_us, now_us
from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.follow_up import FollowUp
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED, Failure, Invocation, LastError, Outcome
from scylla_spark.defaults import LONGEST_RUN_S
from scylla_spark.errors import SchedulerError
from scylla_spark.executors.interface import LogTerms
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.local.report import read_follow_up
from scylla_spark.executors.spark.chunk_lines import ChunkLines
from scylla_spark.executors.spark.start_signals import Address, Teller
from scylla_spark.executors.start_deadline import StartLimit, this_clock
from scylla_spark.handlers.messages import FOLLOW_UP

INPUT: Final = (
    "id bigint, time_us bigint, ordering_id string, uniqueness_key string, attempt int, epoch bigint, handler string, "
    "queue string, payload string, priority int, planned_us bigint, timeout_ms bigint, start_by_us bigint, "
    "checkpoint string, error_kind string, error_message string, tags array<string>, traceparent string"
)
OUTPUT: Final = (
    "id bigint, outcome string, started_us bigint, finished_us bigint, result string, "
    "kind string, message string, stack string, after_ms bigint, "
    "progress double, checkpoint string, follow_ups string, outputs string, progress_note string, "
    "lines string"
)
_LAST_ERROR: Final = Invocation._fields.index("last_error")  # a place among fields; two columns
LOST: Final = "executor_lost"
BROKEN: Final = "executor_broken"
_TELL_EVERY_S: Final = 0.2
_GATHER_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a Python worker runs handlers.

    Attributes:
        modules: handler modules; they must be importable (or exist as files) where executors run.
        children: most child processes of one Python worker.
        kill_grace_s: from SIGTERM to SIGKILL after a timeout.
        pass_environment: further environment variables that handlers get (see `environment`).
        driver: where to tell what has begun; None: nowhere.
        longest_s: how long a call may run at most if it asks for longer than its timeout.
        outputs: where files are kept that attempts leave behind; None: nowhere.
        logs: how much is kept of what handlers write; None: nothing.
    """

    modules: tuple[str, ...]
    children: int
    kill_grace_s: float
    pass_environment: tuple[str, ...] = ()
    driver: Address | None = None
    longest_s: float = LONGEST_RUN_S
    outputs: OutputTerms | None = None
    logs: LogTerms | None = None


class _Workshop:
    """A local pool that lives as long as its Python worker, and runs one chunk at a time."""

    def __init__(self, config: WorkerConfig) -> None:
        self._news = threading.Condition()
        self._outcomes: list[Outcome] = []
        self.lines = None if config.logs is None else ChunkLines(config.logs)
        self._pool = LocalPool(
            config.modules,
            min_children=1,
            max_children=config.children,
            kill_grace_s=config.kill_grace_s,
            pass_environment=config.pass_environment,
            longest_s=config.longest_s,
        )
        if config.outputs is not None:
            self._pool.keep_outputs(config.outputs)
        if self.lines is not None:
            self._pool.keep_logs(self.lines)
        self._teller = None if config.driver is None else Teller(config.driver)
        self._pool.start(self._sink)

    def run(self, chunk: Sequence[Invocation]) -> list[Outcome]:
        self._outcomes = []
        self._pool.submit(chunk)
        told_us = boot_us()
        while not self._ended(len(chunk)):
            if self.lines is not None:
                self.lines.gather()
            if boot_us() - told_us >= _TELL_EVERY_S * 1e6:
                told_us = boot_us()
                self._tell()
        return self._outcomes

    def close(self) -> None:
        """Ends the handlers' processes."""
        self._pool.stop(drain_s=0)

    def _tell(self) -> None:
        running = self._pool.running()
        if running and self._teller is not None:
            self._teller.tell(running)

    def _ended(self, count: int) -> bool:
        pause_s = _TELL_EVERY_S if self.lines is None else _GATHER_EVERY_S
        with self._news:
            return self._news.wait_for(lambda: len(self._outcomes) == count, pause_s)

    def _sink(self, outcomes: Sequence[Outcome]) -> None:
        with self._news:
            self._outcomes += outcomes
            self._news.notify_all()


_workshops: dict[WorkerConfig, _Workshop] = {}


def run_chunk(batches: Iterable[Any], config: WorkerConfig, departure: StartLimit) -> Iterator[Any]:
    """For `DataFrame.mapInArrow`. It never raises because of user code, and runs nothing that Spark tries again.

    What may not start any more when it arrives, or when its turn comes, is handed back as not started.

    Args:
        batches: Arrow, with the columns of `INPUT`.
        config: of the workers.
        departure: both clocks of the driver when it submitted the job.
    """
    from pyspark import TaskContext

    here = StartLimit(this_clock(), *both_us())
    chunk = [_invocation(row, departure, here) for batch in batches for row in batch.to_pylist()]
    context = TaskContext.get()
    if not chunk:
        return
    if context is not None and context.attemptNumber() > 0:
        # the first try may have run user code: whether it may run again is for the retry policy of the task to say
        yield _rows(lost(chunk, "The Spark executor was lost while it had this task."))
        return
    if why := why_broken(config):
        yield _rows([Outcome(item.id, NOT_STARTED, failure=Failure(BROKEN, why)) for item in chunk])
        return
    workshop = _workshops[config]
    yield _rows(workshop.run(chunk), None if workshop.lines is None else workshop.lines.take())


def why_broken(config: WorkerConfig) -> str:
    """Loads the handlers here, once; returns why they cannot be loaded, or "" if they can."""
    try:
        if config not in _workshops:
            _workshops[config] = _Workshop(config)
    except SchedulerError as error:
        return error.message.strip().splitlines()[-1].strip()  # above it is the stack of an import
    return ""


def lost(chunk: Iterable[Invocation], message: str, kind: str = LOST) -> list[Outcome]:
    """Failed outcomes for invocations that nobody can tell more about.

    Args:
        chunk: those invocations.
        message: in words, for all of them.
        kind: code of the failure.
    """
    now = now_us()
    return [Outcome(item.id, FAILED, now, now, failure=Failure(kind, message)) for item in chunk]


def to_table(chunk: Sequence[Invocation]) -> Any:
    """Invocations as a pyarrow.Table of the columns `INPUT`."""
    import pyarrow as pa

    rows = [
        (i.id, *i.key, *i[2:_LAST_ERROR], *(i.last_error or (None, None)), list(i.tags), i.traceparent) for i in chunk
    ]
    columns = list(zip(*rows, strict=True))
    schema = _schema(INPUT)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def outcome(row: Any) -> Outcome:
    """An outcome from a row (any mapping) of the columns `OUTPUT`."""
    failure = None if row["kind"] is None else Failure(row["kind"], row["message"], row["stack"])
    note = WorkNote(
        progress=row["progress"],
        checkpoint=row["checkpoint"],
        outputs=row["outputs"],
        progress_note=row["progress_note"],
    )
    return Outcome(
        row["id"],
        row["outcome"],
        row["started_us"],
        row["finished_us"],
        row["result"],
        failure,
        row["after_ms"],
        work=None if note == WorkNote() else note,
        follow_ups=_follow_ups(row["follow_ups"]),
    )


def _follow_ups(text: str | None) -> tuple[FollowUp, ...]:
    rows = fast_json.load(text.encode()) if text is not None else []
    return tuple(read_follow_up([FOLLOW_UP, 1, *row])[1] for row in rows)


def _invocation(row: dict[str, Any], departure: StartLimit, here: StartLimit) -> Invocation:
    row["start_by_us"] = departure.limit_here(row["start_by_us"], here)
    key = TaskKey(row.pop("time_us"), row.pop("ordering_id"), row.pop("uniqueness_key"))
    kind, message = row.pop("error_kind"), row.pop("error_message")
    tags = tuple(row.pop("tags") or ())
    return Invocation(key=key, **row, tags=tags, last_error=None if kind is None else LastError(kind, message))


def _rows(outcomes: Sequence[Outcome], lines: str | None = None) -> Any:
    """Outcomes as a batch of the columns `OUTPUT`; what their handlers have written goes with the first."""
    import pyarrow as pa

    rows = []
    for number, item in enumerate(outcomes):
        why = item.failure
        texts = (None, None, None) if why is None else (why.kind, why.message, why.stack)
        note = item.work or WorkNote()
        rows.append(
            (
                item.id,
                item.outcome,
                item.started_us,
                item.finished_us,
                item.result,
                *texts,
                item.after_ms,
                note.progress,
                note.checkpoint,
                fast_json.dump(item.follow_ups).decode() if item.follow_ups else None,
                note.outputs,
                note.progress_note,
                lines if number == 0 else None,
            )
        )
    columns = list(zip(*rows, strict=True))
    schema = _schema(OUTPUT)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _schema(ddl: str) -> Any:
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "string": pa.string(),
        "double": pa.float64(),
        "array<string>": pa.list_(pa.string()),
    }
    return pa.schema([(name, types[kind]) for name, kind in (column.split() for column in ddl.split(", "))])
