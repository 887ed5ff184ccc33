"""A TCP proxy that breaks connections again and again, or carries nothing in one direction: what a client sees of a bad network."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class CuttingProxy:
    """Carries bytes to a port of this machine, and breaks all connections every so often.

    Args:
        port: where to.
        every_s: how long connections live at most, in seconds; None: no connection is broken.
        listen: address and port that clients connect to; port 0: any.

    Attributes:
        there: while it is not set, bytes of clients are kept back.
        back: while it is not set, bytes for clients are kept back.
    """

    def __init__(self, port: int, every_s: float | None, *, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._port = port
        self._every_s = every_s
        self._server = socket.create_server(listen)
        self.there, self.back = threading.Event(), threading.Event()
        self.there.set()
        self.back.set()
        self._ended = threading.Event()
        self._open: set[socket.socket] = set()
        self.cuts = 0
        self.port: int = self._server.getsockname()[1]

    def __enter__(self) -> CuttingProxy:
        for work in (self._accept, self._cut):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.there.set()
        self.back.set()
        self._break_all()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._server.accept()
            except OSError:
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._port), timeout=5)
            except OSError:
                near.close()  # no process listens there now
                continue
            far.settimeout(None)
            self._open |= {near, far}
            for one, other, gate in ((near, far, self.there), (far, near, self.back)):
                threading.Thread(target=self._carry, args=(one, other, gate), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                gate.wait()
                other.sendall(data)
        gate.wait()  # the end of a connection is not carried, either
        for end in (one, other):
            self._break(end)

    def _cut(self) -> None:
        while not self._ended.wait(self._every_s):
            self.cuts += bool(self._open)
            self._break_all()

    def _break_all(self) -> None:
        for end in list(self._open):
            self._break(end)

    def _break(self, end: socket.socket) -> None:
        self._open.discard(end)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
