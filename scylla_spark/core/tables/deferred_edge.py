"""Near and far: tasks due before an edge stand in `tasks` alone, later ones also in `deferred`.

The edge is `folded_until` of a progress that was read before; an older one gives the same rows, only slower.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ALL_FOLDED_US: Final = 1 << 62  # later than any task: nothing is far


def is_far(time_us: int, edge_us: int) -> bool:
    """Whether a task that is due then (microseconds since the epoch) may stand in `deferred`."""
    return time_us >= edge_us


def reaches_far(until_us: int | None, edge_us: int) -> bool:
    """Whether a task due up to an instant, itself included, may be far; None: due at any time."""
    return edge_us < ALL_FOLDED_US and (until_us is None or is_far(until_us, edge_us))


def common_edge(edges_us: Iterable[int]) -> int:
    """The edge of several partitions together: that of the one that is least far."""
    return min(edges_us, default=ALL_FOLDED_US)
