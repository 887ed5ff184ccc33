"""Callers of the API in a benchmark: one after the other, or with a bulk, over one connection that stays open."""

from __future__ import annotations

import io
import json
import time
from functools import partial
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

from scylla_spark.clock import boot_us, iso, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.io.kafka.topics import producer
from scylla_spark_tools.bench.floor_measurements import ECHO_TOPIC, timed
from scylla_spark_tools.bench.handlers import NOOP
from scylla_spark_tools.bench.helper_process import Channel

LINES: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
_DUE_US: Final = 3_600_000_000  # ahead, so that nothing starts meanwhile
_TURN: Final = 50  # calls of one kind, then of the next


def single_tasks(channel: Channel, settings: Settings, *, api: str, count: int) -> dict[str, list[int]]:
    """By turns: tasks by `PUT`, records of the same size sent and acknowledged, and empty calls; microseconds each, sorted.

    Args:
        channel: to the process that measures; it says when to begin.
        settings: with the broker.
        api: address of the API.
        count: of each.
    """
    connection, due = _connection(api), iso(now_us() + _DUE_US)
    body = json.dumps({"handler": NOOP, "payload": {"n": 1}})
    paths = [f"/v1/tasks/{due},single-{n % 100},{boot_us()}-{n}" for n in range(count)]
    took: dict[str, list[int]] = {"put": [], "record": [], "empty": []}
    with producer(settings, linger_ms=0) as sender:
        sender.send(ECHO_TOPIC, body.encode(), partition=0).get(timeout=30)
        channel.tell("ready")
        channel.hear()
        for start in range(0, count, _TURN):
            for path in paths[start : start + _TURN]:
                took["put"].append(timed(partial(_call, connection, "PUT", path, body)))
                took["record"].append(
                    timed(lambda: sender.send(ECHO_TOPIC, body.encode(), partition=0).get(timeout=30))
                )
                took["empty"].append(timed(lambda: _call(connection, "GET", "/healthz")))
    return {name: sorted(found) for name, found in took.items()}


def bulk(channel: Channel, _settings: Settings, *, api: str, count: int, kind: str, name: str) -> dict[str, Any]:
    """One bulk.

    Args:
        channel: to the process that measures; it says when to begin.
        api: address of the API.
        count: tasks.
        kind: media type.
        name: in the keys of its tasks.

    Returns:
        `seconds` from the first byte to the whole answer, `accepted` and `refused`.
    """
    body = _lines(count, name) if kind == LINES else _arrow(count, name)
    connection = _connection(api)
    channel.tell("ready")
    channel.hear()
    begun = boot_us()
    answer = _call(connection, "POST", "/v1/tasks:bulk", body, {"Content-Type": kind})
    seconds = (boot_us() - begun) / 1e6
    found: dict[str, Any] = json.loads(answer.rsplit(b"\n", 2)[-2])
    return found | {"seconds": seconds}


def bare_records(channel: Channel, settings: Settings, *, api: str, count: int) -> float:
    """The floor of a bulk: records a second that kafka-python alone sends, and hears to be acknowledged.

    Args:
        channel: to the process that measures; it says when to begin.
        settings: with the broker.
        api: not used; all callers are called alike.
        count: records.
    """
    record = _lines(1, "bare").strip()
    with producer(settings, linger_ms=20, batch_size=256 * 1024) as sender:
        sender.send(ECHO_TOPIC, record, partition=0).get(timeout=30)
        channel.tell("ready")
        channel.hear()
        begun = boot_us()
        sent = [sender.send(ECHO_TOPIC, record, partition=n % settings.partitions) for n in range(count)]
        for future in sent:
            future.get(timeout=60)
        return count / ((boot_us() - begun) / 1e6)


def reads(
    channel: Channel, _settings: Settings, *, api: str, paths: dict[str, list[str]], pause_ms: int = 0
) -> dict[str, list[int]]:
    """By turns one of each kind; microseconds, sorted.

    Args:
        channel: to the process that measures; it says when to begin.
        api: address of the API.
        paths: kind → what to get, one after the other.
        pause_ms: between two calls.
    """
    connection = _connection(api)
    channel.tell("ready")
    channel.hear()
    took: dict[str, list[int]] = {kind: [] for kind in paths}
    for some in zip(*paths.values(), strict=True):
        for kind, path in zip(paths, some, strict=True):
            took[kind].append(timed(partial(_call, connection, "GET", path)))
            time.sleep(pause_ms / 1000)
    return {kind: sorted(found) for kind, found in took.items()}


def _lines(count: int, name: str) -> bytes:
    due = iso(now_us() + _DUE_US)
    tasks = (
        {"handler": NOOP, "payload": {"n": n}, "ordering_id": f"{name}-{n % 1_000}", "uniqueness_key": f"{name}-{n}", "scheduled_time": due}
        for n in range(count)
    )  # fmt: skip
    return b"".join(json.dumps(task).encode() + b"\n" for task in tasks)


def _arrow(count: int, name: str) -> bytes:
    import pyarrow as pa

    due = iso(now_us() + _DUE_US)
    table = pa.table(
        {
            "handler": [NOOP] * count,
            "payload": [f'{{"n":{n}}}' for n in range(count)],
            "ordering_id": [f"{name}-{n % 1_000}" for n in range(count)],
            "uniqueness_key": [f"{name}-{n}" for n in range(count)],
            "scheduled_time": [due] * count,
        }
    )
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=10_000)
    return file.getvalue()


def _connection(api: str) -> HTTPConnection:
    return HTTPConnection(urlsplit(api).netloc, timeout=600)


def _call(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    connection.request(method, path, body, headers or {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status >= 300:
        raise RuntimeError(f"{method} {path}: {response.status} {text[:500]!r}")
    return text
