"""What the API and a dispatcher say to each other about leases: one JSON array per line, its kind first.

Both ends first prove that they know the secret: the dispatcher sends `["hello", VERSION, nonce]`, the API answers
`["hello", proof, nonce]`, the dispatcher `["welcome", proof]`. A proof covers both nonces, who speaks, and the address of the desk:
who listens where a dispatcher was once learns nothing that opens another desk. Durations travel, never instants.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from scylla_spark.core.leases.messages import Answer, Call

VERSION: Final = 9
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
HELLO: Final = "hello"
CALLER: Final = "caller"
WELCOME: Final = "welcome"
CALL: Final = "call"
ANSWER: Final = "answer"
HURRY: Final = "hurry"  # these calls are to be answered with what there is
LEAVE: Final = "leave"
ORDER: Final = "order"  # a worker is to drain or to stop; the answer is whether it is known
WORKERS: Final = "workers"
SPARK_WORKERS: Final = "spark_workers"
DRAIN_SPARK_WORKER: Final = "drain_spark_worker"  # the answer is whether it is known
QUEUE: Final = "queue"
OUTPUT: Final = "output"
LINES: Final = "lines"
TOLD: Final = "told"
PING: Final = "ping"  # say `PONG` with the same number when all calls that have come by now were handed on
PONG: Final = "pong"

_REQUESTS: Final[dict[str, TypeAdapter[Any]]] = {
    CALL: TypeAdapter(tuple[Call]),
    HURRY: TypeAdapter(tuple[list[int]]),
    LEAVE: TypeAdapter(tuple[int, str, str]),
    ORDER: TypeAdapter(tuple[int, str, str]),
    WORKERS: TypeAdapter(tuple[int]),
    SPARK_WORKERS: TypeAdapter(tuple[int]),
    DRAIN_SPARK_WORKER: TypeAdapter(tuple[int, str]),
    QUEUE: TypeAdapter(tuple[int, str]),
    OUTPUT: TypeAdapter(tuple[int, str, list[Any] | None]),
    LINES: TypeAdapter(tuple[int, str, list[Any]]),
    PONG: TypeAdapter(tuple[int]),
}
"""What the API says to a desk: kind → types of its values."""
_read_answer = TypeAdapter(Answer).validate_python


def line(kind: str, *values: Any) -> bytes:
    """One message."""
    return bytes(to_json((kind, *values))) + b"\n"


def read_line(text: bytes) -> list[Any]:
    """The kind of a message and its values.

    Raises:
        ValueError: it is no message.
    """
    found = from_json(text)
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise ValueError("a message is an array with its kind first")
    return found


def read_request(text: bytes) -> tuple[str, tuple[Any, ...]]:
    """Returns what the API says to a desk: its kind, and its values, of the types that they should be.

    The `until_us` of a call is how long it may wait, in microseconds.

    Raises:
        ValueError: it is nothing that the API says.
    """
    kind, *values = read_line(text)
    if kind not in _REQUESTS:
        raise ValueError(f"a desk is never told {kind[:40]!r}")
    return kind, _REQUESTS[kind].validate_python(values)


def read_answer(value: Any) -> Answer:
    """An answer as it travels; `until_us` of leases is how long they can be kept, in microseconds, and `oldest_us` of queues an age.

    Raises:
        ValueError: it is none.
    """
    return _read_answer(value)


class Handshake(NamedTuple):
    """What a proof covers.

    Attributes:
        address: of the desk, as it tells it and as it was called.
        desk: nonce of the desk.
        caller: nonce of the API.
    """

    address: str
    desk: str
    caller: str

    def proof(self, secret: str, speaker: str) -> str:
        """Returns what only those can say who know the secret; `speaker` is `CALLER` or `WELCOME`."""
        text = to_json((VERSION, speaker, *self))
        return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()

    def proves(self, said: object, secret: str, speaker: str) -> bool:
        """Returns True if somebody said that.

        Args:
            said: as it came.
            secret: that both know.
            speaker: who said it.
        """
        return isinstance(said, str) and hmac.compare_digest(
            said.encode(errors="replace"), self.proof(secret, speaker).encode()
        )
