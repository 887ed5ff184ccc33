"""How much of what is open one scan may load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ROW_BYTES: Final = 1024  # of a task without its payload
MOST_BYTES: Final = 256 * 1024 * 1024  # of one queue's rows in one scan


class Budget(NamedTuple):
    """How much of each queue may be loaded.

    Attributes:
        rows: most tasks of a queue.
        most_bytes: most bytes of them, payloads included; the first task of a queue is kept whatever its size.
        listed: names of queues that have a budget of their own; all others, whose names come from data, share one.
        paused: names of queues of which nothing starts.
    """

    rows: int
    most_bytes: int = 1 << 62
    listed: Sequence[str] = ()
    paused: Sequence[str] = ()
