"""How a Spark worker and its dispatcher prove to each other that they know the key of the worker's job.

Both choose a nonce, and each shows a digest of the other's nonce under the key (HMAC-SHA-256, RFC 2104), with its role and the id of
the worker. So a listener in between learns nothing that it could use for another connection.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any, Final, NamedTuple

from scylla_spark.executors.remote.remote_worker import Hello
from scylla_spark.handlers.framing import ProtocolError

VERSION: Final = 3
MAX_HELLO_BYTES: Final = 512
"""Most bytes of the first message."""
MAX_INTRODUCTION_BYTES: Final = 1024 * 1024
"""Most bytes of the message with the proof, which names all handlers."""
_DISPATCHER: Final = "dispatcher"
_WORKER: Final = "worker"
_MOST_TEXT: Final = 300
_MOST_HANDLERS: Final = 10_000


class Ticket(NamedTuple):
    """What a job carries so that its worker can connect. It is a secret.

    Attributes:
        worker_id: unique in the application.
        key: 32 random bytes, known to this job and its dispatcher alone.
        host: where the dispatcher listens.
        port: there.
        certificate: SHA-256 of the dispatcher's certificate; empty: no TLS.
        lease_us: how long a lease lasts.
    """

    worker_id: str
    key: bytes
    host: str
    port: int
    certificate: bytes
    lease_us: int

    def __repr__(self) -> str:
        """Without the key."""
        return f"Ticket({self.worker_id!r}, {self.host}:{self.port})"


class Greeting(NamedTuple):
    """The first message of a worker."""

    version: int
    worker_id: str
    nonce: str


class Introduction(NamedTuple):
    """The message of a worker that proves who it is, and says what it has.

    Attributes:
        proof: see `proof_of_worker`.
        received: number of the last frame that it has taken; None: it connects for the first time.
        hello: what it says of itself.
    """

    proof: str
    received: int | None
    hello: Hello


def nonce() -> str:
    """128 random bits, as hexadecimal digits."""
    return secrets.token_hex(16)


def proof_of_dispatcher(key: bytes, worker_id: str, theirs: str, ours: str) -> str:
    """Returns what a dispatcher answers to the greeting of a worker.

    Args:
        key: of the job.
        worker_id: of the job.
        theirs: nonce of the worker.
        ours: nonce of the dispatcher.
    """
    return _digest(key, _DISPATCHER, worker_id, theirs, ours)


def proof_of_worker(key: bytes, worker_id: str, theirs: str, ours: str) -> str:
    """Returns what a worker answers to the proof of its dispatcher.

    Args:
        key: of the job.
        worker_id: of the job.
        theirs: nonce of the dispatcher.
        ours: nonce of the worker.
    """
    return _digest(key, _WORKER, worker_id, theirs, ours)


def is_equal(one: str, other: str) -> bool:
    """Compares two proofs in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def read_greeting(value: object) -> Greeting:
    """The first message of a connection.

    Raises:
        ProtocolError: it is none.
    """
    if type(value) is not list or len(value) != 3:
        raise ProtocolError("a greeting that has not three fields")
    version, worker_id, chosen = value
    if type(version) is not int or not all(type(text) is str and 0 < len(text) <= 100 for text in (worker_id, chosen)):
        raise ProtocolError("a greeting without version, id and nonce")
    return Greeting(version, worker_id, chosen)


def read_introduction(value: object) -> Introduction:
    """The second message of a worker.

    Raises:
        ProtocolError: it is none.
    """
    if type(value) is not list or len(value) != 5:
        raise ProtocolError("an introduction that has not five fields")
    proof, received, executor_id, host, handlers = value
    if not all(type(text) is str and len(text) <= _MOST_TEXT for text in (proof, executor_id, host)):
        raise ProtocolError("an introduction without proof, executor and host")
    if received is not None and not (type(received) is int and 0 <= received < 1 << 62):
        raise ProtocolError("an introduction without the number of a frame")
    if type(handlers) is not dict or len(handlers) > _MOST_HANDLERS:
        raise ProtocolError("an introduction without handlers")
    if not all(type(digest) is str and len(digest) <= _MOST_TEXT for digest in handlers.values()):
        raise ProtocolError("a handler without the digest of its definition")
    return Introduction(proof, received, Hello(executor_id, host, handlers))


def introduction(proof: str, received: int | None, hello: Hello) -> list[Any]:
    """The message that `read_introduction` reads.

    Args:
        proof: see `Introduction`.
        received: see `Introduction`.
        hello: see `Introduction`.
    """
    return [proof, received, hello.executor_id, hello.host, dict(hello.handlers)]


def _digest(key: bytes, role: str, worker_id: str, theirs: str, ours: str) -> str:
    return hmac.digest(key, "\0".join((role, worker_id, theirs, ours)).encode(), "sha256").hex()
