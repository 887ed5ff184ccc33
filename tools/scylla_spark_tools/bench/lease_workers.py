"""Workers of a benchmark: threads that lease over HTTP, do nothing, and report."""

from __future__ import annotations

import json
import os
import threading
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.io.kafka.topics import producer
from scylla_spark_tools.bench.floor_measurements import ECHO_TOPIC, timed
from scylla_spark_tools.bench.helper_process import Channel

_HEADERS: Final = {"Content-Type": "application/json"}
_WAIT_MS: Final = 1_000


class _Worker(threading.Thread):
    """One worker: it reports what it has and asks for more in one call, until nothing is left."""

    def __init__(self, api: str, name: str, queue: str, most: int) -> None:
        super().__init__(name=name, daemon=True)
        self._connection = HTTPConnection(urlsplit(api).netloc, timeout=60)
        self._queue, self._most = queue, most
        self.keys: list[str] = []
        self.calls_us: list[int] = []
        self.last_us = 0
        self.refused = 0

    def run(self) -> None:
        """Works."""
        held: list[dict[str, Any]] = []
        sequence = 0
        while True:
            sequence += 1
            body = _sync_body(sequence, [{"queue": self._queue, "max": self._most}], held)
            begun = boot_us()
            answer = post(self._connection, f"/v1/workers/{self.name}/sync", body)
            self.calls_us.append(boot_us() - begun)
            self.refused += sum(status["status"] != "ok" for status in answer["accepted"])
            if held:
                self.last_us = boot_us()
            if not held and not answer["leases"]:
                return
            held = answer["leases"]
            self.keys += [lease["task"]["uniqueness_key"] for lease in held]


def _sync_body(sequence: int, want: list[dict[str, Any]], held: list[dict[str, Any]]) -> dict[str, Any]:
    """A call that reports all that is held, as done."""
    return {
        "seq": sequence, "session": "bench", "want": want, "wait_ms": _WAIT_MS,
        "results": [{"lease": lease["lease"], "outcome": "succeeded"} for lease in held],
    }  # fmt: skip


def post(connection: HTTPConnection, path: str, body: Any) -> Any:
    """The JSON answer to a POST.

    Args:
        connection: kept open.
        path: of the request.
        body: plain JSON.

    Raises:
        RuntimeError: it was refused.
    """
    connection.request("POST", path, json.dumps(body), _HEADERS)
    response = connection.getresponse()
    text = response.read()
    if response.status >= 300:
        raise RuntimeError(f"{path}: {response.status} {text[:500]!r}")
    return json.loads(text)


def lease_workers(
    channel: Channel, _settings: Settings, *, api: str, prefix: str, queue: str, workers: int, most: int
) -> dict[str, Any]:
    """Works a queue off.

    Args:
        channel: to the parent, which says when to begin.
        api: address of the API.
        prefix: of the names of the workers.
        queue: to lease from.
        workers: threads.
        most: leases per call.

    Returns:
        `keys` that were leased, `first_us` and `last_us` by the boot clock, `calls_us` sorted, `refused` reports.
    """
    found = [_Worker(api, f"{prefix}{number}", queue, most) for number in range(workers)]
    channel.tell("ready")
    channel.hear()
    begun = boot_us()
    for worker in found:
        worker.start()
    for worker in found:
        worker.join()
    return {
        "keys": [key for worker in found for key in worker.keys], "first_us": begun,
        "last_us": max(worker.last_us for worker in found), "refused": sum(worker.refused for worker in found),
        "calls_us": sorted(us for worker in found for us in worker.calls_us),
    }  # fmt: skip


def lease_turns(channel: Channel, settings: Settings, *, api: str, queue: str, seconds: float) -> dict[str, list[int]]:
    """One worker that leases one task at a time; by turns with each call an empty one, and a record sent and acknowledged.

    Args:
        channel: to the parent, which says when to begin.
        settings: with the broker.
        api: address of the API.
        queue: to lease from.
        seconds: how long; the task that is held then is reported.

    Returns:
        Microseconds, sorted: `sync` of calls that reported a task and found the next, `empty`, `record`; `refused` calls and reports.
    """
    connection = HTTPConnection(urlsplit(api).netloc, timeout=60)
    took: dict[str, list[int]] = {"sync": [], "empty": [], "record": [], "refused": []}
    with producer(settings, linger_ms=0) as sender:
        sender.send(ECHO_TOPIC, b"warm", partition=0).get(timeout=30)
        channel.tell("ready")
        channel.hear()
        held: list[dict[str, Any]] = []
        until, sequence = boot_us() + round(seconds * 1e6), 0
        while boot_us() < until or held:
            sequence += 1
            want = [{"queue": queue, "max": 1}] if boot_us() < until else []
            begun = boot_us()
            answer = post(connection, f"/v1/workers/turns-{os.getpid()}/sync", _sync_body(sequence, want, held))
            us = boot_us() - begun
            if held and answer["leases"]:
                took["sync"].append(us)
            took["refused"] += [us for status in answer["accepted"] if status["status"] != "ok"]
            held = answer["leases"]
            took["empty"].append(timed(lambda: _empty(connection)))
            took["record"].append(timed(lambda: sender.send(ECHO_TOPIC, b"{}", partition=0).get(timeout=30)))
    return {name: sorted(found) for name, found in took.items()}


def empty_calls(channel: Channel, _settings: Settings, *, api: str, workers: int, calls: int) -> float:
    """The floor: how many requests a second the same application answers that does nothing for them.

    Args:
        channel: to the parent, which says when to begin.
        api: address of the API.
        workers: threads.
        calls: of each.
    """

    def call() -> None:
        connection = HTTPConnection(urlsplit(api).netloc, timeout=60)
        for _ in range(calls):
            _empty(connection)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(workers)]
    channel.tell("ready")
    channel.hear()
    begun = boot_us()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return workers * calls / ((boot_us() - begun) / 1e6)


def _empty(connection: HTTPConnection) -> None:
    connection.request("GET", "/healthz")
    connection.getresponse().read()
