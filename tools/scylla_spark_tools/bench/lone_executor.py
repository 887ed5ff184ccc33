"""An executor without a dispatcher: what is handed to it, and what it reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from queue import SimpleQueue
from typing import Any

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Invocation, Outcome
from scylla_spark.executors.interface import Executor

_TIMEOUT_MS = 300_000


class LoneExecutor:
    """Runs tasks on an executor and waits for their ends.

    Args:
        executor: started.
        reported: where its sink puts outcomes.
    """

    def __init__(self, executor: Executor, reported: SimpleQueue[Sequence[Outcome]]) -> None:
        self._executor = executor
        self._reported = reported
        self._numbers = count(1)

    def run(self, handler: str, payloads: Sequence[Any], limit_s: float = 120.0) -> list[Outcome]:
        """The outcomes of tasks, each in a lane of its own, in the order in which they are reported.

        Args:
            handler: their handler.
            payloads: one for each.
            limit_s: seconds after which nothing more is waited for.

        Raises:
            queue.Empty: nothing was reported for so long.
        """
        items = [self._item(handler, payload) for payload in payloads]
        self._executor.submit(items)
        found: list[Outcome] = []
        while len(found) < len(items):
            found += self._reported.get(timeout=limit_s)
        return found

    def _item(self, handler: str, payload: Any) -> Invocation:
        number, now = next(self._numbers), now_us()
        key = TaskKey(now, f"lane-{number}", "bench")
        return Invocation(number, key, 1, 1, handler, "default", json.dumps(payload), 0, now, _TIMEOUT_MS)


@contextmanager
def alone(executor: Executor) -> Iterator[LoneExecutor]:
    """Starts an executor, and ends it with its children."""
    reported: SimpleQueue[Sequence[Outcome]] = SimpleQueue()
    executor.start(reported.put)
    try:
        yield LoneExecutor(executor, reported)
    finally:
        executor.stop(drain_s=0)
