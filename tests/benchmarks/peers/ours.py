"""scylla-spark itself, through the benchmarks that it ships."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from scylla_spark import __version__
from tests.benchmarks.peers import figures
from tests.benchmarks.peers.child import answer
from tests.benchmarks.peers.figures import Absent, Figure

DRAINED = 50_000
ENQUEUED = 500_000


class Ours:
    """Everything runs: broker, ingest, dispatch, facts; order within a key is always on."""

    name = "scylla-spark"
    settings = (
        f"{__version__}: `scylla-spark bench`, one driver with ingest, dispatch and the embedded broker; a drain is always in key order; "
        "tasks come at the given rate while others start (peers: enqueued beforehand); `enqueue_df` of a DataFrame"
    )
    drained: Figure | None = None

    def available(self) -> str | None:
        return None

    def site(self) -> AbstractContextManager[None]:
        return nullcontext()

    def drain(self) -> Figure:
        self.drained = self._bench("drain", "--tasks", DRAINED)
        return self.drained

    def drain_ordered(self) -> Figure:
        return self.drained or self.drain()

    def lateness(self, poll_ms: int | None) -> Figure:
        return Absent("does not poll") if poll_ms is not None else self._bench("lateness", "--seconds", 15)

    def immediate(self) -> Figure:
        return self._bench("immediate", "--seconds", 10)

    def enqueue(self) -> Figure:
        return self._bench("enqueue", "--tasks", ENQUEUED)

    def _bench(self, name: str, *options: object) -> Figure:
        program = str(Path(sys.executable).with_name("scylla-spark"))
        return figures.own(answer([program, "bench", name, "-o", "json", *map(str, options)]))
