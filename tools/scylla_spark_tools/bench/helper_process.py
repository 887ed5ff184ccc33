"""Helper processes of a benchmark: load, observer and floors run apart from the system they measure.

A helper reads its job from stdin and answers with JSON lines on stdout; it ends when stdin does, so it cannot outlive us.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any, Final, Self

from scylla_spark.config.settings import Log, Settings
from scylla_spark.errors import SchedulerError, WaitTimeoutError

ROLES: Final = {
    "steady": "load", "pings": "load", "facts": "outcomes_observer", "timer": "floor_measurements", "echo": "floor_measurements",
    "pool": "floor_measurements", "round_trips": "floor_measurements", "lease_workers": "lease_workers", "lease_turns": "lease_workers",
    "empty_calls": "lease_workers", "lease_fleet": "lease_fleet", "single_tasks": "api_callers", "bulk": "api_callers",
    "bare_records": "api_callers", "reads": "api_callers", "onlookers": "onlookers", "first_paint": "onlookers",
    "crowd": "worker_crowd",
}  # fmt: skip
_END_S: Final = 10


class Channel:
    """What a role speaks to its parent with, before its result."""

    def __init__(self) -> None:
        self._heard: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def tell(self, value: Any) -> None:
        """Says something; `Helper.answer` gets it."""
        sys.stdout.write(json.dumps({"says": value}) + "\n")
        sys.stdout.flush()

    def hear(self) -> Any:
        """Returns what `Helper.send` sent next; waits for it."""
        return self._heard.get()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._heard.put(json.loads(line))
        os._exit(1)  # the parent is gone


class Helper:
    """One helper process, seen by its parent; a context manager.

    Args:
        role: a function of the modules of this package, see ROLES.
        settings: with the broker's address.
        **arguments: its keyword arguments, as JSON can carry them.
    """

    def __init__(self, role: str, settings: Settings, **arguments: Any) -> None:
        self._role = role
        self._answers: SimpleQueue[Any] = SimpleQueue()
        job = {"role": role, "settings": settings.model_dump(mode="json"), "arguments": arguments}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scylla_spark_tools.bench.helper_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, args=(self._process.stdout,), name=f"helper-{role}", daemon=True).start()
        self.send(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, value: Any) -> None:
        """Tells it something; `Channel.hear` gets it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float = 60.0) -> Any:
        """Returns what it says next: first what it tells, last its result.

        Raises:
            SchedulerError: it failed.
            WaitTimeoutError: it says nothing in time.
        """
        try:
            answer = self._answers.get(timeout=timeout_s)
        except Empty:
            raise WaitTimeoutError(
                f"The helper {self._role!r} said nothing for {timeout_s:g} s.", hint="See stderr."
            ) from None
        if answer is None:
            code = self._process.wait(_END_S)
            raise SchedulerError(f"The helper {self._role!r} ended early, with exit code {code}.", hint="See stderr.")
        return answer["says"]

    def _listen(self, lines: IO[str]) -> None:
        try:
            for line in lines:
                self._answers.put(json.loads(line))
        except ValueError:
            pass  # closed, or half a line of a helper that was killed
        self._answers.put(None)


def serve() -> None:
    """The helper's side: runs one role and ends."""
    from scylla_spark.log import configure

    configure(Log(level="error"))
    channel = Channel()
    job = channel.hear()
    module = importlib.import_module(f"scylla_spark_tools.bench.{ROLES[job['role']]}")
    settings = Settings(_env_file=None, **job["settings"])
    channel.tell(getattr(module, job["role"])(channel, settings, **job["arguments"]))


if __name__ == "__main__":
    serve()
