"""What a Spark task does that hosts a worker: a local pool, and a connection to the dispatcher, until it is not wanted any more."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.defaults import LONGEST_RUN_S, MIN_CHILDREN
from scylla_spark.errors import SchedulerError
from scylla_spark.executors.interface import LogTerms
from scylla_spark.executors.local.local_executors import LocalExecutors
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.local.sandbox import Sandboxed
from scylla_spark.executors.remote.handshake import Ticket
from scylla_spark.executors.remote.resident import Resident
from scylla_spark.executors.remote.watchdog import Watchdog
from scylla_spark.executors.remote.worker_lines import WorkerLines
from scylla_spark.handlers.call import EXECUTOR_VARIABLE
from scylla_spark.handlers.description import SPARK, HandlerInfo

REASON: Final = "reason string"
BROKEN: Final = "executor_broken: "
"""Begins the reason of a worker that could not load the handlers."""
_KILLED_WITHIN_S: Final = 0.3
"""Beyond the grace. The dispatcher reports handlers as lost 0.7 s later, and the watchdog takes up to 0.3 s to kill them."""
FOLDER: Final = "scylla-spark-env"
"""The folder of an executor that the archive with this package is unpacked in; `spark-submit.sh` names it too."""
_EXECUTOR_OPTION: Final = b"--executor-id"
_SWITCH_S: Final = 0.0005  # the threads of the connection must not wait 5 ms for each other


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a Spark worker runs handlers.

    Attributes:
        modules: handler modules; they must be importable (or exist as files) where executors run.
        children: most child processes.
        kill_grace_s: from SIGTERM to SIGKILL after a timeout.
        pass_environment: further environment variables that handlers get (see `environment`).
        longest_s: how long a call may run at most if it asks for longer than its timeout.
        auto: the executor of handlers that name none.
        hidden: files and folders that no sandbox shows.
        readable: further files and folders that sandboxed handlers can read.
        outputs: where files are kept that attempts leave behind; None: nowhere.
        logs: how much is kept of what handlers write; None: nothing.
        niceness: of worker and children, where the system allows that; None: that of the Spark task.
        most_bytes: of memory of its processes, beyond which it starts no child beside another one; None: there is no bound.
    """

    modules: tuple[str, ...]
    children: int
    kill_grace_s: float
    pass_environment: tuple[str, ...] = ()
    longest_s: float = LONGEST_RUN_S
    auto: str = SPARK
    hidden: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    outputs: OutputTerms | None = None
    logs: LogTerms | None = None
    niceness: int | None = None
    most_bytes: int | None = None


def host(batches: Iterable[Any], config: WorkerConfig, ticket: Ticket) -> Iterator[Any]:
    """For `DataFrame.mapInArrow`: hosts a worker until it ends, then gives one row with the reason. It never raises.

    A task that Spark tries again returns at once: only our supervisor starts workers.

    Args:
        batches: any rows.
        config: of the worker.
        ticket: what it needs to connect.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        reason = "Spark tried its task again"
    else:
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            lines = None if config.logs is None else WorkerLines(config.logs)
            watchdog = partial(Watchdog, grace_us=round((config.kill_grace_s + _KILLED_WITHIN_S) * 1e6))
            executor_id = executor_id_of(os.getpid())
            pool = pool_of(config, lines, executor_id)
            worker = Resident(
                ticket, pool, executor_id=executor_id, watchdog=watchdog, lines=lines, most_bytes=config.most_bytes
            )
            with _at_niceness(config.niceness):
                reason = worker.run()
        except SchedulerError as error:
            reason = BROKEN + error.message.strip().splitlines()[-1].strip()  # above it is the stack of an import
        finally:
            sys.setswitchinterval(before)
    yield pa.RecordBatch.from_arrays([pa.array([reason])], names=["reason"])


def pool_of(config: WorkerConfig, lines: WorkerLines | None, executor_id: str) -> LocalExecutors:
    """The pools of a worker; not started.

    Args:
        config: of the worker.
        lines: the keeper of what handlers write; None: that is not kept.
        executor_id: of Spark.
    """
    modules = unpacked(config.modules)
    make = partial(
        LocalPool,
        modules,
        max_children=config.children,
        kill_grace_s=config.kill_grace_s,
        pass_environment=config.pass_environment,
        longest_s=config.longest_s,
        executor=SPARK,
        auto=config.auto,
        variables={EXECUTOR_VARIABLE: executor_id},
    )

    def own(info: HandlerInfo) -> LocalPool:
        assert info.isolation is not None
        hidden, readable = map(Path, config.hidden), map(Path, config.readable)
        apart = Sandboxed(info.name, info.isolation, modules, [*hidden], [*readable])
        return make(min_children=0, apart=apart)

    pool = LocalExecutors(make(min_children=min(MIN_CHILDREN, config.children)), own, in_background=True)
    if config.outputs is not None:
        pool.keep_outputs(config.outputs)
    if lines is not None:
        pool.keep_logs(lines)
    return pool


@contextlib.contextmanager
def _at_niceness(niceness: int | None) -> Iterator[None]:
    """Lowers the niceness of this thread, which what it starts inherits, if it is higher and this user may; restores it at the end."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, before if niceness is None else min(before, niceness))
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def unpacked(modules: Sequence[str]) -> tuple[str, ...]:
    """These handler modules as this process finds them: those that are files are in the archive, if this package is from one."""
    folder = Path(__file__).absolute().parents[3]  # on YARN it is a link to a folder of another name
    if folder.name != FOLDER:
        return tuple(modules)
    return tuple(str(folder / Path(module).name) if is_path(module) else module for module in modules)


def is_path(module: str) -> bool:
    """Returns True if a handler module is given as a file, as `registry.load` sees it."""
    return module.endswith(".py") or "/" in module


def executor_id_of(pid: int) -> str:
    """The id of the Spark executor whose process is an ancestor of this one, as its command line says; without one "driver".

    Args:
        pid: of a process of this machine.
    """
    while pid > 1:
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        if _EXECUTOR_OPTION in arguments[:-1]:
            return arguments[arguments.index(_EXECUTOR_OPTION) + 1].decode(errors="replace")
        pid = int(status.rpartition(")")[2].split()[1])
    return os.environ.get("SPARK_EXECUTOR_ID", "driver")
