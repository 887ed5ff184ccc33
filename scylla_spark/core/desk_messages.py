"""What the API and a dispatcher say to each other about leases: one JSON array per line, its kind first.

Both ends first prove that they know the secret: the dispatcher sends `["hello", VERSION, nonce]`, the API answers
`["hello", proof of that nonce, nonce]`, the dispatcher `["welcome", proof of that one]`. Durations travel, never instants.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from scylla_spark.core.lease import Answer, Call

VERSION: Final = 2
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
HELLO: Final = "hello"
WELCOME: Final = "welcome"
CALL: Final = "call"
ANSWER: Final = "answer"
HANG_UP: Final = "hang_up"
LEAVE: Final = "leave"
WORKERS: Final = "workers"
QUEUE: Final = "queue"
OUTPUT: Final = "output"
TOLD: Final = "told"

_read_call = TypeAdapter(Call).validate_python
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


def read_call(value: Any) -> Call:
    """A call as it travels; its `until_us` is how long it may wait, in microseconds.

    Raises:
        ValueError: it is none.
    """
    return _read_call(value)


def read_answer(value: Any) -> Answer:
    """An answer as it travels; `until_us` of leases is how long they can be kept, in microseconds, and `oldest_us` of queues an age.

    Raises:
        ValueError: it is none.
    """
    return _read_answer(value)


def proof(secret: str, nonce: str) -> str:
    """What only those can say who know the secret."""
    return hmac.new(secret.encode(), nonce.encode(errors="replace"), hashlib.sha256).hexdigest()


def proves(said: object, secret: str, nonce: str) -> bool:
    """Whether somebody said that.

    Args:
        said: as it came.
        secret: that both know.
        nonce: that was asked with.
    """
    return isinstance(said, str) and hmac.compare_digest(said.encode(errors="replace"), proof(secret, nonce).encode())
