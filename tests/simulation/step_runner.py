"""Carries out pieces of work (`services.dispatch.stepwise_work`) step by step, with anything happening between two of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from scylla_spark.services.dispatch.stepwise_work import Ask, Pause, Steps
from tests.simulation.records import SECOND

if TYPE_CHECKING:
    from tests.simulation.process import Process


class ModelRunner:
    """One piece of work of a line at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lines: dict[str, list[Steps[Any]]] = {}

    def busy(self, line: str) -> bool:
        """Returns True if anything of a line is under way."""
        return bool(self._lines.get(line))

    def run(self, line: str, work: Steps[Any]) -> Future[Any]:
        waiting = self._lines.setdefault(line, [])
        waiting.append(work)
        if len(waiting) == 1:
            self._step(line, work, None)
        return Future()

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        self._process.later(int(seconds * SECOND), lambda: (call(), None)[1])

    def _step(self, line: str, work: Steps[Any], answer: Any, failure: Exception | None = None) -> None:
        process, world = self._process, self._process.world
        try:
            step = work.send(answer) if failure is None else work.throw(failure)
        except StopIteration:
            self._lines[line].pop(0)
            if self._lines[line]:
                process.later(world.jitter(1, 50), lambda: self._step(line, self._lines[line][0], None))
            return
        if isinstance(step, Pause):
            process.later(int(step.seconds * SECOND), lambda: self._step(line, work, None))
        elif isinstance(step, Ask):
            process.mailbox.post(lambda now: self._answered(line, work, step.question(now)))
        else:
            process.later(world.jitter(1, 400), lambda: self._read(line, work, step.work))

    def _answered(self, line: str, work: Steps[Any], answer: Any) -> None:
        self._process.later(self._process.world.jitter(1, 30), lambda: self._step(line, work, answer))

    def _read(self, line: str, work: Steps[Any], read: Callable[[], Any]) -> None:
        """What is read now is told some time later; sometimes storage fails."""
        world = self._process.world
        trouble = world.profile.trouble
        slow = world.rng.random() < trouble.slow
        delay = world.jitter(200, trouble.slow_ms) if slow else world.jitter(5, 300)
        if not world.calm and world.rng.random() < trouble.storage:
            self._process.later(delay, lambda: self._step(line, work, None, OSError("modelled storage")))
            return
        found = read()
        self._process.later(delay, lambda: self._step(line, work, found))
