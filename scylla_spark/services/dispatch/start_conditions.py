"""The conditions under which a dispatcher starts a task, in the order in which they are checked; see `core.tasks.state.Condition`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from scylla_spark.clock import iso
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.lane import NEVER_EXPIRES_US, Entry, Lane, LaneState
from scylla_spark.core.engine.partition import Partition, PartitionState
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.attempt_note import said_last
from scylla_spark.core.tasks.key import TaskKey, place_of
from scylla_spark.core.tasks.state import NO_HANDLER, Condition, first_reason
from scylla_spark.executors.interface import Shortage

Shortages = Mapping[str, Shortage]
NO_SHORTAGES: Final[Shortages] = MappingProxyType({})
_MOST_HOLDERS: Final = 3


def why_lane(engine: Engine, partition: Partition, lane: Lane, now: int, shortages: Shortages) -> str:
    """The reason why the head of a lane does not run, or what it does, as a sentence; see `start_conditions`.

    Args:
        engine: of this dispatcher.
        partition: of the lane.
        lane: which one.
        now: microseconds since the epoch.
        shortages: see `Dispatcher.shortages`.
    """
    head = lane.active or lane.head()
    if head is not None:
        return first_reason(start_conditions(engine, partition, lane, head, now, shortages))
    return first_reason(
        [
            _served(partition),
            *_leased(engine, lane, now),
            Condition("", False, "", "Its tasks are being read from the tables."),
        ]
    )


def start_conditions(
    engine: Engine, partition: Partition, lane: Lane, entry: Entry, now: int, shortages: Shortages
) -> list[Condition]:
    """The conditions of a loaded task. Those of what is under way are there only where they are not met.

    Args:
        engine: of this dispatcher, asked in its thread.
        partition: of the task.
        lane: of the task.
        entry: the task.
        now: microseconds since the epoch.
        shortages: see `Dispatcher.shortages`.
    """
    head = lane.active or lane.head()
    is_head = head is None or head is entry
    found = [_served(partition)]
    if is_head:
        found += [*_leased(engine, lane, now), *_under_way(engine, partition, lane, entry, now, shortages)]
        before = why = ""
    else:
        assert head is not None
        before = f"before it: {head.key}"
        why = f"It waits for {head.key}, which is before it in lane {entry.key.ordering_id!r}: "
        why += why_lane(engine, partition, lane, now, shortages)
    found += [
        Condition("it is the head of its lane", is_head, before, why),
        _due(entry, now),
        _scanned(partition, entry.key),
    ]
    last = (
        ""
        if entry.expires_us >= NEVER_EXPIRES_US
        else f" It expires at {iso(entry.expires_us)} unless it begins before."
    )
    short = shortage_of(engine, partition, lane, now, shortages) if is_head else None
    found += [one._replace(why=one.why + last) for one in _of_ready(engine, partition, lane, entry, now)]
    waits = lane.state in (LaneState.READY, LaneState.WAITING) and all(one.met for one in found)
    return [*found, _runner(engine, entry.data, short, last, met=short is None and not waits)]


def why_unheld(engine: Engine, key: TaskKey) -> list[Condition]:
    """The conditions of a task that this dispatcher does not hold.

    Args:
        engine: of this dispatcher, asked in its thread.
        key: of the task.
    """
    partition = engine.partitions.get(place_of(key.ordering_id, engine.limits.partitions))
    if partition is None:
        return []
    horizon = iso(partition.horizon_us)
    return [
        _served(partition),
        Condition(
            "it comes within the look-ahead",
            key.time_us <= partition.horizon_us,
            f"which ends at {horizon}",
            f"Its dispatcher loads it when it comes within the look-ahead, which ends at {horizon} now.",
        ),
        _scanned(partition, key)._replace(
            why=f"Its dispatcher reads it from the tables: {_scanned_so_far(partition)}."
        ),
        Condition(
            "its lane is not left in the tables",
            not _is_left(partition, key),
            "lanes are left there while more is open than is loaded at once",
            "Its dispatcher has left it in the tables, because more is open than it loads at once; it is read when there is room.",
        ),
        Condition(
            "its dispatcher has loaded it",
            False,
            "",
            "Its dispatcher does not hold it: it has ended a moment ago, or its record has not been read yet.",
        ),
    ]


def shortage_of(engine: Engine, partition: Partition, lane: Lane, now: int, shortages: Shortages) -> Shortage | None:
    """The shortage of Spark workers that keeps the head of a lane waiting; also where their pool has it already.

    Args:
        engine: of this dispatcher.
        partition: of the lane.
        lane: which one.
        now: microseconds since the epoch.
        shortages: see `Dispatcher.shortages`.
    """
    head = lane.active or lane.head()
    found = None if head is None else shortages.get(engine.executor_of(head.data))
    if head is None or found is None or partition.state is not PartitionState.ACTIVE:
        return None
    if not found.covers(head.data.handler or engine.policy(head.data).handler):
        return None
    if lane.state is LaneState.RUNNING:
        runs = found.held and any(run.entry is head and run.invocation.id in found.held for run in engine.runs.values())
        return None if runs else found
    closed = not all(one.met for one in engine.gate(head.data.queue).conditions(lane.ordering_id, now))
    hindered = closed or engine.held_up(partition) or engine.rate_limit(head.data, now)
    return found if lane.state is LaneState.READY and not hindered else None


def holders(engine: Engine, command: Command) -> list[tuple[str, int]]:
    """The queues that hold most children of the executor of a task, and how many each holds."""
    held = engine.held_children(engine.policy(command).executor)
    return sorted(held.items(), key=lambda one: (-one[1], one[0]))[:_MOST_HOLDERS]


def _served(partition: Partition) -> Condition:
    state = f"{partition.number} is {partition.state}"
    served = partition.state is PartitionState.ACTIVE
    return Condition("its partition is served", served, state, f"Its partition {state} and releases nothing.")


def _leased(engine: Engine, lane: Lane, now: int) -> list[Condition]:
    lease = next((lease for lease in engine.leases if lease.run.lane is lane), None)
    if lease is None:
        return []
    left_s = max(lease.deadline_us - now, 0) / 1e6
    why = f"Worker {lease.note.worker!r} has {lease.run.entry.key}, attempt {lease.run.invocation.attempt}; without a sign of life "
    return [Condition("no worker has it", False, "", f"{why}its lease ends in {left_s:.1f} s.{said_last(lease.note)}")]


def _under_way(
    engine: Engine, partition: Partition, lane: Lane, head: Entry, now: int, shortages: Shortages
) -> list[Condition]:
    """Returns what has begun for the head of a lane and has not ended."""
    if head.undecided:
        why = "The tables are asked whether an earlier task that is open has its name, which is to be unique."
        return [Condition("it is known to be the only one of its name", False, "", why)]
    if lane.state is LaneState.RUNNING and shortage_of(engine, partition, lane, now, shortages) is None:
        attempt = next((run.invocation.attempt for run in engine.runs.values() if run.entry is head), head.attempt)
        where = f", on {head.work.worker}" if head.work is not None and head.work.worker else ""
        return [Condition("no attempt of it is under way", False, "", f"It is running, attempt {attempt}{where}.")]
    text = {
        LaneState.LOOKUP: "The tables are asked whether it has completed before.",
        LaneState.STARTING: "Its start is being recorded.",
        LaneState.RECORDING: "Its outcome is being recorded.",
    }.get(lane.state)
    return [] if text is None else [Condition("nothing of it is being recorded or looked up", False, "", text)]


def _due(entry: Entry, now: int) -> Condition:
    cause = f"Attempt {entry.attempt} did not succeed; the next starts" if entry.attempt else "It is scheduled"
    at = iso(entry.next_us)
    why = f"{cause} at {at}, in {max(entry.next_us - now, 0) / 1e6:.1f} s."
    return Condition("it is due", entry.next_us <= now, at, why)


def _scanned(partition: Partition, key: TaskKey) -> Condition:
    met, so_far = key.time_us <= partition.complete_us, _scanned_so_far(partition)
    why = f"It is due, but the tables may hold tasks of its lane that go before it: {so_far}."
    return Condition("the tables have been scanned up to its time", met, "" if met else so_far, why)


def _of_ready(engine: Engine, partition: Partition, lane: Lane, entry: Entry, now: int) -> list[Condition]:
    """The conditions of a task that is due."""
    data, handler = entry.data, entry.data.handler
    missing = engine.policy(data).missing or f"This dispatcher has no handler {handler!r}."
    limit, held_up = engine.rate_limit(data, now), engine.held_up(partition)
    waits = (
        "" if limit is None else f"rate limit {limit.key!r}, which it shares, is waited for until {iso(limit.until_us)}"
    )
    queue, gate = data.queue, engine.gate(data.queue)
    left = "the others are left to other queues, unless the `concurrency` of this one says otherwise"
    return [
        Condition(
            "this dispatcher has its handler",
            engine.executor_of(data) != NO_HANDLER,
            handler or "",
            f"It is due, and waits with its attempts unused. {missing}",
        ),
        Condition(
            "no rate limit that it shares is waited for",
            limit is None,
            "" if limit is None else str(limit),
            f"It is due, but {waits}.",
        ),
        *(
            one._replace(why=f"It is due, but queue {queue!r} {one.why}.")
            for one in gate.conditions(lane.ordering_id, now)
        ),
        Condition(
            "its partition releases tasks",
            not held_up,
            held_up or "it does",
            f"It is due, but its partition releases nothing: {held_up}.",
        ),
        Condition(
            "its queue may hold another child",
            not engine.leaves_children(data),
            "",
            f"It is due, but {_holders_text(engine, data)}; {left}.",
        ),
    ]


def _runner(engine: Engine, data: Command, short: Shortage | None, last: str, *, met: bool) -> Condition:
    leased = engine.gate(data.queue).limits.pull or data.handler is None
    who = "a worker to lease it" if leased else "room in the executor"
    held = "" if leased else _holders_text(engine, data)
    detail, why = f"it waits for {who}", f"It is due and waits for {who}{f': {held}' if held else ''}."
    if short is not None:
        detail, why = (
            f"it waits for a Spark worker: {short.why}",
            f"It is due and waits for a Spark worker. {short.why}",
        )
    return Condition("somebody can run it", met, "" if met else detail, why + last)


def _holders_text(engine: Engine, command: Command) -> str:
    children = engine.policy(command).children
    return " and ".join(
        f"queue {queue!r} holds {count} of its {children} children" for queue, count in holders(engine, command)
    )


def _is_left(partition: Partition, key: TaskKey) -> bool:
    """Returns True if its lane, or all of it behind some task, was not loaded."""
    lane = partition.lanes.get(key.ordering_id)
    return partition.left(key) or (lane is not None and lane.frontier is not None and lane.frontier < key)


def _scanned_so_far(partition: Partition) -> str:
    if partition.complete_us < 0:
        return "they have not been scanned yet"
    text = f"they have been scanned up to {iso(partition.complete_us)}"
    if partition.far_before < partition.mark.tasks_offset:
        return text
    behind = partition.far_before + 1 - partition.mark.tasks_offset
    records = "1 record" if behind == 1 else f"{behind} records"
    return f"{text}, and the next scan waits until ingest, which was {records} behind, has written offset {partition.far_before}"
