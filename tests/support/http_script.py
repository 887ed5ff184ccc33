"""Small HTTP servers for tests of clients: one that answers from a list, and one that plays the other side of a worker's conversation."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    """What came."""

    method: str
    path: str
    headers: Any
    body: Any


class Half(NamedTuple):
    """Status and document of an answer that breaks off in its middle.

    Attributes:
        tells_length: whether its header says how much should have come; otherwise it says that it is JSON.
    """

    status: int
    document: Any
    tells_length: bool = True


def lease_view(
    number: int,
    *,
    handler: str | None = "h",
    payload: Any = None,
    checkpoint: Any = None,
    last_error: Any = None,
    beat_ms: int = 3_000,
    uniqueness_key: str = "u",
) -> dict[str, Any]:
    """A lease as the API tells of it."""
    return {
        "lease": f"0.{number + 1:032x}", "expires_in_ms": 10_000, "beat_every_ms": beat_ms, "max_ms": 60_000,
        "task": {
            "id": f"id{number}", "scheduled_time": "2026-01-31T09:00:00Z", "ordering_id": f"lane{number}", "uniqueness_key": uniqueness_key,
            "handler": handler, "queue": "q", "priority": 0, "payload": {} if payload is None else payload, "attempt": 1, "epoch": "5",
            "checkpoint": checkpoint, "last_error": last_error,
        },
    }  # fmt: skip


class Script:
    """Answers each request with the next pair of status and document, the last one again and again."""

    def __init__(self, answers: list[tuple[int, Any]] | None = None) -> None:
        self.requests: list[Request] = []
        self._answers = list(answers or [])
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = json.loads(text) if text else None
                answer = script.answer(Request(self.command, self.path, self.headers, body))
                if answer is None:
                    self.close_connection = True
                    return
                told = json.dumps(answer[1]).encode()
                self.close_connection = half = isinstance(answer, Half)
                self.send_response(answer[0])
                if not half or answer.tells_length:
                    self.send_header("Content-Length", str(len(told)))
                else:
                    self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(told[: len(told) // 2] if half else told)

            do_GET = do_POST = do_PUT = do_DELETE = _serve

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients may go whenever they like
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: Request) -> tuple[int, Any] | Half | None:
        """Status and document; None: the connection is closed instead."""
        self.requests.append(request)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class SyncScript(Script):
    """Gives out so many tasks, holds calls until there is something to tell, and answers what is overtaken.

    Args:
        tasks: how many there are.
        beat_ms: how often leases ask for a call.
        broken: so many calls are not answered, from the second on.
        once: tasks end with being handed over: a lease has no token.
    """

    def __init__(self, tasks: int, beat_ms: int = 3_000, broken: int = 0, *, once: bool = False) -> None:
        super().__init__()
        self.results: list[Any] = []
        self.broken: list[Any] = []
        self.calls = self.longest_wait_ms = 0
        self.waits = self.left = self.replaced = False
        self.ordered = ""
        self._tasks, self._given, self._beat_ms, self._once = tasks, 0, beat_ms, once
        self._break, self._newest = broken, 0
        self._changed = threading.Condition()

    def answer(self, request: Request) -> tuple[int, Any] | Half | None:
        """Plays the server."""
        with self._changed:
            if request.method == "DELETE":
                self.left = True
                self._changed.notify_all()
                return 200, {"given_back": 0}
            body = request.body
            self.calls += 1
            self.longest_wait_ms = max(self.longest_wait_ms, body["wait_ms"])
            self._newest = max(self._newest, body["seq"])
            self._changed.notify_all()
            if body["seq"] == 2 and len(self.broken) < self._break:
                self.broken.append(body)
                return None
            return self._sync(body)

    def replace(self) -> None:
        """Another process works in the worker's name from now on: it hears so at once, also if its call waits."""
        with self._changed:
            self.replaced = True
            self._changed.notify_all()

    def order(self, order: str) -> None:
        """An operator wants the worker to drain or to stop: it hears so at once, and is leased nothing more."""
        with self._changed:
            self.ordered = order
            self._changed.notify_all()

    def _sync(self, body: Any) -> tuple[int, Any]:
        self.results += body["results"]
        if not self._may_lease(body) and not body["results"] and body["want"]:
            self.waits = True
            over = lambda: self.left or self.replaced or self.ordered or self._newest > body["seq"]  # noqa: E731
            self._changed.wait_for(over, body["wait_ms"] / 1000)
            self.waits = False
        if self.replaced:
            return 409, {"type": "/problems/worker-replaced", "title": "t", "detail": "d"}
        if self._newest > body["seq"]:
            return 409, {"type": "/problems/superseded", "title": "t", "detail": "d"}
        leases = []
        while self._may_lease(body) and len(leases) < body["want"][0]["max"]:
            leases.append(self.view(self._given))
            self._given += 1
        accepted = [{"lease": one["lease"], "status": "ok"} for one in body["results"] + body.get("progress", [])]
        return 200, {
            "seq": body["seq"],
            "accepted": accepted,
            "leases": leases,
            "lost": [],
            "commands": [{"type": self.ordered, "lease": None, "grace_ms": None}] if self.ordered else [],
            "queues": [],
        }

    def view(self, number: int) -> dict[str, Any]:
        """The lease of that number, from 0."""
        lease = lease_view(number, payload={"n": number}, beat_ms=self._beat_ms)
        return lease | {"lease": ""} if self._once else lease

    @property
    def given(self) -> int:
        """Returns how many tasks are given out."""
        return self._given

    def _may_lease(self, body: Any) -> bool:
        return not self.ordered and self._given < self._tasks and bool(body["want"]) and body["want"][0]["max"] > 0
