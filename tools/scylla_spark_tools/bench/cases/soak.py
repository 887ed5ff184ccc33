"""`soak`: the same load for half an hour; does it get later, larger or more scattered with time?

`ratio` is p99 of the last sixth over p99 of the first. Memory and file counts are sampled along the way; the first and the
last sample are reported. Floor: the first sixth; `timer_p99_ms` is how late a bare process woke up in the same two sixths.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from scylla_spark.config.settings import Settings
from scylla_spark_tools.bench import machine, report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.deployment_under_test import Options, files_in, place, say
from scylla_spark_tools.bench.thread_profile import sampled

T = TypeVar("T")
_PARTS: Final = 6


def run(options: Options) -> dict[str, Any]:
    """Measures; default 50 tasks a second for 30 min over 1,000 lanes, after 10 s of the same."""
    load = paced_load.Load.of(options, rate=50, seconds=1_800)
    period_s = load.count * load.period_us / 1e6 / _PARTS
    with (
        place(options, "ingest", "dispatch") as home,
        _samples(home.settings, period_s) as samples,
        sampled(options.profile),
    ):
        result = paced_load.measure(home.settings, load)
    sixths = [_p99_ms([late for _, late in part]) for part in parts(result.late)]
    timers = [_p99_ms(part) for part in parts(result.floor)]
    record = report.latency(
        "soak", result.late_us, result.floor, sent=len(result.late) + result.lost, early=result.early,
        cpu_cores=result.cores, violations=result.violations, behind_ms=result.behind_ms, p99_of_sixths_ms=sixths,
        timer_p99_ms=[timers[0], timers[-1]], cpu_seconds=result.cpu_seconds,
    )  # fmt: skip
    for name in ("memory_mb", "files"):
        record |= {f"{name}_first": samples[0][name], f"{name}_last": samples[-1][name]}
    return record | {"floor": sixths[0], "ratio": report.ratio(sixths[-1], sixths[0])}


def parts(values: Sequence[T], count: int = _PARTS) -> list[Sequence[T]]:
    """Values in so many runs of the same length, but for a remainder that the last one has."""
    size = len(values) // count
    return [values[number * size : (number + 1) * size if number < count - 1 else None] for number in range(count)]


def _p99_ms(late_us: Sequence[int]) -> float:
    return round(report.percentile(sorted(late_us), 0.99) / 1000, 3)


@contextmanager
def _samples(settings: Settings, period_s: float) -> Iterator[list[dict[str, Any]]]:
    """Samples once per period while the block runs; the first comes after the first period."""
    over, samples = threading.Event(), list[dict[str, Any]]()

    def look() -> None:
        while not over.wait(period_s):
            samples.append(_sample(settings))
            say(f"memory {samples[-1]['memory_mb']}, files {samples[-1]['files']}")

    thread = threading.Thread(target=look, name="soak-samples", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _sample(settings: Settings) -> dict[str, Any]:
    return {"memory_mb": machine.memory_mb(os.getpid()), "files": files_in(settings)}
