"""What a dispatcher shows over HTTP: metrics for Prometheus, and read-only state as JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from scylla_spark.clock import iso, now_us
from scylla_spark.core.engine import Engine
from scylla_spark.core.key import TaskKey
from scylla_spark.core.lane import Lane, LaneState
from scylla_spark.core.partition import Partition, PartitionState
from scylla_spark.errors import SchedulerError
from scylla_spark.services.dispatch import Dispatcher

_SHOWN = 50


class StateServer:
    """Serves `/metrics`, `/status`, `/lane?ordering_id=` and `/explain?…` of one dispatcher, read-only.

    Args:
        dispatcher: whose state it is.
        host: address to listen on.
        port: 0 for any free one.
    """

    def __init__(self, dispatcher: Dispatcher, host: str, port: int) -> None:
        self._dispatcher = dispatcher
        dispatcher.measures.registry.register(_EngineCollector(dispatcher))
        self._server = ThreadingHTTPServer((host, port), _handler(self._routes()))
        self._server.daemon_threads = True
        self.address = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="state-server", daemon=True)

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Ends serving."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def _routes(self) -> dict[str, Callable[[dict[str, str]], tuple[str, bytes]]]:
        dispatcher = self._dispatcher

        def ask(
            question: Callable[[Engine, int, dict[str, str]], Any],
        ) -> Callable[[dict[str, str]], tuple[str, bytes]]:
            def answer(query: dict[str, str]) -> tuple[str, bytes]:
                value = dispatcher.mailbox.ask(lambda now: question(dispatcher.engine, now, query), timeout_s=10)
                return "application/json", json.dumps(value, indent=1).encode()

            return answer

        return {
            "/metrics": lambda _query: (CONTENT_TYPE_LATEST, generate_latest(dispatcher.measures.registry)),
            "/status": ask(lambda engine, now, _query: describe_status(engine, now)),
            "/lane": ask(lambda engine, now, query: describe_lane(engine, now, query["ordering_id"])),
            "/explain": ask(lambda engine, now, query: explain(engine, now, _key(query))),
        }


def describe_status(engine: Engine, now: int) -> dict[str, Any]:
    """Counts of a dispatcher and its partitions."""
    return {
        "now": iso(now),
        "running": len(engine.runs),
        "partitions": [_partition(partition) for _, partition in sorted(engine.partitions.items())],
        "counts": dict(engine.counts),
    }


def describe_lane(engine: Engine, now: int, ordering_id: str) -> dict[str, Any]:
    """State of one lane and its next tasks; `loaded` is false where this dispatcher holds nothing of it."""
    for partition in engine.partitions.values():
        lane = partition.lanes.get(ordering_id)
        if lane is not None:
            entries = sorted(lane.entries.values(), key=lambda entry: entry.key)[:_SHOWN]
            tasks = [
                {"key": str(e.key), "attempts": e.attempt, "next_start": iso(e.next_us), "cancelled": e.cancelled}
                for e in entries
            ]
            return {
                "ordering_id": ordering_id, "loaded": True, "partition": partition.number, "state": str(lane.state),
                "why": _why(engine, partition, lane, now), "tasks": tasks, "more_in_tables": lane.frontier is not None,
            }  # fmt: skip
    return {
        "ordering_id": ordering_id,
        "loaded": False,
        "state": "empty",
        "why": "Nothing of this lane is due within the look-ahead.",
        "tasks": [],
    }


def explain(engine: Engine, now: int, key: TaskKey) -> dict[str, Any]:
    """Why a task is not running, in one sentence, with the state it rests on."""
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
            if head is not None and head is not entry:
                why = f"It waits for {head.key}, which is before it in lane {key.ordering_id!r}: {_why(engine, partition, lane, now)}"
            else:
                why = _why(engine, partition, lane, now)
            return {"key": str(key), "known": True, "state": str(lane.state), "attempts": entry.attempt, "why": why}
    return {
        "key": str(key),
        "known": False,
        "state": "unknown",
        "why": "This dispatcher does not hold it: it is not open, or due after the look-ahead.",
    }


def _why(engine: Engine, partition: Partition, lane: Lane, now: int) -> str:
    head = lane.active or lane.head()
    if partition.state is not PartitionState.ACTIVE:
        return f"Its partition {partition.number} is {partition.state} and releases nothing."
    if head is None:
        return "Its tasks are being read from the tables."
    queue = head.data.queue
    closed = engine.gate(queue).why()
    texts = {
        LaneState.READY: f"It is due, but queue {queue!r} {closed}."
        if closed
        else "It is due and waits for room in the executor.",
        LaneState.LOOKUP: "The tables are asked whether it has completed before.",
        LaneState.STARTING: "Its start is being recorded.",
        LaneState.RUNNING: f"It is running, attempt {head.attempt + 1}.",
        LaneState.RECORDING: "Its outcome is being recorded.",
        LaneState.PARKED: "It names no handler and waits for a lease.",
    }
    if lane.state is LaneState.WAITING:
        cause = f"attempt {head.attempt} did not succeed; the next starts" if head.attempt else "it is scheduled"
        return f"{cause[0].upper()}{cause[1:]} at {iso(head.next_us)}, in {max(head.next_us - now, 0) / 1e6:.1f} s."
    return texts[lane.state]


def _partition(partition: Partition) -> dict[str, Any]:
    return {
        "partition": partition.number, "state": str(partition.state), "epoch": partition.mine.epoch if partition.mine else None,
        "lanes": len(partition.lanes), "loaded": sum(len(lane.entries) for lane in partition.lanes.values()),
        "in_flight": partition.in_flight, "unrecorded": len(partition.unrecorded), "tasks_position": partition.tasks_position,
        "outcomes_position": partition.outcomes_position,
    }  # fmt: skip


def _key(query: dict[str, str]) -> TaskKey:
    return TaskKey.parse(f"TaskKey({query['scheduled_time']},{query['ordering_id']},)")._replace(
        uniqueness_key=query["uniqueness_key"]
    )


class _EngineCollector:
    """Counts of the engine, read when Prometheus asks."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def collect(self) -> Any:
        status = self._dispatcher.mailbox.ask(lambda now: describe_status(self._dispatcher.engine, now), timeout_s=10)
        for name, help_text in (
            ("in_flight", "Released and unfinished tasks"),
            ("loaded", "Tasks held in memory"),
            ("lanes", "Lanes held in memory"),
            ("unrecorded", "Facts decided and not read back"),
        ):
            gauge = GaugeMetricFamily(f"scylla_{name}", help_text, labels=["partition"])
            for partition in status["partitions"]:
                gauge.add_metric([str(partition["partition"])], partition[name])
            yield gauge
        events = CounterMetricFamily(
            "scylla_events", "What the engine counts: completions, attempts, takes, fences", labels=["event"]
        )
        for name, count in status["counts"].items():
            events.add_metric([name], count)
        yield events
        stale = CounterMetricFamily("scylla_stale", "Attempts that started more than five minutes late")
        stale.add_metric([], self._dispatcher.measures.stale)
        yield stale

    def describe(self) -> list[Any]:
        return []


def _handler(routes: dict[str, Callable[[dict[str, str]], tuple[str, bytes]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            route = routes.get(url.path)
            if route is None:
                self._reply(
                    404, "application/json", json.dumps({"error": "not found", "paths": sorted(routes)}).encode()
                )
                return
            query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            try:
                self._reply(200, *route(query))
            except KeyError as error:
                self._reply(400, "application/json", json.dumps({"error": f"missing parameter {error}"}).encode())
            except SchedulerError as error:
                self._reply(400, "application/json", json.dumps({"error": str(error)}).encode())
            except TimeoutError:
                self._reply(
                    503,
                    "application/json",
                    json.dumps({"error": f"the engine did not answer at {iso(now_us())}"}).encode(),
                )

        def _reply(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: requests are not worth a line."""

    return Handler
