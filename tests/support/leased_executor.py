"""Workplaces of a leased worker as an Executor, so that handlers can be judged there by the same suite; no server, no HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from scylla_spark.clock import now_us
from scylla_spark.core.leases.messages import LeasedLine
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import Failure, Invocation, Outcome
from scylla_spark.executors.interface import Sink
from scylla_spark.worker.handlers import resolved
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.processes import ChildPlace


class LeasedExecutor:
    """Runs invocations as `scylla-spark worker run --processes` runs leases.

    Args:
        modules: of handlers.
        slots: how many at once, each in a child.
    """

    def __init__(self, modules: Sequence[str], slots: int = 2) -> None:
        known = resolved(tuple(modules))
        self._places = [ChildPlace(tuple(modules), known) for _ in range(slots)]
        self._waiting: SimpleQueue[Invocation | None] = SimpleQueue()
        self._sink: Sink

    def start(self, sink: Sink) -> None:
        self._sink = sink
        for place in self._places:
            threading.Thread(target=self._serve, args=(place,), daemon=True).start()

    def submit(self, batch: Sequence[Invocation]) -> None:
        for item in batch:
            self._waiting.put(item)

    def stop(self, *, drain_s: float) -> None:
        for place in self._places:
            self._waiting.put(None)
            place.close()

    def _serve(self, place: ChildPlace) -> None:
        place.open()
        while (item := self._waiting.get()) is not None:
            told = _Told(item)
            place.work(Lease(_view(item), told))
            self._sink([told.outcome()])


class _Told:
    """What a lease says, which a server would record; a `Reporter`."""

    def __init__(self, item: Invocation) -> None:
        self._item = item
        self._started_us = now_us()
        self._signs: dict[str, str] = {}
        self._report: dict[str, Any] = {}

    def report(self, lease: Lease, text: str) -> None:
        self._report = json.loads(text)
        lease.settle("ok")

    def sign(self, lease: Lease, **fields: str) -> None:
        self._signs |= fields

    def output(self, lease: Lease, output: object) -> None:
        raise NotImplementedError

    def lines(self, lease: Lease, lines: Sequence[LeasedLine]) -> None:
        pass

    def refuse(self) -> None:
        return None

    def outcome(self) -> Outcome:
        said, error = self._report, self._report.get("error")
        failure = error and Failure(error["code"], error.get("description", ""), error.get("stack", ""))
        progress = self._signs.get("value")
        checkpoint = self._signs.get("checkpoint") or _text(said.get("checkpoint"))
        words = json.loads(self._signs["note"]) if "note" in self._signs else None
        note = WorkNote(progress=progress and float(progress), checkpoint=checkpoint, progress_note=words)
        return Outcome(
            self._item.id, said["outcome"], self._started_us, now_us(), _text(said.get("result")), failure, said.get("after_ms", 0),
            work=None if note == WorkNote() else note,
        )  # fmt: skip


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _view(item: Invocation) -> dict[str, Any]:
    """The invocation as the API tells of a lease."""
    key = item.key
    return {
        "lease": f"0.{item.id:032x}", "expires_in_ms": 60_000, "beat_every_ms": 20_000, "max_ms": 600_000,
        "task": {
            "scheduled_time": key.scheduled_time.isoformat(), "ordering_id": key.ordering_id, "uniqueness_key": key.uniqueness_key,
            "handler": item.handler, "queue": item.queue, "priority": item.priority, "payload": json.loads(item.payload),
            "attempt": item.attempt, "epoch": item.epoch,
            "checkpoint": json.loads(item.checkpoint) if item.checkpoint is not None else None,
            "last_error": item.last_error._asdict() if item.last_error is not None else None,
        },
    }  # fmt: skip
