"""The HTTP API as any client sees it, and workers as processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scylla_spark.io.host import die_with_parent
from tests.acceptance.place import PATIENCE, ROOT, Place, Process
from tests.support.processes import children
from tests.support.waiting import eventually


class Wire:
    """Talks to the API.

    Args:
        url: of it.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, method: str, path: str, body: Any = None, *, lines: Any = None) -> Any:
        """The document of an answer; of lines, a list."""
        kind = "application/json" if lines is None else "application/x-ndjson"
        text = json.dumps(body) if lines is None else "".join(json.dumps(line) + "\n" for line in lines)
        data = None if body is None and lines is None else text.encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = answer.read().decode()
        return json.loads(told) if lines is None else [json.loads(line) for line in told.splitlines()]

    def put(self, queue: str, **fields: Any) -> str:
        """Enqueues a task; its id."""
        return self("POST", "/v1/tasks", {"queue": queue} | fields)["id"]

    def put_all(self, queue: str, number: int, prefix: str, **fields: Any) -> None:
        """Enqueues tasks in lanes of their own, whose names begin with `prefix`."""
        lines = [{"queue": queue, "ordering_id": f"{prefix}{n:05}"} | fields for n in range(number)]
        assert self("POST", "/v1/tasks:bulk", lines=lines)[-1] == {"accepted": number, "refused": 0}

    def lease(self, queue: str, most: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """Leases without a session."""
        return self("POST", f"/v1/queues/{quote(queue)}/leases", {"max": most} | fields)["leases"]

    def end(self, how: str, lease: dict[str, Any] | str, **fields: Any) -> str:
        """Returns what a lease is told that ends, or goes on."""
        token = lease if isinstance(lease, str) else lease["lease"]
        return self("POST", f"/v1/leases:{how}", {"leases": [{"lease": token} | fields]})["leases"][0]["status"]

    def cancel(self, task: str) -> str:
        """Returns what a cancel is answered: cancelled, sent or too late."""
        try:
            return self("POST", f"/v1/tasks/{task}:cancel")["answer"]
        except urllib.error.HTTPError as error:
            error.close()
            return "too late" if error.code == 409 else str(error)

    def state(self, task: str) -> str:
        return self("GET", f"/v1/tasks/{task}")["state"]

    def becomes(self, task: str, state: str) -> None:
        """Waits until a task is shown in a state: the API reads the log by itself, a moment after a report is answered."""
        eventually(lambda: self.state(task) == state, PATIENCE, f"{task} is {state}", lambda: self.state(task))

    def outcomes(self, task: str, *wanted: str) -> list[dict[str, Any]]:
        """Waits until the attempts of a task have these outcomes; the attempts."""

        def look() -> list[dict[str, Any]] | None:
            found = self("GET", f"/v1/tasks/{task}/attempts")["attempts"]
            return found if [one["outcome"] for one in found] == list(wanted) else None

        def tell() -> Any:
            return self("GET", f"/v1/tasks/{task}/attempts")

        return eventually(look, PATIENCE, f"attempts of {task}: {wanted}", tell)


def worker(place: Place, url: str, name: str, queue: str, *words: str, handlers: str) -> Process:
    """`scylla-spark worker run`, started."""
    program = str(Path(sys.executable).with_name("scylla-spark"))
    command = [program, "worker", "run", "--url", url, "--queue", queue, "--handlers", handlers, "--name", name, *words]
    return Process(name, command, place.folder, place.environment)


def joined(wire: Wire, process: Process) -> None:
    """Waits until a worker talks to the API."""

    def look() -> bool:
        assert process.running, process.told()[-3000:]
        return process.name in {one["worker"] for one in wire("GET", "/v1/workers")}

    eventually(look, PATIENCE, f"{process.name} has joined")


def script(place: Place, text: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python program, started; it ends with the tests."""
    command = die_with_parent.command([sys.executable, "-c", text, *arguments])
    environment = place.environment | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=place.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def api_process(up: int) -> int:
    """The process that serves the API of a deployment."""
    return next(pid for pid in children(up) if b"scylla_spark.api" in Path(f"/proc/{pid}/cmdline").read_bytes())
