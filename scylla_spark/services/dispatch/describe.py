"""What a dispatcher shows over HTTP: metrics for Prometheus, and read-only state as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from scylla_spark.clock import boot_us, iso, now_us, read_instant, to_us
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.lane import Entry, LaneState
from scylla_spark.core.engine.leases.worker_session import Lease
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.partition import ACTIVE, Partition
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.state import NO_HANDLER, NO_WORKER, first_reason
from scylla_spark.errors import ArgumentError
from scylla_spark.executors.interface import SparkFigures
from scylla_spark.handlers.description import HandlerForm, HandlerInfo
from scylla_spark.services.dispatch.executor_catalog import BUILT_IN
from scylla_spark.services.dispatch.looks import Looks
from scylla_spark.services.dispatch.metrics import STALE_US
from scylla_spark.services.dispatch.start_conditions import (
    NO_SHORTAGES,
    Shortages,
    holders,
    shortage_of,
    start_conditions,
    why_lane,
    why_unheld,
)
from scylla_spark.services.metrics_server import PREFIX, MetricsServer
from scylla_spark.services.read_only_http_server import JSON, Reply, Route

if TYPE_CHECKING:
    from scylla_spark.services.dispatch.dispatcher import Dispatcher

_SHOWN = 50
_MOST_LANES = 5_000  # of those that wait for one executor
_MOST_DUE = 50_000  # lanes that a look goes through: the engine waits for it
_WATCHED = dict.fromkeys(
    ("defects", "leases_expired", "retries_exhausted"), 0
)  # 0 is shown, so that `increase` sees the first one
_DUE = {
    "ready": "Heads of lanes that are due and wait for room, a worker, or their queue; of more than 50,000 only so many are looked at",
    "overdue": "Ready heads of lanes that have waited for more than five minutes",
    "oldest_ready_seconds": "How long the oldest ready head of a lane has waited; 0: none waits",
    "without_handler": "Ready heads of lanes whose handler is not registered here; of more than 5,000 only so many are counted",
}


class Description:
    """Shows metrics, `/status`, `/load`, `/handlers`, `/lane?ordering_id=`, `/explain?…` and `/attempt?…` of one dispatcher, read-only.

    Args:
        dispatcher: whose state it is.
        server: where it is shown.
    """

    def __init__(self, dispatcher: Dispatcher, server: MetricsServer) -> None:
        self._dispatcher = dispatcher
        self._since_us = now_us()
        self._looks = Looks(dispatcher.mailbox)
        dispatcher.measures.registry.register(_EngineCollector(dispatcher, self._looks))
        server.show(dispatcher.measures.registry)
        server.answer(self._routes())

    def _routes(self) -> dict[str, Route]:
        return {
            "/status": Route(lambda _query: self._ask(self._status, "status")),
            "/load": Route(lambda _query: self._ask(describe_load, "load")),
            "/handlers": Route(lambda _query: self._ask(self._handlers, "handlers")),
            "/lane": Route(self._lane, ("ordering_id",)),
            "/explain": Route(self._explain, ("scheduled_time", "ordering_id", "uniqueness_key")),
            "/attempt": Route(self._attempt, ("scheduled_time", "ordering_id", "uniqueness_key")),
        }

    def _status(self, engine: Engine, now: int) -> dict[str, Any]:
        waiting = describe_waiting(engine, self._dispatcher.shortages())
        return describe_status(engine, now) | waiting | {"desk": self._dispatcher.desk.address}

    def _handlers(self, engine: Engine, _now: int) -> dict[str, Any]:
        waiting = describe_waiting(engine, self._dispatcher.shortages())
        told = {"waiting": waiting["no_handler"], "waiting_for_workers": waiting["no_worker"]}
        channels = self._dispatcher.settings.notify.channels
        told["channels"] = {name: channel.tasks for name, channel in channels.items()}
        return describe_handlers(self._dispatcher.handlers, self._since_us) | told

    def _lane(self, query: Mapping[str, str]) -> Reply:
        shortages = self._dispatcher.shortages
        return self._ask(lambda engine, now: describe_lane(engine, now, query["ordering_id"], shortages()))

    def _explain(self, query: Mapping[str, str]) -> Reply:
        key = _key(query)  # here, not in the engine's thread: what was asked wrongly is no trouble of the engine
        return self._ask(lambda engine, now: explain(engine, now, key, self._dispatcher.shortages()))

    def _attempt(self, query: Mapping[str, str]) -> Reply:
        key = _key(query)
        return self._ask(lambda engine, now: describe_attempt(engine, now, key, self._dispatcher.begun()))

    def _ask(self, question: Callable[[Engine, int], dict[str, Any]], name: str = "") -> Reply:
        engine = self._dispatcher.engine
        value = self._looks.look(lambda now: question(engine, now), name)
        return Reply(JSON, json.dumps(value, indent=1).encode())


def describe_status(engine: Engine, now: int) -> dict[str, Any]:
    """Counts of a dispatcher and its partitions."""
    return {
        "now": iso(now),
        "running": len(engine.runs),
        "partitions": [_partition(partition) for _, partition in sorted(engine.partitions.items())],
        "counts": dict(engine.counts),
    }


def describe_due(engine: Engine, now: int) -> dict[str, float]:
    """What is due and has not started: heads of lanes, those of them that wait for long, and how long the oldest does, in seconds.

    Args:
        engine: of this dispatcher, asked in its thread.
        now: microseconds since the epoch.
    """
    heads = (place.lane.active for place in islice(engine.due(), _MOST_DUE))
    since = [head.planned_us for head in heads if head is not None]
    overdue = sum(planned_us < now - STALE_US for planned_us in since)
    return {
        "ready": len(since),
        "overdue": overdue,
        "oldest_ready_seconds": max(now - min(since, default=now), 0) / 1e6,
        "without_handler": sum(1 for _ in islice(engine.waiting_for(NO_HANDLER), _MOST_LANES)),
    }


def describe_load(engine: Engine, now: int) -> dict[str, Any]:
    """Load of each queue, for constraints of schedules: heads of lanes that are due, how long the oldest waits, and tasks that run.

    Args:
        engine: of this dispatcher, asked in its thread.
        now: microseconds since the epoch.

    Returns:
        Also the partitions whose tasks are counted: those that are being taken are left out.
    """
    heads = [place.lane.active for place in islice(engine.due(), _MOST_DUE) if place.lane.active is not None]
    ready = Counter(head.data.queue for head in heads)
    running = Counter(run.entry.data.queue for run in engine.runs.values())
    since_us = dict[str, int]()
    for head in heads:
        since_us[head.data.queue] = min(head.planned_us, since_us.get(head.data.queue, now))
    queues = {
        name: {
            "ready": ready[name],
            "running": running[name],
            "oldest_ready_seconds": (now - since_us.get(name, now)) / 1e6,
        }
        for name in sorted(ready.keys() | running.keys())
    }
    active = [number for number, partition in sorted(engine.partitions.items()) if partition.state is ACTIVE]
    return {"now": iso(now), "partitions": active, "queues": queues}


def describe_lane(engine: Engine, now: int, ordering_id: str, shortages: Shortages = NO_SHORTAGES) -> dict[str, Any]:
    """State of one lane and its next tasks; `loaded` is false where this dispatcher holds nothing of it.

    Args:
        engine: of this dispatcher, asked in its thread.
        now: microseconds since the epoch.
        ordering_id: of the lane.
        shortages: see `Dispatcher.shortages`.
    """
    for partition in engine.partitions.values():
        lane = partition.lanes.get(ordering_id)
        if lane is not None:
            entries = sorted(lane.entries.values(), key=lambda entry: entry.key)[:_SHOWN]
            tasks = [
                {
                    "key": str(e.key),
                    "scheduled_time": iso(e.key.time_us),
                    "uniqueness_key": e.key.uniqueness_key,
                    "attempts": e.attempt,
                    "next_start": iso(e.next_us),
                    "cancelled": e.cancelled,
                }
                for e in entries
            ]
            return {
                "ordering_id": ordering_id,
                "loaded": True,
                "partition": partition.number,
                "state": str(lane.state),
                "why": why_lane(engine, partition, lane, now, shortages),
                "tasks": tasks,
                "more_in_tables": lane.frontier is not None,
            }
    return {
        "ordering_id": ordering_id,
        "loaded": False,
        "state": "empty",
        "why": "Nothing of this lane is due within the look-ahead.",
        "tasks": [],
    }


def explain(engine: Engine, now: int, key: TaskKey, shortages: Shortages = NO_SHORTAGES) -> dict[str, Any]:
    """The reason why a task is not running, as a sentence, and all conditions of its start.

    Args:
        engine: of this dispatcher, asked in its thread.
        now: microseconds since the epoch.
        key: of the task.
        shortages: see `Dispatcher.shortages`.
    """
    for partition in engine.partitions.values():
        lane = partition.lanes.get(key.ordering_id)
        entry = lane.find(key) if lane is not None else None
        if key in partition.ended:
            return {
                "key": str(key),
                "known": True,
                "state": "ended",
                "why": "It has ended; its completion is recorded.",
            }
        if lane is not None and entry is not None:
            head = lane.active or lane.head()
            found = start_conditions(engine, partition, lane, entry, now, shortages)
            short = shortage_of(engine, partition, lane, now, shortages) if head is entry else None
            waits = lane.state is LaneState.READY and engine.executor_of(entry.data) == NO_HANDLER
            return {
                "key": str(key),
                "known": True,
                "state": str(lane.state),
                "attempts": entry.attempt,
                "why": first_reason(found),
                "conditions": [one.view for one in found],
                "reason": NO_HANDLER if waits else "" if short is None else NO_WORKER,
                "holders": [queue for queue, _ in holders(engine, entry.data)],
            }
    unheld = why_unheld(engine, key)
    why = first_reason(unheld) or "This dispatcher does not hold its partition."
    return {
        "key": str(key),
        "known": False,
        "state": "unknown",
        "why": why,
        "conditions": [one.view for one in unheld],
    }


def describe_waiting(engine: Engine, shortages: Shortages = NO_SHORTAGES) -> dict[str, Any]:
    """What waits for a handler or a Spark worker, by queue and handler, and which queues hold their share of children while others wait.

    Args:
        engine: of this dispatcher, asked in its thread.
        shortages: see `Dispatcher.shortages`.
    """
    heads = [
        place.lane.active.data for place in islice(engine.waiting_for(NO_HANDLER), _MOST_LANES) if place.lane.active
    ]
    missing = Counter((data.queue, data.handler or "") for data in heads).most_common(_SHOWN)
    holding = []
    for executor, queue in engine.full_shares:
        waits = [
            place.lane.active.data for place in islice(engine.waiting_for(executor), _MOST_LANES) if place.lane.active
        ]
        if waits:
            held, of = engine.held_children(executor)[queue], engine.policy(waits[0]).children
            holding.append({"queue": queue, "executor": executor, "held": held, "children": of, "lanes": len(waits)})
    return {
        "no_handler": [{"queue": queue, "handler": handler, "lanes": lanes} for (queue, handler), lanes in missing],
        "no_worker": _waiting_for_workers(engine, shortages),
        "holding": holding,
    }


def _waiting_for_workers(engine: Engine, shortages: Shortages) -> list[dict[str, Any]]:
    lanes: Counter[tuple[str, str]] = Counter()
    waited_s: dict[tuple[str, str], int] = {}
    for executor, shortage in shortages.items():
        places = islice(engine.waiting_for(executor), _MOST_LANES)
        heads = [place.lane.active.data for place in places if place.lane.active]
        runs = (run for run in islice(engine.runs.values(), _MOST_LANES) if run.executor == executor)
        heads += [run.entry.data for run in runs if run.invocation.id not in shortage.held]
        since_us = shortage.since_us
        for data in heads:
            if not shortage.covers(data.handler or engine.policy(data).handler):
                continue
            lanes[data.queue, data.handler or ""] += 1
            waited_s[data.queue, data.handler or ""] = (boot_us() - since_us) // 1_000_000 if since_us else 0
    return [
        {"queue": queue, "handler": handler, "lanes": count, "seconds": waited_s[queue, handler]}
        for (queue, handler), count in lanes.most_common(_SHOWN)
    ]


def _partition(partition: Partition) -> dict[str, Any]:
    return {
        "partition": partition.number,
        "state": str(partition.state),
        "epoch": partition.mine.epoch if partition.mine else None,
        "lanes": len(partition.lanes),
        "loaded": sum(len(lane.entries) for lane in partition.lanes.values()),
        "held_bytes": partition.holding.bytes,
        "left_to_tables": len(partition.unloaded),
        "ended_keys": len(partition.ended),
        "in_flight": partition.in_flight,
        "unrecorded": len(partition.outbox.unrecorded),
        "tasks_position": partition.tasks_position,
        "outcomes_position": partition.outcomes_position,
    }


def _key(query: Mapping[str, str]) -> TaskKey:
    """The key that a query names.

    Raises:
        ArgumentError: its time is no instant that a task could have.
    """
    try:
        moment = read_instant(query["scheduled_time"])
        key = TaskKey(to_us(moment), query["ordering_id"], query["uniqueness_key"])
        str(key)
    except (ValueError, OverflowError):
        raise ArgumentError("scheduled_time is not an instant such as 2026-01-31T09:00:00Z.") from None
    return key


class _EngineCollector:
    """Counts of the engine, read when Prometheus asks."""

    def __init__(self, dispatcher: Dispatcher, looks: Looks) -> None:
        self._dispatcher = dispatcher
        self._looks = looks

    def collect(self) -> Any:
        engine = self._dispatcher.engine
        status, waits = self._looks.look(
            lambda now: (describe_status(engine, now), describe_due(engine, now)), "metrics"
        )
        for name, help_text in (
            ("in_flight", "Released and unfinished tasks"),
            ("loaded", "Tasks held in memory"),
            ("lanes", "Lanes held in memory"),
            ("unrecorded", "Facts decided and not read back"),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, help_text, labels=["partition"])
            for partition in status["partitions"]:
                gauge.add_metric([str(partition["partition"])], partition[name])
            yield gauge
        active = GaugeMetricFamily(
            f"{PREFIX}partition_active", "1: this dispatcher releases the tasks of the partition", labels=["partition"]
        )
        for partition in status["partitions"]:
            active.add_metric([str(partition["partition"])], partition["state"] == "active")
        yield active
        events = CounterMetricFamily(
            f"{PREFIX}events", "What the engine counts: completions, attempts, takes, fences", labels=["event"]
        )
        for name, count in (_WATCHED | status["counts"]).items():
            events.add_metric([name], count)
        yield events
        for name, help_text in _DUE.items():
            yield GaugeMetricFamily(PREFIX + name, help_text, value=waits[name])
        stale = CounterMetricFamily(f"{PREFIX}stale", "Attempts that started more than five minutes late")
        stale.add_metric([], self._dispatcher.measures.stale)
        yield stale
        for executor in self._dispatcher.on_workers():
            yield from _of_workers(executor.figures())

    def describe(self) -> list[Any]:
        return []


def _of_workers(figures: SparkFigures) -> Iterator[Metric]:
    states = GaugeMetricFamily(f"{PREFIX}spark_workers", "Spark workers of this dispatcher", labels=["state"])
    for state, count in figures.states.items():
        states.add_metric([state], count)
    ends = CounterMetricFamily(f"{PREFIX}spark_worker_ends", "Spark workers that have ended", labels=["cause"])
    for cause, count in figures.ends.items():
        ends.add_metric([cause], count)
    events = CounterMetricFamily(
        f"{PREFIX}spark_worker_events",
        "Attempts taken back, workers lost with attempts, late outcomes and errors of frames",
        labels=["event"],
    )
    for event, count in figures.events.items():
        events.add_metric([event], count)
    yield states
    yield ends
    yield events
    yield CounterMetricFamily(f"{PREFIX}spark_worker_starts", "Spark workers that were started", value=figures.starts)
    yield GaugeMetricFamily(
        f"{PREFIX}spark_workers_without_core",
        "Spark workers that have waited for a free core of an executor for more than 10 s",
        value=figures.without_core,
    )


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
        **note.said,
        "known": True,
        "attempt": lease.run.invocation.attempt,
        "heard_at": iso(lease.heard_us) if lease.heard_us else None,
        "lease_until": iso(lease.deadline_us) if lease.deadline_us != NEVER else None,
        "deadline": iso(note.until_us),
    }


def _running(run: Run, began_us: int, now: int) -> dict[str, Any]:
    """Of what runs in a child of this dispatcher: that it still does is known now."""
    invocation = run.invocation
    return {
        "known": True,
        "attempt": invocation.attempt,
        "heard_at": iso(now),
        "deadline": iso(began_us + invocation.timeout_ms * 1000),
    }


MOST_SCHEMAS: Final = 2 * 1024 * 1024
"""Characters of all schemas together: whoever asks reads no more than four MiB. Handlers behind that are told of without them."""


def describe_handlers(handlers: Mapping[str, HandlerInfo], since_us: int) -> dict[str, Any]:
    """All handlers that tasks may name, by name; those of the scheduler itself are left out.

    Args:
        handlers: by every name that tasks may use.
        since_us: since when this dispatcher has had them, microseconds since the epoch.
    """
    left, rows = MOST_SCHEMAS, []
    for name, info in sorted(handlers.items()):
        if info.runs_on in BUILT_IN:
            continue
        form = info.form or HandlerForm()
        left -= len(form.payload or "") + len(form.result or "")
        rows.append(_row(name, info, form if left >= 0 else form._replace(payload=None, result=None)))
    return {"since": iso(since_us), "handlers": rows}


def _row(name: str, info: HandlerInfo, form: HandlerForm) -> dict[str, Any]:
    retry = info.retry
    return {
        "name": name,
        "registered_as": info.name,
        "runs_on": info.runs_on,
        "max_batch": info.max_batch,
        "concurrency": info.concurrency,
        "rate_keys": list(info.rate_keys),
        "timeout_ms": info.timeout_ms,
        "isolation": info.isolation.level if info.isolation is not None else None,
        "retry": None
        if retry is None
        else {
            "max_retries": retry.max_retries,
            "base_ms": None if retry.base is None else retry.base_ms,
            "cap_ms": None if retry.cap is None else retry.cap_ms,
        },
        "module": form.module,
        "function": form.function,
        "about": form.about,
        "payload": json.loads(form.payload) if form.payload is not None else None,
        "result": json.loads(form.result) if form.result is not None else None,
    }
