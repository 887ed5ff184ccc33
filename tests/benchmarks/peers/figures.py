"""What a measure gives, and how it follows from the records that the handlers wrote."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scylla_spark_tools.bench.report import percentile

RECORD = struct.Struct("<4d")


@dataclass(frozen=True, slots=True)
class Rate:
    """Tasks over wall time.

    Attributes:
        count: tasks that arrived.
        per_s: tasks per second.
        lost: tasks that did not arrive.
        violations: tasks that started before an earlier one of their key, or twice.
    """

    count: int
    per_s: float
    lost: int = 0
    violations: int = 0


@dataclass(frozen=True, slots=True)
class Latency:
    """Start of the handler less the due time, or less the moment just before the sending call; milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    lost: int = 0
    early: int = 0


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no figure, and why."""

    reason: str


Figure = Rate | Latency | Absent


class Start(NamedTuple):
    """One start of a handler.

    Attributes:
        key: of the serial order; 0 without keys.
        number: place among the tasks of its key, from 0.
        stamp: due time or time of sending, µs since 1970; 0 in a drain.
        begun: µs since 1970.
    """

    key: int
    number: int
    stamp: float
    begun: float


def started(path: Path) -> int:
    """Returns how many whole records a file has."""
    return path.stat().st_size // RECORD.size if path.exists() else 0


def starts(path: Path, skip: int = 0) -> list[Start]:
    """The records of a file in the order in which they were written, less the first `skip`."""
    if not path.exists():
        return []
    whole = memoryview(path.read_bytes())[skip * RECORD.size : started(path) * RECORD.size]
    return [Start(int(key), int(number), stamp, begun) for key, number, stamp, begun in RECORD.iter_unpack(whole)]


def disorder(seen: Iterable[Start]) -> int:
    """Returns how many tasks started before an earlier one of their key, or started again."""
    last: dict[int, int] = {}
    wrong = 0
    for start in sorted(seen, key=lambda start: start.begun):
        wrong += start.number <= last.get(start.key, -1)
        last[start.key] = max(start.number, last.get(start.key, -1))
    return wrong


def rate(seen: list[Start], sent: int, end_us: float, *, ordered: bool) -> Rate:
    """The rate from the first start of a handler to `end_us`, when nothing was left in the store."""
    if not seen:
        return Rate(0, 0.0, lost=sent)
    seconds = (end_us - min(start.begun for start in seen)) / 1e6
    different = len({(start.key, start.number) for start in seen})
    return Rate(
        len(seen), round(len(seen) / seconds, 1), sent - different, disorder(seen) if ordered else len(seen) - different
    )


def latency(seen: list[Start], sent: int) -> Latency:
    """Percentiles of start less stamp."""
    late = sorted((start.begun - start.stamp) / 1000 for start in seen)
    lost = sent - len({start.number for start in seen})
    half, most = round(percentile(late, 0.5), 3), round(percentile(late, 0.99), 3)
    return Latency(len(late), half, most, lost, sum(value < 0 for value in late))


def own(record: Mapping[str, Any]) -> Rate | Latency:
    """The figure in the JSON object of one of our own benchmarks."""
    if "rate_per_s" in record:
        return Rate(record["count"], record["rate_per_s"], record["lost"], record["violations"])
    return Latency(record["count"], record["p50_ms"], record["p99_ms"], record["lost"], record["early"])
