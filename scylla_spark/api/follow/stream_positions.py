"""The position of a reader of the stream as text: the next offset of each partition of `outcomes`, with the epoch of its fence.

The text is the id of an event; who comes back with it goes on there: `0:1234.5,1:99.3`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from scylla_spark.errors import ArgumentError

_PART: Final = re.compile(r"(\d{1,4}):(\d{1,19})\.(\d{1,19})")
_MOST_CHARS: Final = 30_000


class Position(NamedTuple):
    """Next offset of a partition, and the epoch of the fence in force there; 0: none is known."""

    offset: int
    epoch: int = 0


def positions_text(positions: Mapping[int, Position]) -> str:
    """Positions as text."""
    return ",".join(f"{number}:{one.offset}.{one.epoch}" for number, one in sorted(positions.items()))


def read_positions(text: str, partitions: int) -> dict[int, Position]:
    """Positions of a text.

    Args:
        text: of `positions_text`.
        partitions: how many there must be.

    Raises:
        ArgumentError: it is none, or of another deployment.
    """
    found: dict[int, Position] = {}
    parts = text.split(",") if len(text) <= _MOST_CHARS else []
    for part in parts:
        match = _PART.fullmatch(part.strip())
        if match is None:
            break
        found[int(match[1])] = Position(int(match[2]), int(match[3]))
    if len(found) != len(parts) or found.keys() != set(range(partitions)):
        raise ArgumentError(
            "Last-Event-ID is not the id of an event of this stream.", hint="Omit it to start with new events."
        )
    return found
