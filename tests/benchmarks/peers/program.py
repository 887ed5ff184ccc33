"""The measures of a peer whose side is a small program in its own language.

The program has four verbs, each with options as a JSON object:

- `prepare`: makes the tables in an empty store;
- `enqueue`: `count` tasks through the fastest call for many. With `keys`, task i is number i // keys of key i % keys, and
  a key's tasks run one after the other in that order. With `first_due_us`, task i is due `period_us` * i later;
- `send`: `count` tasks one by one, `rate` a second, each stamped just before the call;
- `work`: runs tasks until SIGTERM; each handler appends key, number, stamp and start to the file `records`.

`enqueue` and `send` answer `{"seconds": …}`. Starts are read from the file, what is left from the store.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.benchmarks.peers import figures
from tests.benchmarks.peers.child import Missing, answer, running, say, wait
from tests.benchmarks.peers.figures import Absent, Figure, Latency, Rate
from tests.benchmarks.peers.servers import Store

KEYS = 1_000
WARM = 20
LATE_RATE, LATE_S, AHEAD_S = 100, 15, 6
NOW_RATE, NOW_S = 50, 10
LIMIT_S = 90


class Program(ABC):
    """A peer behind a program.

    Attributes:
        drained: tasks of a drain without keys.
        drained_ordered: tasks of a drain with keys, or why there is none.
        enqueued: tasks of the enqueue measure.
        polls: whether it polls for due tasks.
    """

    name: str
    settings: str
    drained: ClassVar[int]
    drained_ordered: ClassVar[int | str]
    enqueued: ClassVar[int]
    polls: ClassVar[bool] = True

    store: Any
    address: str
    records: Path

    # ---- what each peer says ----

    @abstractmethod
    def install(self) -> None:
        """Brings what is needed; raises Missing."""

    @abstractmethod
    def server(self) -> AbstractContextManager[Store]:
        """Its store."""

    @abstractmethod
    def command(self, verb: str, options: Mapping[str, Any]) -> list[str]:
        """The command line of a verb."""

    @abstractmethod
    def fast(self, *, ordered: bool) -> Mapping[str, Any]:
        """Options of `work` for a drain."""

    @abstractmethod
    def quick(self, poll_ms: int | None) -> Mapping[str, Any]:
        """Options of `work` for latencies; None: its default polling."""

    @abstractmethod
    def left(self) -> int:
        """Returns how many tasks the store has that are not done."""

    def settle(self) -> None:  # noqa: B027 - most need nothing
        """What an operator would have the store do after many inserts."""

    def env(self) -> Mapping[str, str]:
        """Environment of the program."""
        return {}

    def folder(self) -> Path | None:
        """Returns where the program runs."""
        return None

    # ---- the measures ----

    def available(self) -> str | None:
        try:
            self.install()
        except Missing as missing:
            return str(missing)
        return None

    @contextmanager
    def site(self) -> Iterator[None]:
        with self.server() as self.store:
            yield

    def drain(self) -> Figure:
        return self._drain(self.drained, 0)

    def drain_ordered(self) -> Figure:
        if isinstance(self.drained_ordered, str):
            return Absent(self.drained_ordered)
        return self._drain(self.drained_ordered, KEYS)

    def lateness(self, poll_ms: int | None) -> Figure:
        if poll_ms is not None and not self.polls:
            return Absent("does not poll")
        count = LATE_RATE * LATE_S
        with self._empty(), self._working(self.quick(poll_ms)):
            self._warm_up()
            first = (int(time.time()) + AHEAD_S) * 1_000_000
            self._ask("enqueue", count=count, keys=0, first_due_us=first, period_us=1_000_000 // LATE_RATE)
            if time.time() * 1e6 > first:
                say(f"{self.name}: tasks were still being enqueued when the first was due")
            return self._latency(count, AHEAD_S + LATE_S)

    def immediate(self) -> Figure:
        count = NOW_RATE * NOW_S
        with self._empty(), self._working(self.quick(None)):
            self._warm_up()
            self._ask("send", count=count, rate=NOW_RATE)
            return self._latency(count, 0)

    def enqueue(self) -> Figure:
        with self._empty():
            seconds = self._ask("enqueue", count=self.enqueued, keys=0, first_due_us=0, period_us=0)
            return Rate(self.enqueued, self.enqueued / seconds, lost=self.enqueued - self.left())

    # ---- their steps ----

    def _drain(self, count: int, keys: int) -> Rate:
        with self._empty():
            self._ask("enqueue", count=count, keys=keys, first_due_us=0, period_us=0)
            self.settle()
            with self._working(self.fast(ordered=keys > 0)):
                wait(f"{self.name} starts {count} tasks", lambda: figures.started(self.records) >= count, LIMIT_S)
                end_us = self._done()
            seen = figures.starts(self.records)
            return figures.rate(
                seen, count, max(end_us, max((start.begun for start in seen), default=0)), ordered=keys > 0
            )

    def _done(self) -> float:
        """Returns when the store was asked that first said that nothing is left, µs."""
        asked = 0.0

        def nothing_left() -> bool:
            nonlocal asked
            asked = time.time() * 1e6
            return self.left() == 0

        wait(f"{self.name} has done all", nothing_left, LIMIT_S)
        return asked

    def _latency(self, count: int, ahead_s: float) -> Latency:
        def all_started() -> bool:
            return figures.started(self.records) >= WARM + count

        wait(f"{self.name} starts {count} tasks", all_started, ahead_s + LIMIT_S)
        return figures.latency(figures.starts(self.records, skip=WARM), count)

    def _warm_up(self) -> None:
        self._ask("send", count=WARM, rate=NOW_RATE)
        wait(f"{self.name} starts its first tasks", lambda: figures.started(self.records) >= WARM, LIMIT_S)

    @contextmanager
    def _empty(self) -> Iterator[None]:
        """An empty store, and a file for the records."""
        with tempfile.TemporaryDirectory(prefix="scylla-spark-peers-") as place:
            self.records = Path(place) / "records"
            self.address = self.store.fresh()
            self._ask("prepare")
            yield

    def _ask(self, verb: str, **options: Any) -> float:
        command = self.command(verb, {**self._place(), **options})
        told = answer(command, env=self.env(), cwd=self.folder())
        return float(told.get("seconds", 0))

    @contextmanager
    def _working(self, options: Mapping[str, Any]) -> Iterator[None]:
        command = self.command("work", {**self._place(), **options})
        log = self.records.with_name("log")
        with running(command, log=log, env=self.env(), cwd=self.folder()) as worker:
            yield
            if worker.poll() is not None:
                raise RuntimeError(f"the worker ended with {worker.returncode}: {log.read_text()[-800:]}")

    def _place(self) -> dict[str, Any]:
        return {"address": self.address, "records": str(self.records)}
