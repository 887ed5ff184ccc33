"""Tasks for the executors of a cluster, and what became of them."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from scylla_spark import TaskKey
from scylla_spark.testing import judge
from scylla_spark.testing.history import Run
from tests.acceptance.place import Foreign, now
from tests.acceptance.spark_cluster.executor_handlers import sign_of_life
from tests.acceptance.spark_cluster.standalone import PATIENT, SparkCluster
from tests.support.outcomes_log import OutcomesLog
from tests.support.waiting import eventually

LANES = 12


class Load:
    """Sends tasks to a cluster, and looks at their runs.

    Args:
        cluster: where they run.

    Attributes:
        sent: all keys.
    """

    def __init__(self, cluster: SparkCluster) -> None:
        self._cluster = cluster
        settings = cluster.settings
        patience = {"delivery_timeout_ms": 120_000, "request_timeout_ms": 30_000, "max_block_ms": 60_000}
        self._producer = Foreign(settings.kafka.bootstrap_servers, settings.topics.tasks, linger_ms=5, **patience)
        self._log = OutcomesLog(settings)
        self.sent: list[TaskKey] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close()
        self._log.close()

    def send(self, name: str, at: int) -> list[TaskKey]:
        """Sends one task per lane; returns their keys once all are acknowledged.

        Args:
            name: their uniqueness key.
            at: microseconds since the epoch.
        """
        keys = [TaskKey(at, f"lane-{lane}", name) for lane in range(LANES)]
        for future in [self._producer.put(key, handler="on-executor") for key in keys]:
            future.get(timeout=PATIENT)
        self.sent += keys
        return keys

    def hold(self, name: str) -> Run:
        """Sends a task that runs until `release`; returns its run once that has begun."""
        key = TaskKey(now(), f"held-{name}", name)
        self._producer.put(key, {"until": str(self._gate(key))}, handler="on-executor").get(timeout=PATIENT)
        self.sent.append(key)
        (run,) = self.begun([key])
        return run

    def release(self, run: Run) -> Run:
        """Lets the task of a run end; returns the run that came to its end.

        If that is a later one, the first one counts as ended when its handler gave its last sign of life.
        """
        gate = self._gate(run.key)
        gate.touch()
        (last,) = self.begun([run.key], ended=True)
        if last.attempt != run.attempt:
            self._cluster.killed[run.pool] = sign_of_life(gate, run.pool).stat().st_mtime_ns // 1000
        return last

    def begun(self, keys: list[TaskKey], *, ended: bool = False) -> list[Run]:
        """The runs of these keys, once each has begun, or has come to a good end."""
        wanted = set(keys)

        def look() -> list[Run] | None:
            found = [run for run in self._cluster.history() if run.key in wanted and (run.ok or not ended)]
            return found if {run.key for run in found} == wanted else None

        return eventually(look, PATIENT, f"{len(keys)} tasks", self._told)

    def check(self) -> None:
        """Waits until all tasks have ended well, and judges the whole history."""
        self.begun(self.sent, ended=True)
        runs = self._cluster.history()
        self._log.read()
        assert judge.lost(self.sent, {run.key for run in runs if run.ok}) == []
        assert judge.overlapping(runs) == judge.disordered(runs) == judge.early(runs) == []
        assert judge.misnumbered(runs, self._log.recorded) == []
        assert all(run.driver for run in runs), "each ran below the JVM of an executor"

    def _gate(self, key: TaskKey) -> Path:
        return self._cluster.folder / f"gate {key.uniqueness_key}"

    def _told(self) -> str:
        return "\n".join(one.process.told()[-3000:] for one in self._cluster.dispatchers)
