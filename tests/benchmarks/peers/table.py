"""Results as a table: for a terminal, and for a marked section of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks.peers.figures import Absent, Figure, Rate

COLUMNS = {
    "drain": "drain/s",
    "drain_ordered": "drain in key order/s",
    "lateness": "lateness p50 / p99 ms",
    "lateness_100ms": "with a 100 ms poll",
    "immediate": "due now p50 / p99 ms",
    "enqueue": "bulk enqueue/s",
}
BEGIN, END = "<!-- peers -->", "<!-- /peers -->"


def cell(figure: Figure | None) -> str:
    """A figure as people read it; what was lost, early or out of order is said."""
    if figure is None:
        return ""
    if isinstance(figure, Absent):
        return figure.reason
    if isinstance(figure, Rate):
        return _with_faults(_number(figure.per_s), lost=figure.lost, violations=figure.violations)
    return _with_faults(f"{_number(figure.p50_ms)} / {_number(figure.p99_ms)}", lost=figure.lost, early=figure.early)


def rows(results: Mapping[str, Mapping[str, Figure] | str]) -> list[list[str]]:
    """One row per peer under a row of headings; a peer that was skipped has its reason in the first column of figures."""
    lines = [["", *COLUMNS.values()]]
    for name, result in results.items():
        if isinstance(result, str):
            lines.append([name, f"skipped: {result}", *[""] * (len(COLUMNS) - 1)])
        else:
            lines.append([name, *(cell(result.get(measure)) for measure in COLUMNS)])
    return lines


def sizes(result: Mapping[str, Figure] | str) -> str:
    """Returns how many tasks a peer's rates are of, as a sentence; empty where there is no rate."""
    if isinstance(result, str):
        return ""
    counts = {measure: figure.count for measure, figure in result.items() if isinstance(figure, Rate)}
    told = ", ".join(f"{COLUMNS[measure].removesuffix('/s')} {count:,}" for measure, count in counts.items())
    return f" Tasks: {told}." if told else ""


def plain(lines: Sequence[Sequence[str]]) -> str:
    """The rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """The rows as a table of a page."""
    head, *others = (f"| {' | '.join(text.replace('|', '/') for text in line)} |" for line in lines)
    return "\n".join([head, "|" + "---|" * len(lines[0]), *others])


def replace_section(path: Path, text: str) -> None:
    """Puts `text` between the two marks of a page; ValueError if the page does not have both, once each."""
    page = path.read_text()
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"{path} needs the line {BEGIN} and below it the line {END}, once each")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{text.strip()}\n{END}{after}")


def _with_faults(text: str, **faults: int) -> str:
    told = [f"{count:,} {name}" for name, count in faults.items() if count]
    return f"{text} ({', '.join(told)})" if told else text


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"
