"""What a dispatcher knows of an attempt under way that no fact tells: who has it, when that one was heard of, how long it may go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scylla_spark.clock import iso
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.lane import Entry
from scylla_spark.core.engine.leases.worker_session import Lease
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.tasks.key import TaskKey


def describe_attempt(engine: Engine, now: int, key: TaskKey, began_us: Mapping[int, int]) -> dict[str, Any]:
    """The attempt of a task that is under way; `known` is false where none is.

    Args:
        engine: of this dispatcher, asked in its thread.
        now: microseconds since the epoch.
        key: of the task.
        began_us: invocation id → wall clock at which its handler began, of all that run.
    """
    entry = _entry(engine, key)
    lease = engine.lease_of(entry) if entry is not None else None
    if lease is not None:
        return _leased(lease) if lease.held else {"known": False}
    run = next((run for run in engine.runs.values() if run.entry is entry and run.invocation.id in began_us), None)
    return {"known": False} if run is None else _running(run, began_us[run.invocation.id], now)


def _entry(engine: Engine, key: TaskKey) -> Entry | None:
    lanes = (partition.lanes.get(key.ordering_id) for partition in engine.partitions.values())
    return next((entry for lane in lanes if lane is not None and (entry := lane.find(key)) is not None), None)


def _leased(lease: Lease) -> dict[str, Any]:
    note = lease.note
    return {
        **note.said, "known": True, "attempt": lease.run.invocation.attempt,
        "heard_at": iso(lease.heard_us) if lease.heard_us else None,
        "lease_until": iso(lease.deadline_us) if lease.deadline_us != NEVER else None, "deadline": iso(note.until_us),
    }  # fmt: skip


def _running(run: Run, began_us: int, now: int) -> dict[str, Any]:
    """Of what runs in a child of this dispatcher: that it still does is known now."""
    invocation = run.invocation
    return {
        "known": True, "attempt": invocation.attempt, "heard_at": iso(now),
        "deadline": iso(began_us + invocation.timeout_ms * 1000),
    }  # fmt: skip
