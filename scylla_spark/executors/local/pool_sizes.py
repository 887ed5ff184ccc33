"""The sizes of a pool."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of a pool.

    Attributes:
        min_children: how many are kept.
        fast_children: how many handlers that take less than a millisecond may occupy (usually: one per core).
        max_children: how many there may be.
        idle_us: after how long without work a child above the minimum goes.
        grace_ms: from SIGTERM to SIGKILL.
        longest_ms: how long a call may run at most if it asks for longer than its timeout.
    """

    min_children: int
    fast_children: int
    max_children: int
    idle_us: int
    grace_ms: int
    longest_ms: int = 0
