"""What stands where handlers ask for an executor that the settings turn off: their tasks fail, and say what to set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scylla_spark.clock import now_us
from scylla_spark.core.task import FAILED, Failure, Invocation, Outcome
from scylla_spark.core.work_note import WorkNote
from scylla_spark.executors.interface import HandlerInfo, Sink

_ROOM: Final = 1_000  # to refuse takes no time


class SwitchedOff:
    """An Executor that runs nothing: every task fails, as one of an unknown handler does.

    To run them somewhere else instead would be worse: who writes `runs_on` counts on that machine's memory, files and rights.

    Args:
        name: of the executor whose place it takes.
        remedy: what turns that one on; ends the sentence of the error.
    """

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy
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
        """Reports a failure of kind `handler_unknown` for each of them."""
        now = now_us()
        self._sink([Outcome(item.id, FAILED, now, now, failure=self._failure(item.handler)) for item in batch])

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Does nothing: what was submitted has been reported."""

    def stop(self, *, drain_s: float) -> None:
        """Does nothing: there is nothing to end."""

    def _failure(self, handler: str) -> Failure:
        return Failure(
            "handler_unknown", f"Handler {handler!r} runs on {self._name!r}, which is off here: {self._remedy}."
        )
