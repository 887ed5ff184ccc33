"""The executor of tasks whose queue asks for a sandbox and whose handler runs in none: it fails each of them and says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import FAILED, Failure, Invocation, Outcome
from scylla_spark.executors.interface import Sink
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.isolation import UNAVAILABLE

UNSANDBOXED: Final = "unsandboxed"
"""Its name among executors."""
_ROOM: Final = 1_000  # to refuse takes no time


class Unsandboxed:
    """An Executor that runs nothing: to run these tasks outside a sandbox would break what their queue promises."""

    def start(self, sink: Sink) -> None:
        """Begins to refuse; `sink` is called at once, in the thread that submits."""
        self._sink = sink

    def handlers(self) -> dict[str, HandlerInfo]:
        """None: it runs nothing."""
        return {}

    def rooms(self) -> Mapping[str, int]:
        """Always some, so that tasks fail soon instead of waiting for ever."""
        return {UNSANDBOXED: _ROOM}

    def running(self) -> Mapping[int, int]:
        """Nothing, ever."""
        return {}

    def notes(self) -> Mapping[int, WorkNote]:
        """Nothing, ever."""
        return {}

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Reports a failure of kind `isolation_unavailable` for each of them."""
        now = now_us()
        self._sink([Outcome(item.id, FAILED, now, now, failure=_failure(item.handler)) for item in batch])

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Does nothing: what was submitted has been reported."""

    def stop(self, *, drain_s: float) -> None:
        """Does nothing: there is nothing to end."""


def _failure(handler: str) -> Failure:
    return Failure(
        UNAVAILABLE, f'The queue of the task asks for a sandbox, and handler {handler!r} has no isolation="sandbox".'
    )
