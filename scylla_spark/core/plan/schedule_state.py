"""In which state people see a schedule: active, paused, or completed, which means that it can never fire again by itself.

A completed schedule is stored like any other: a run by hand, a backfill and a change are possible as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

from scylla_spark.core.plan.state.schedule_entry import PENDING_TRIGGER, Entry, Latch
from scylla_spark.core.plan.times.fire_times import Calendars, FireTimes
from scylla_spark.core.plan.triggers.trigger import AnyOf, AtTimes, Trigger

State = Literal["active", "paused", "completed"]
STATES: Final[tuple[State, ...]] = get_args(State)


def state_of(entry: Entry, calendars: Calendars, now: int) -> State:
    """In which state a schedule is.

    Args:
        entry: the schedule.
        calendars: days by name.
        now: microseconds since the epoch.
    """
    known = quick_state(entry)
    if known is not None:
        return known

    def comes(times: FireTimes) -> bool:
        return entry.next_us != 0 and times.next_after(entry.cursor_us, calendars) is not None

    return "active" if can_fire(entry.schedule.trigger, _collected(entry, now), comes) else "completed"


def quick_state(entry: Entry) -> State | None:
    """The state of a schedule, as far as it shows without a look at its definition, so that it is found of many at once.

    Returns:
        None: its trigger is a tree, which `state_of` looks at.
    """
    if entry.paused:
        return "paused"
    waits = any(job.state != PENDING_TRIGGER for job in entry.jobs.values())
    if waits or entry.runs or "time" not in entry.keys:  # what happens may always happen again
        return "active"
    if '"all"' in entry.text or '"any"' in entry.text:  # each tree has a node of such a kind
        return None
    return "active" if entry.next_us else "completed"


def can_fire(trigger: Trigger, latches: Mapping[int, Latch], comes: Callable[[FireTimes], bool]) -> bool:
    """Returns True if a trigger can hold, now or later.

    Args:
        trigger: the tree.
        latches: number of a leaf, in the order of `leaves`, → what it has seen in the round that is collected.
        comes: whether a series of times has one that is not decided yet.
    """
    possible, _ = _can_fire(trigger, latches, comes, 0)
    return possible


def _can_fire(
    node: Trigger, latches: Mapping[int, Latch], comes: Callable[[FireTimes], bool], first: int
) -> tuple[bool, int]:
    """Whether a node can hold whose first leaf has a number, and the number after its last leaf."""
    if isinstance(node, AtTimes):
        return latches.get(first, Latch()).fired or comes(node.times), first + 1
    if not isinstance(node, AnyOf):
        return True, first + 1
    possible = 0
    for branch in node.branches:
        if possible >= node.at_least:  # the others only number their leaves
            comes = _unasked
        one, first = _can_fire(branch, latches, comes, first)
        possible += one
    return possible >= node.at_least, first


def _unasked(_: FireTimes) -> bool:
    return False


def _collected(entry: Entry, now: int) -> Mapping[int, Latch]:
    """Returns what the round has seen that is collected; one that has waited for too long is dropped with the next thing that comes."""
    job = entry.collecting
    if job is None or job.first_us + entry.schedule.policies.timeout_us <= now:
        return {}
    return job.latches
