"""Lateness: how long after it could start at the earliest an attempt starts. `io.delta.rows.could_start_us` says the same of rows."""

from __future__ import annotations


def could_start_us(due_us: int, enqueued_us: int) -> int:
    """When an attempt could start at the earliest: when it was due, or at the enqueueing of its task if that was later.

    Args:
        due_us: scheduled time of its task, or the end of the wait after the attempt before.
        enqueued_us: newest enqueueing of its task; 0: not known.
    """
    return max(due_us, enqueued_us)


def lateness_us(at_us: int, planned_us: int) -> int:
    """How late an attempt is that starts at an instant; 0 where the clocks of two machines make it early.

    Args:
        at_us: its start, or now for one that has not started.
        planned_us: when it could start at the earliest, see `could_start_us`.
    """
    return max(at_us - planned_us, 0)
