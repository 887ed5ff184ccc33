"""The heat map of lateness: per queue a strip of SVG, whose colours say how late tasks started in each stretch of five minutes.

A strip is one path per colour and a few links, so that a day of many queues is some kilobytes; colours are classes of the stylesheet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from scylla_spark.clock import iso
from scylla_spark.dashboard.value_texts import count_text, instant_of, ms_text

LEVELS_MS: Final = (100, 1_000, 10_000, 60_000, 600_000)
"""Lateness from which on the next warmer colour is used."""
MOST_QUEUES: Final = 60
_MOST_CELL_LINKS: Final = 40  # with more stretches than this, a link leads to a whole hour
_EDGE: Final = 20  # in this share at the end of the axis no hour is named: the text would stand beside the map
_HOUR_US: Final = 3_600_000_000

Link = Callable[[str, int, int], str]
"""From queue, begin and end (microseconds since the epoch) to where a click leads."""


class Cell(NamedTuple):
    """One stretch of a queue, or several together.

    Attributes:
        at_us: its begin, microseconds since the epoch.
        started: tasks that started.
        p50_ms: their lateness; None: nothing started. Of several stretches the largest, as the others.
        p99_ms: likewise.
        worst_ms: likewise.
        open: tasks that were due and have not started.
        open_ms: how long the oldest of them has waited.
    """

    at_us: int
    started: int
    p50_ms: float | None
    p99_ms: float | None
    worst_ms: float | None
    open: int
    open_ms: float | None

    @property
    def late_ms(self) -> float:
        """The value of the colour: p99 of the started tasks, or the wait of the oldest task that has not started."""
        return max(self.p99_ms or 0.0, self.open_ms or 0.0)

    @property
    def level(self) -> int:
        """Number of its colour, 0 for on time."""
        return bisect_right(LEVELS_MS, self.late_ms)

    @property
    def words(self) -> str:
        """All of it, for people."""
        waits = f", {count_text(self.open)} still open for {ms_text(self.open_ms)}" if self.open else ""
        ran = (
            f", p50 {ms_text(self.p50_ms)}, p99 {ms_text(self.p99_ms)}, worst {ms_text(self.worst_ms)}"
            if self.started
            else ""
        )
        return f"{count_text(self.started)} started{ran}{waits}"


class Window(NamedTuple):
    """The time range of the map and the length of its cells, in microseconds."""

    begin_us: int
    end_us: int
    step_us: int

    @property
    def steps(self) -> int:
        """The number of cells."""
        return max(-(-(self.end_us - self.begin_us) // self.step_us), 1)


class Strip(NamedTuple):
    """One queue of the map.

    Attributes:
        queue: its name.
        svg: its stretches.
        total: all stretches together.
    """

    queue: str
    svg: Markup
    total: Cell


def cells_of(told: Sequence[Mapping[str, Any]]) -> dict[str, list[Cell]]:
    """Queue → its stretches in order, from what the API tells of lateness."""
    found: dict[str, list[Cell]] = {}
    for one in told:
        at_us = instant_of(one["at"])
        if at_us is not None:
            numbers = (one[name] for name in Cell._fields[1:])
            found.setdefault(one["queue"], []).append(Cell(at_us, *numbers))
    return found


def strips(cells: Mapping[str, Sequence[Cell]], window: Window, link: Link) -> list[Strip]:
    """The queues of a map by name; where there are too many, the latest ones.

    Args:
        cells: queue → its stretches in order.
        window: what to show.
        link: where a click on a part of a strip leads.
    """
    totals = {queue: together(some) for queue, some in cells.items()}
    latest = sorted(totals, key=lambda queue: (-totals[queue].late_ms, queue))[:MOST_QUEUES]
    return [Strip(queue, _svg(queue, cells[queue], window, link), totals[queue]) for queue in sorted(latest)]


def together(cells: Sequence[Cell]) -> Cell:
    """Several stretches as one: counts added, of all others the largest."""
    return Cell(
        cells[0].at_us,
        sum(cell.started for cell in cells),
        _most(cell.p50_ms for cell in cells),
        _most(cell.p99_ms for cell in cells),
        _most(cell.worst_ms for cell in cells),
        sum(cell.open for cell in cells),
        _most(cell.open_ms for cell in cells),
    )


def hours_axis(window: Window) -> Markup:
    """The hours below the map, at their places however wide it is drawn."""
    span = window.steps * window.step_us
    every = next((hours for hours in (1, 3, 6, 12, 24) if span / (hours * _HOUR_US) <= 8), 24) * _HOUR_US
    if span <= _HOUR_US * 2:
        every = _HOUR_US // 4
    first = -(-window.begin_us // every) * every
    marks = [
        Markup('<text x="{:.2f}%" y="12">{}</text>').format(100 * (at - window.begin_us) / span, iso(at)[11:16])
        for at in range(first, window.end_us - span // _EDGE, every)
    ]
    return Markup('<svg class="axis" width="100%" height="16" aria-hidden="true">{}</svg>').format(
        Markup("").join(marks)
    )


def _svg(queue: str, cells: Sequence[Cell], window: Window, link: Link) -> Markup:
    places: dict[int, list[int]] = {}
    for cell in cells:
        places.setdefault(cell.level, []).append(_place(cell, window))
    paths = [
        Markup('<path class="heat{}" d="{}"/>').format(level, "".join(_runs(some)))
        for level, some in sorted(places.items())
    ]
    links = Markup("").join(_links(queue, cells, window, link))
    return Markup(
        '<svg class="strip" viewBox="0 0 {} 1" preserveAspectRatio="none" aria-hidden="true">{}{}</svg>'
    ).format(window.steps, Markup("").join(paths), links)


def _place(cell: Cell, window: Window) -> int:
    return (cell.at_us - window.begin_us) // window.step_us


def _runs(places: Sequence[int]) -> list[str]:
    """Rectangles that cover places, neighbours together."""
    found = []
    for _, run in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        covered = [place for _, place in run]
        found.append(f"M{covered[0]} 0h{len(covered)}v1h-{len(covered)}z")
    return found


def _links(queue: str, cells: Sequence[Cell], window: Window, link: Link) -> list[Markup]:
    """Invisible rectangles over the strip that say what is below and lead to it; keyboards use the table beside the map."""
    size = window.step_us if window.steps <= _MOST_CELL_LINKS else max(_HOUR_US, window.step_us)
    found = []
    for begin, some in groupby(cells, key=lambda cell: cell.at_us // size * size):
        part = list(some)
        first, last = _place(part[0], window), _place(part[-1], window) + 1
        found.append(
            Markup('<a href="{}" tabindex="-1"><rect x="{}" width="{}" height="1"><title>{}</title></rect></a>').format(
                link(queue, begin, begin + size),
                first,
                last - first,
                f"{queue}, {iso(begin)[11:16]}: {together(part).words}",
            )
        )
    return found


def _most(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)
