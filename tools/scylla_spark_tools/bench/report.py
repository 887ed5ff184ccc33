"""Numbers to records and tables: percentiles, the fields that every benchmark gives, and how people see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scylla_spark_tools.bench import machine

WIDTH: Final = 100
LATENCY: Final = (
    "bench",
    "count",
    "lost",
    "early",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "max_ms",
    "floor",
    "ratio",
    "cpu_cores",
)
SECONDS: Final = ("bench", "count", "seconds", "floor_seconds", "ratio", "violations", "lost")
RATE: Final = ("bench", "count", "rate_per_s", "floor_per_s", "ratio", "violations", "lost")

_KINDS: Final = ((LATENCY, "p50_ms"), (RATE, "rate_per_s"), (SECONDS, "floor_seconds"))


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed (nearest rank); 0 of nothing.

    Args:
        sorted_values: ascending.
        share: from 0 to 1.
    """
    if not sorted_values:
        return 0.0
    rank = -(-len(sorted_values) * round(share * 10_000) // 10_000)
    return sorted_values[min(max(rank, 1), len(sorted_values)) - 1]


def latency(
    bench: str, late_us: Sequence[int], floor_us: Sequence[int], *, sent: int, early: int, cpu_cores: float, **more: Any
) -> dict[str, Any]:
    """The record of a latency benchmark; times in milliseconds.

    Args:
        bench: its name.
        late_us: one value per task that started, microseconds.
        floor_us: the same of the floor; `floor` is its median, and `ratio` compares medians.
        sent: how many tasks there were; those without a start are lost.
        early: how many started before their time.
        cpu_cores: CPU time of the whole system over wall time.
        **more: further fields.
    """
    late, floor = sorted(late_us), sorted(floor_us)
    half, floor_half = percentile(late, 0.5), percentile(floor, 0.5)
    return {
        "bench": bench, "count": len(late), "lost": sent - len(late), "early": early, "p50_ms": _ms(half),
        "p95_ms": _ms(percentile(late, 0.95)), "p99_ms": _ms(percentile(late, 0.99)), "max_ms": _ms(percentile(late, 1)),
        "floor": _ms(floor_half), "ratio": ratio(half, floor_half), "cpu_cores": round(cpu_cores, 3),
        "floor_p99_ms": _ms(percentile(floor, 0.99)), "floor_count": len(floor), **more, **machine.facts(),
    }  # fmt: skip


def compared(
    bench: str, late_us: Sequence[int], plain_us: Sequence[int], *, sent: int, early: int, cpu_cores: float, **more: Any
) -> dict[str, Any]:
    """The record of a latency benchmark whose floor is the same load without the burden; `floor` and `ratio` are of p99.

    Args:
        bench: its name.
        late_us: one value per task that started, with the burden, microseconds.
        plain_us: the same without it.
        sent: how many tasks there were with the burden.
        early: how many of them started before their time.
        cpu_cores: CPU time of the whole system over wall time, with the burden.
        **more: further fields.
    """
    record = latency(bench, late_us, plain_us, sent=sent, early=early, cpu_cores=cpu_cores, **more)
    plain = sorted(plain_us)
    half, most = _ms(percentile(plain, 0.5)), _ms(percentile(plain, 0.99))
    del record["floor_p99_ms"]
    return record | {
        "floor": most, "ratio": ratio(record["p99_ms"], most), "floor_p50_ms": half,
        "p50_ratio": ratio(record["p50_ms"], half),
    }  # fmt: skip


def seconds(
    bench: str, count: int, took_s: float, floor_s: float, *, violations: int, lost: int, **more: Any
) -> dict[str, Any]:
    """The record of a benchmark that asks how long something takes; `ratio` is our time over the floor's.

    Args:
        bench: its name.
        count: tasks that it was about.
        took_s: the time, seconds.
        floor_s: that of the floor.
        violations: rows out of order, overlapping or doubled.
        lost: tasks that are missing.
        **more: further fields.
    """
    return {
        "bench": bench, "count": count, "seconds": round(took_s, 3), "floor_seconds": round(floor_s, 3),
        "ratio": ratio(took_s, floor_s), "violations": violations, "lost": lost, **more, **machine.facts(),
    }  # fmt: skip


def rate(
    bench: str, count: int, seconds: float, floor_per_s: float, *, violations: int, lost: int, **more: Any
) -> dict[str, Any]:
    """The record of a rate benchmark; `ratio` is our rate over the floor's.

    Args:
        bench: its name.
        count: rows that arrived.
        seconds: wall time from the first record to the last visible result.
        floor_per_s: rate of the floor.
        violations: rows out of order, overlapping or doubled.
        lost: rows that did not arrive.
        **more: further fields.
    """
    per_s = count / seconds if seconds > 0 else 0.0
    return {
        "bench": bench, "count": count, "rate_per_s": round(per_s, 1), "floor_per_s": round(floor_per_s, 1),
        "ratio": ratio(per_s, floor_per_s), "violations": violations, "lost": lost, "seconds": round(seconds, 3),
        **more, **machine.facts(),
    }  # fmt: skip


def ratio(value: float, floor: float) -> float | None:
    """Value over floor; None where there is no floor."""
    return round(value / floor, 3) if floor > 0 else None


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """One line per benchmark, at most 100 columns; each kind of benchmark in a table of its own."""
    texts = []
    for columns, mark in _KINDS:
        rows = [record for record in records if mark in record]
        if rows:
            texts.append(_table(rows, columns))
    broken = [f"{record['bench']}: {record['error']}" for record in records if "error" in record]
    return "\n\n".join(texts + broken)


def details(record: Mapping[str, Any]) -> str:
    """The fields that the table leaves out, as lines of at most 100 columns."""
    shown = next(columns for columns, mark in _KINDS if mark in record)
    lines = [""]
    for name, value in record.items():
        if name in shown:
            continue
        item = f"{name} {_text(value)}"
        if lines[-1] and len(lines[-1]) + len(item) + 2 > WIDTH:
            lines.append("")
        lines[-1] += ("  " if lines[-1] else "") + item
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    cells = [list(columns)] + [[_text(row.get(name)) for name in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    lines = []
    for first, *others in cells:
        fields = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append(" ".join([first.ljust(widths[0]), *fields])[:WIDTH].rstrip())
    return "\n".join(lines)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ms(us: float) -> float:
    return round(us / 1000, 3)
