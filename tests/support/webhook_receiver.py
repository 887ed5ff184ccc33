"""A receiver of webhooks on this machine that answers as told, and keeps what came."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HANG = -1
TRICKLE = -2


class Received(NamedTuple):
    """One request.

    Attributes:
        headers: by names in small letters.
        body: as it came.
    """

    headers: Mapping[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The body as the JSON object that it is."""
        found: dict[str, Any] = json.loads(self.body)
        return found


class Receiver:
    """Answers with one status after the other, and with the last one for ever.

    Args:
        answers: statuses, each alone or with headers; `HANG` answers nothing, `TRICKLE` a header line now and then.

    Attributes:
        received: what came, in order.
        url: of it.
    """

    def __init__(self, *answers: int | tuple[int, Mapping[str, str]]) -> None:
        self.received: list[Received] = []
        self.closed = threading.Event()
        self._answers: Sequence[int | tuple[int, Mapping[str, str]]] = answers or (204,)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append(Received({k.lower(): v for k, v in self.headers.items()}, body))
                receiver.answer(self, len(receiver.received))

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?x=1"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, number: int) -> None:
        """Answers the request of that number."""
        one = self._answers[min(number, len(self._answers)) - 1]
        status, headers = (one, {}) if isinstance(one, int) else one
        if status == HANG:
            self.closed.wait(60)
            return
        if status == TRICKLE:
            self._trickle(request)
            return
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", "2")
        request.end_headers()
        request.wfile.write(b"ok")

    def _trickle(self, request: BaseHTTPRequestHandler) -> None:
        try:
            request.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not self.closed.wait(0.05):
                request.wfile.write(b"X-More: x\r\n")
        except OSError:
            return


@contextmanager
def receiving(*answers: int | tuple[int, Mapping[str, str]]) -> Iterator[Receiver]:
    """A receiver, until the block ends."""
    receiver = Receiver(*answers)
    try:
        yield receiver
    finally:
        receiver.closed.set()
        receiver.server.shutdown()
        receiver.server.server_close()
