"""A connection that one thread reads and another one writes, with TLS or without."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from typing import Final

RECV_BYTES: Final = 256 * 1024


class FrameSocket:
    """A connected socket that two threads may use at once.

    OpenSSL allows one thread at a time to use a connection. So each call into the socket returns at once and holds a lock, and
    nothing is locked while a thread waits.

    Args:
        sock: connected; with TLS after its handshake.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()

    def receive(self, timeout_s: float) -> bytes:
        """The next bytes; empty: the other end has closed the connection, or it was shut here.

        Raises:
            OSError: the connection is broken, or nothing came in this time.
        """
        while True:
            try:
                with self._lock:
                    return self._sock.recv(RECV_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                if not self._wait(select.POLLIN, timeout_s):
                    raise TimeoutError(f"nothing was heard for {timeout_s:.1f} s") from None
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, timeout_s)

    def send(self, data: bytes) -> None:
        """Writes all of it, and waits until the other end, or `shut`, makes that possible or fail.

        Raises:
            OSError: the connection is broken, or was shut.
        """
        view = memoryview(data)
        while view:
            try:
                with self._lock:
                    sent = self._sock.send(view)
                view = view[sent:]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(select.POLLOUT, None)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, None)

    def shut(self) -> None:
        """Ends the connection; threads that wait for it wait no more."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # that of TLS must not be called beside another thread

    def close(self) -> None:
        """Closes the descriptor; by the thread that reads, after `shut`."""
        with self._lock:
            self._sock.close()

    def _wait(self, event: int, timeout_s: float | None) -> bool:
        if (fd := self._sock.fileno()) < 0:
            raise OSError("the connection was closed here")
        poll = select.poll()
        poll.register(fd, event)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
