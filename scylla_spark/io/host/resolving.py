"""Names of hosts resolved within a time: the system's resolver takes none, so it is asked in a thread that can be left behind."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

_MOST: Final = 16
_asking: Final = threading.BoundedSemaphore(_MOST)


def resolved(host: str, port: int, within_s: float) -> list[tuple[Any, ...]]:
    """Returns what `socket.getaddrinfo` says of a host for TCP.

    A resolver that does not answer costs a thread until the system gives up; there are sixteen at most.

    Args:
        host: name or address.
        port: of TCP.
        within_s: longest that it may take, seconds.

    Raises:
        OSError: there is no such host, or no thread could be started.
        TimeoutError: the resolver did not answer in time, or too many others are still waited for.
    """
    if not _asking.acquire(timeout=max(within_s, 0)):
        raise TimeoutError("too many names wait for the resolver")
    told: queue.SimpleQueue[list[tuple[Any, ...]] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            told.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except Exception as error:  # also a UnicodeError of a name that is none
            told.put(error if isinstance(error, OSError) else OSError(str(error)))
        finally:
            _asking.release()

    _begin(ask)
    try:
        found = told.get(timeout=max(within_s, 0))
    except queue.Empty:
        raise TimeoutError("the resolver did not answer in time") from None
    if isinstance(found, Exception):
        raise found
    return found


def _begin(ask: Callable[[], None]) -> None:
    """Starts a thread that gives its place back at its end; one that does not start has no end."""
    try:
        threading.Thread(target=ask, name="resolver", daemon=True).start()
    except RuntimeError as error:
        _asking.release()
        raise OSError(str(error)) from error
