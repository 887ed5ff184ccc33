"""How a Spark worker tells the driver, while its job runs, which handlers have begun: Spark itself tells only at the end.

The worker sends datagrams again and again as long as the handlers run, so a lost one does no harm. Each carries a
signature, made with a secret that travels with the job: nobody else can name a task as begun. Where datagrams do not get
through (a firewall), no task of the Spark pool counts as begun before its outcome is there, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

_DIGEST: Final = "sha256"
_DIGEST_BYTES: Final = 32
_MOST_BYTES: Final = 60_000
_MOST_IDS: Final = 500
_MAX_US: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Address:
    """Where to tell, and what to sign it with."""

    host: str
    port: int
    secret: bytes = field(repr=False)


class BegunListener:
    """The driver's end.

    Args:
        bind: address to listen on.
        host: the name under which workers reach it.
        heard: called from a thread of its own with id → wall clock of the start; may name what has ended long ago.
    """

    def __init__(self, bind: str, host: str, heard: Callable[[Mapping[int, int]], None]) -> None:
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((bind, 0))
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_bytes(32))
        self._heard = heard
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="spark-pool-begun", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and frees the port."""
        self._closing = True
        with contextlib.suppress(OSError), socket.socket(self._socket.family, socket.SOCK_DGRAM) as wake:
            wake.sendto(b"", self._socket.getsockname())
        self._thread.join(5)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                return
            if self._closing:
                return
            if begun := read(self.address.secret, data):
                self._heard(begun)


class Teller:
    """A worker's end.

    Args:
        address: of the driver.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def tell(self, begun: Mapping[int, int]) -> None:
        """Sends id → wall clock of the start; if that cannot be, it is not sent."""
        try:
            if self._socket is None:
                self._socket = _reach(self._address)
            for data in messages(self._address.secret, begun.items()):
                self._socket.send(data)
        except OSError:
            self._socket = None


def _reach(address: Address) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    sock.connect(place)
    return sock


def messages(secret: bytes, begun: Iterable[tuple[int, int]]) -> list[bytes]:
    """Signed datagrams that tell this."""
    pairs = list(begun)
    bodies = [json.dumps(pairs[at : at + _MOST_IDS]).encode() for at in range(0, len(pairs), _MOST_IDS)]
    return [hmac.digest(secret, body, _DIGEST) + body for body in bodies]


def read(secret: bytes, data: bytes) -> dict[int, int]:
    """What a datagram tells; nothing if it was not made by `messages` with this secret."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if len(data) > _MOST_BYTES or not hmac.compare_digest(digest, hmac.digest(secret, body, _DIGEST)):
        return {}
    try:
        return {
            number: started
            for number, started in json.loads(body)
            if type(number) is int and type(started) is int and 0 <= started <= _MAX_US
        }
    except (ValueError, TypeError, RecursionError):
        return {}
