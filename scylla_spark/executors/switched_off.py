"""What stands where handlers ask for an executor that the settings turn off: their tasks fail, and say what to set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scylla_spark.clock import now_us
from scylla_spark.core.attempt_note import WorkNote
from scylla_spark.core.task import FAILED, Failure, Invocation, Outcome
from scylla_spark.executors.interface import HandlerInfo, Sink
from scylla_spark.executors.isolation import UNAVAILABLE

UNSANDBOXED: Final = "unsandboxed"
"""The name of the executor to which tasks go whose queue asks for a sandbox, and whose handler is in none."""
_ROOM: Final = 1_000  # to refuse takes no time


class SwitchedOff:
    """An Executor that runs nothing: every task fails and says why.

    To run them somewhere else instead would be worse: who writes `runs_on` counts on that machine's memory, files and rights.

    Args:
        name: of the executor whose place it takes.
        remedy: what turns that one on; ends the sentence of the error.
        why: from the name of a handler to what its tasks fail with; default: as those of an unknown handler do.
    """

    def __init__(self, name: str, remedy: str, why: Callable[[str], Failure] | None = None) -> None:
        self._name = name
        self._remedy = remedy
        self._why = why
        self._sink: Sink

    def start(self, sink: Sink) -> None:
        """Begins to refuse; `sink` hears of it at once, in the thread that submits."""
        self._sink = sink

    def handlers(self) -> dict[str, HandlerInfo]:
        """None: it runs nothing."""
        return {}

    def room(self) -> int:
        """Always some, so that tasks fail soon instead of waiting for ever."""
        return _ROOM

    def running(self) -> Mapping[int, int]:
        """Nothing, ever."""
        return {}

    def notes(self) -> Mapping[int, WorkNote]:
        """Nothing, ever: it is not here that tasks run."""
        return {}

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Reports a failure for each of them, of kind `handler_unknown` where nothing else was asked for."""
        now = now_us()
        self._sink([Outcome(item.id, FAILED, now, now, failure=self._failure(item.handler)) for item in batch])

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Does nothing: what was submitted has been reported."""

    def stop(self, *, drain_s: float) -> None:
        """Does nothing: there is nothing to end."""

    def _failure(self, handler: str) -> Failure:
        if self._why is not None:
            return self._why(handler)
        return Failure(
            "handler_unknown", f"Handler {handler!r} runs on {self._name!r}, which is off here: {self._remedy}."
        )


def unsandboxed() -> SwitchedOff:
    """What takes the tasks of handlers that are in no sandbox, of queues that ask for one."""
    return SwitchedOff(UNSANDBOXED, "", _not_in_a_sandbox)


def _not_in_a_sandbox(handler: str) -> Failure:
    return Failure(
        UNAVAILABLE, f'The queue of the task asks for a sandbox, and handler {handler!r} has no isolation="sandbox".'
    )
