"""What the pool of Spark workers asks of its Spark application: slots, a session for its jobs, and settings that it cannot run with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.errors import ConfigError
from scylla_spark.io.host.session import is_one_machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LEAST_SLOTS: Final = 2
_MEMORY: Final = "spark.executor.pyspark.memory"
_IDLE_KILL: Final = "spark.sql.execution.pyspark.udf.killOnIdleTimeout"
_SPECULATION: Final = "spark.speculation"
_SPECULATES_FROM: Final = "spark.speculation.task.duration.threshold"
_OVERHEAD: Final = "spark.executor.memoryOverhead"
_SIZE: Final = re.compile(r"(\d+)([kmgt]?)i?b?")
_SHIFTS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}
_DYNAMIC: Final = "spark.dynamicAllocation.enabled"
_MOST_EXECUTORS: Final = "spark.dynamicAllocation.maxExecutors"
_UNBOUNDED: Final = 2**31 - 1
IN_DRIVER: Final = "driver"
"""In place of the id of an executor: its tasks run in the process of the driver."""


def check(context: SparkContext) -> None:
    """Checks that Spark workers can run in an application.

    Raises:
        ConfigError: its Python processes have a limit of memory, it starts long tasks twice, or it can run one task at a time only.
    """
    conf = context.getConf()
    if conf.get(_SPECULATION, "false").lower() == "true" and (longest := conf.get(_SPECULATES_FROM)):
        raise ConfigError(
            f"{_SPECULATES_FROM} is {longest}. Spark starts a task that runs longer once more, and so would end Spark workers.",
            hint=f"Remove {_SPECULATES_FROM}, set {_SPECULATION} = false, or set spark_workers.max = 0.",
        )
    if memory := conf.get(_MEMORY):
        raise ConfigError(
            f"{_MEMORY} is {memory}. It limits the address space of the processes of Spark workers, and their handlers inherit that.",
            hint=f"Remove {_MEMORY} (memory of handlers is part of spark.executor.memoryOverhead), or set spark_workers.max = 0.",
        )
    if is_one_machine(context.master) and count_slots(context) < LEAST_SLOTS:
        raise ConfigError(
            f"The master {context.master} runs one task at a time. A Spark worker would hold that slot, and no query could run.",
            hint="Use a master with two threads or more, such as local[2], or set spark_workers.max = 0.",
        )


def count_slots(context: SparkContext) -> int:
    """Returns how many tasks the application can run at once now. Spark's default number of partitions says less: users set it.

    An application that adds executors while jobs wait for them counts with all that it may have, and with two slots at least.
    """
    try:
        scala: Any = context._jsc.sc()  # noqa: SLF001 - PySpark does not offer it
        slots = int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # a platform that allows listed methods only; where the JVM has ended, the next line says so
        slots = int(context.defaultParallelism)
    conf = context.getConf()
    if conf.get(_DYNAMIC, "false") != "true" or is_one_machine(context.master):
        return slots
    most = conf.get(_MOST_EXECUTORS, "infinity")
    if not most.isdecimal() or int(most) == _UNBOUNDED:
        return _UNBOUNDED
    return max(slots, LEAST_SLOTS, int(most) * _slots_per_executor(conf))


def _slots_per_executor(conf: Any) -> int:
    return max(1, int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1")))


def leaving_executors(context: SparkContext, executors: Iterable[str]) -> set[str]:
    """Those executors that are being decommissioned or removed, as far as the scheduler says.

    Args:
        context: of the application.
        executors: ids of executors.
    """
    asked = set(executors) - {IN_DRIVER}
    try:
        backend: Any = context._jsc.sc().schedulerBackend() if asked else None  # noqa: SLF001 - as above
        return {one for one in asked if not backend.isExecutorActive(one)}
    except Exception:  # a scheduler, or a platform, that does not say
        return set()


class Waiting(NamedTuple):
    """Tasks that wait for a slot.

    Attributes:
        stage: their stage.
        group: of their job; empty: it has none.
    """

    stage: int
    group: str


def waiting_for_slots(context: SparkContext) -> list[Waiting]:
    """Stages of which tasks wait and none runs, as the scheduler knows at once; the status tracker may be ten seconds behind.

    Args:
        context: of the application.
    """
    try:
        queue: Any = context._jsc.sc().taskScheduler().rootPool().getSortedTaskSetQueue()  # noqa: SLF001 - as above
        found = [
            one for one in map(queue.apply, range(queue.size()))
            if not one.isZombie() and not one.runningTasks() and one.tasksSuccessful() < one.numTasks()
        ]  # fmt: skip
        groups = [one.taskSet().properties().getProperty("spark.jobGroup.id") for one in found]
        return [Waiting(int(one.stageId()), group or "") for one, group in zip(found, groups, strict=True)]
    except Exception:  # a platform that allows listed methods only
        return []


def share_of_overhead(context: SparkContext) -> int | None:
    """Bytes of memory beside the JVM that each Spark worker of an executor may use; None: nothing limits them.

    That is the memory overhead of the executor, by the rules of Spark, divided among as many workers as it has slots.
    """
    conf = context.getConf()
    on_kubernetes = (context.master or "").startswith("k8s")
    overhead = _bytes(conf.get(_OVERHEAD, ""))
    if overhead is None and (on_kubernetes or context.master == "yarn"):
        least = _bytes(conf.get("spark.executor.minMemoryOverhead", "384m")) or 0
        factor = conf.get("spark.kubernetes.memoryOverheadFactor", "0.4") if on_kubernetes else "0.1"
        factor = conf.get("spark.executor.memoryOverheadFactor", factor)
        overhead = max(least, round(float(factor) * (_bytes(conf.get("spark.executor.memory", "1g")) or 0)))
    if overhead is None:
        return None
    return overhead // _slots_per_executor(conf)


def _bytes(text: str) -> int | None:
    """Bytes of a size as Spark writes it, in MiB where it names no unit; None: it is none."""
    found = _SIZE.fullmatch(text.strip().lower())
    return None if found is None else int(found[1]) << _SHIFTS[found[2] or "m"]


def addresses(context: SparkContext, advertise: str) -> tuple[str, str]:
    """Returns where this process listens, and where executors reach it: at `advertise`, or else at the address of the driver.

    Spark writes addresses of IPv6 in brackets, sockets take them without.
    """
    driver = str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    bind = str(context.getConf().get("spark.driver.bindAddress", driver))
    return bind.strip("[]"), (advertise or driver).strip("[]")


def session_for_workers(spark: SparkSession) -> SparkSession:
    """A session of the same application for the jobs of workers.

    So `interruptAll` of the user's session does not end them, nor does a limit for Python processes that return nothing for long.
    """
    session = spark.newSession()
    session.conf.set(_IDLE_KILL, "false")
    return session
