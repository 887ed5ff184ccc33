"""Tables with anything that a due scan may meet, made from a seed; without a JVM."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from scylla_spark.clock import from_us
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import HOUR_US, TaskKey, partition_of
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, DEFERRED, TASKS
from tests.support.delta_tables import PARTITIONS, append, at, fact, make, task

LANES = ("a", "b", "c' OR '1'='1", "d`;--", "ünï漢字", "f", "g", "h%", "i\\", "j")
QUEUES = ("default", "mail", "paused", "unlisted", "another", None)
UNFINAL = ("started", "failed", "yielded")
NOW = at(12, 30)


@dataclass
class OpenTables:
    """What was made.

    Attributes:
        path: folder of the tables.
        marks: partition → a progress that is true of the rows.
        folded_until_us: what is due later may stand in `deferred`.
    """

    path: str
    marks: dict[int, Mark]
    folded_until_us: int
    _rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def generated(path: str, seed: int) -> OpenTables:
    """Some dozens of tasks around `NOW`: near, far and both, ended, cancelled, retried, repeated, with and without data."""
    rng = random.Random(seed)
    make(path)
    edge = at(rng.choice([13, 14]))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("tasks", "deferred", "completions", "attempts")}
    still: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
    for key in _keys(rng):
        _store(rng, key, rows, far=key.time_us >= edge)
        if rng.random() < 0.35:
            ends = [fact(key, rng.randint(0, 3), "succeeded", n) for n in range(rng.choice([1, 1, 2]))]
            rows["completions"] += ends
        else:
            still[partition_of(key.ordering_id, PARTITIONS)].add(key.hour)
        rows["attempts"] += _attempts(rng, key)
    for table in (TASKS, DEFERRED, COMPLETIONS, ATTEMPTS):
        half = len(rows[table.name]) // 2
        for part in (rows[table.name][:half], rows[table.name][half:]):
            append(path, table, part)
    closed = {number: rng.choice([0, NOW // HOUR_US - 2, NOW // HOUR_US]) for number in still}
    marks = {
        number: Mark(99, folded_until_us=edge, closed_hour=hour, open_hours=tuple(sorted(h for h in still[number] if h < hour)))
        for number, hour in closed.items()
    }  # fmt: skip
    return OpenTables(path, marks, edge)


def _keys(rng: random.Random) -> list[TaskKey]:
    times = [at(hour, minute, 0, rng.choice([0, 0, 1, 999])) for hour in range(8, 16) for minute in (0, 29, 31, 59)]
    keys = {
        TaskKey(rng.choice(times), lane, unique)
        for lane in rng.sample(LANES, rng.randint(6, len(LANES)))
        for unique in rng.sample("klmnopqrstuvwxyz", rng.randint(1, 16))
    }
    return sorted(keys)


def _store(rng: random.Random, key: TaskKey, rows: dict[str, list[dict[str, Any]]], *, far: bool) -> None:
    """In `tasks` what is near; what is far in either table, or in both with other data."""
    homes = rng.choice([["tasks"], ["deferred"], ["deferred", "deferred"], ["tasks", "deferred"]]) if far else ["tasks"]
    for offset, home in enumerate(homes):
        rows[home].append(_task(rng, key, offset * 10 + rng.randint(0, 9)))


def _task(rng: random.Random, key: TaskKey, offset: int) -> dict[str, Any]:
    cancel = offset + 1 if rng.random() < 0.15 else None
    if cancel is not None and rng.random() < 0.5:  # nothing but a cancel was seen
        return (
            task(key)
            | dict.fromkeys(("handler", "queue", "priority", "payload", "enqueued_at", "data_offset"))
            | {"cancel_offset": cancel}
        )
    retry = {"max_retries": rng.choice([None, 3]), "base_ms": 10, "cap_ms": 20} if rng.random() < 0.3 else None
    return task(
        key, offset, cancel_offset=cancel, retry=retry, handler=rng.choice(["h", "h", "h", None]),
        queue=rng.choice(QUEUES), priority=rng.choice([None, 0, 0, 5, 255]), timeout_ms=rng.choice([None, 1000]),
        payload=rng.choice([None, "{}", '{"é": "' + "x" * rng.randint(0, 3000) + '"}']),
        extra=rng.choice([None, '{"more": 1}']), expires_ms=(None, None, 1, 10**9)[offset % 4], **_first(rng, offset),
    )  # fmt: skip


def _first(rng: random.Random, offset: int) -> dict[str, Any]:
    """Returns what a row tells of the first enqueue of its key, which may be older than its data; older versions told nothing."""
    if offset % 2 and rng.random() < 0.5:
        return {}
    first = rng.choice([offset, offset // 2])
    return {"first_offset": first, "unique_open": first % 2 == 0}


def _attempts(rng: random.Random, key: TaskKey) -> list[dict[str, Any]]:
    if rng.random() < 0.6:
        return []
    found = []
    for number in range(1, rng.randint(2, 4)):
        for offset, outcome in enumerate(rng.sample(UNFINAL, rng.randint(1, 2))):
            wait = None if outcome == "started" else from_us(NOW + rng.choice([-1, 1]) * rng.randint(1, 10**10))
            error = {"error_class": f"E{number}", "error_message": "m" * 1_200} if outcome == "failed" else {}
            found.append(fact(key, number, outcome, number * 10 + offset, next_at=wait, **error))
    rng.shuffle(found)
    return found
