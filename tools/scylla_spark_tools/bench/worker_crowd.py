"""Many Spark workers without Spark, played by one process, and what memory they cost their dispatcher."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from scylla_spark.config.settings import Settings
from scylla_spark.executors.interface import Sink
from scylla_spark.executors.local.local_executors import LocalExecutors
from scylla_spark.executors.remote.certificate import server_context
from scylla_spark.executors.remote.handshake import Ticket
from scylla_spark.executors.remote.pool import RemotePool
from scylla_spark.executors.remote.resident import Resident
from scylla_spark.executors.remote.supervisor import RemoteTerms
from scylla_spark.handlers.description import SPARK, HandlerInfo
from scylla_spark_tools.bench.deployment_under_test import await_value
from scylla_spark_tools.bench.handlers import NOOP_ON_SPARK
from scylla_spark_tools.bench.helper_process import Channel, Helper
from scylla_spark_tools.bench.load import poll

_BEATS_S: Final = 5.0
_BETWEEN_S: Final = 0.02
_TERMS: Final = RemoteTerms(lease_us=30_000_000)  # one process with so many workers may be slow


def memory_of_workers_mb(count: int) -> float:
    """Returns how much more memory a pool takes, MiB, once so many workers are connected with TLS and have sent some heartbeats.

    Args:
        count: workers.
    """
    handlers = {NOOP_ON_SPARK: HandlerInfo(NOOP_ON_SPARK, runs_on=SPARK)}
    tls, certificate = server_context()
    pool = RemotePool(_TERMS, handlers, host="127.0.0.1", advertise="127.0.0.1", tls=tls, certificate=certificate)
    pool.start(lambda _: None)
    tickets = [pool.ticket() for _ in range(count)]
    texts = [[one.worker_id, one.key.hex(), one.host, one.port, one.certificate.hex(), one.lease_us] for one in tickets]
    before = _resident_mb()
    try:
        with Helper("crowd", Settings(_env_file=None), tickets=texts) as crowd:
            crowd.answer()
            await_value("the workers", lambda: len(pool.supervisor.workers) == count or None)
            poll(_BEATS_S)
            return round(_resident_mb() - before, 1)
    finally:
        pool.stop(drain_s=0)


def crowd(channel: Channel, settings: Settings, *, tickets: Sequence[Sequence[Any]]) -> None:
    """Plays workers that have room and run nothing, until this process is killed.

    Args:
        channel: to the process that measures.
        settings: not used; all helpers are called alike.
        tickets: of the workers, with key and certificate as hexadecimal digits.
    """
    for worker_id, key, host, port, certificate, lease_us in tickets:
        ticket = Ticket(worker_id, bytes.fromhex(key), host, port, bytes.fromhex(certificate), lease_us)
        worker = Resident(
            ticket, cast(LocalExecutors, _IdlePool()), executor_id=worker_id, watchdog=cast(Any, _NoWatchdog)
        )
        threading.Thread(target=worker.run, name=worker_id, daemon=True).start()
        poll(_BETWEEN_S)  # a pool refuses the 65th connection that has proven nothing
    channel.tell("ready")
    threading.Event().wait()


class _IdlePool:
    """What a worker asks of its pool, without children."""

    def start(self, sink: Sink) -> None:
        """Nothing is to be started."""

    def stop(self, *, drain_s: float) -> None:
        """Nothing runs."""

    def handlers(self) -> dict[str, HandlerInfo]:
        """Those of the benchmark."""
        return {NOOP_ON_SPARK: HandlerInfo(NOOP_ON_SPARK)}

    def rooms(self) -> dict[str, int]:
        """It would take some."""
        return {SPARK: 8}

    def running(self) -> dict[int, int]:
        """Nothing runs."""
        return {}

    def notes(self) -> dict[int, Any]:
        """Nothing runs."""
        return {}

    def submit(self, batch: Sequence[object]) -> None:
        """Nothing comes."""


class _NoWatchdog:
    """In place of a process for each worker."""

    def __init__(self, leased_until_us: int) -> None:
        """Nothing is to be ended."""

    def renew(self, until_us: int) -> bool:
        """It never ends."""
        return True

    def close(self) -> None:
        """Nothing is left of it."""


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
