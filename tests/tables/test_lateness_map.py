"""The heat map of lateness as text: colours, links, words, and names that try to be markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from scylla_spark.clock import iso
from scylla_spark.dashboard.lateness_map import (
    LEVELS_MS,
    MOST_QUEUES,
    Cell,
    Window,
    cells_of,
    hours_axis,
    strips,
    together,
)
from tests.support.delta_tables import at

STEP = 300_000_000
DAY = Window(at(0), at(0) + 288 * STEP, STEP)
HOUR = Window(at(10), at(11), STEP)


def told(queue: str, when: int, p99: float | None = 5.0, **more) -> dict:
    known = {
        "queue": queue,
        "at": iso(when),
        "started": 1,
        "p50_ms": p99,
        "p99_ms": p99,
        "worst_ms": p99,
        "open": 0,
        "open_ms": None,
    }
    return known | more


def link(queue: str, begin: int, end: int) -> str:
    return f"/ui/time?queue={queue}&from={iso(begin)}&to={iso(end)}"


def drawn(rows, window=DAY):
    found = strips(cells_of(rows), window, link)
    for one in found:
        ElementTree.fromstring(one.svg)  # it is well-formed
    return found


def test_a_stretch_has_the_colour_of_its_lateness():
    cells = cells_of([told("q", at(1), late) for late in (0, 99, *LEVELS_MS, 10**9)])["q"]
    assert [cell.level for cell in cells] == [0, 0, 1, 2, 3, 4, 5, 5]


def test_what_waits_is_as_late_as_it_has_waited():
    (cell,) = cells_of([told("q", at(1), None, started=0, open=2, open_ms=90_000.0)])["q"]
    assert (cell.level, cell.words) == (4, "0 started, 2 still open for 1\u202fmin 30\u202fs")


def test_neighbours_of_a_colour_are_one_rectangle():
    (strip,) = drawn([told("q", at(1, minute)) for minute in (0, 5, 10, 20)])
    assert re.findall(r'class="heat0" d="(.+?)"', strip.svg) == ["M12 0h3v1h-3zM16 0h1v1h-1z"]


def test_a_day_links_to_hours_and_an_hour_to_its_stretches():
    rows = [told("q", at(10, minute)) for minute in (0, 5, 55)]
    (day,), (hour,) = drawn(rows), drawn(rows, HOUR)
    assert len(re.findall("<a ", day.svg)) == 1
    assert f"from={iso(at(10))}&amp;to={iso(at(11))}" in day.svg
    assert len(re.findall("<a ", hour.svg)) == 3
    assert f"from={iso(at(10, 55))}&amp;to={iso(at(11))}" in hour.svg


def test_names_are_never_markup():
    (strip,) = drawn([told('<script>alert("1")</script>', at(1))])
    assert "<script" not in strip.svg
    assert "&lt;script&gt;" in strip.svg


def test_of_too_many_queues_the_latest_are_shown_by_name():
    rows = [told(f"q{number:03}", at(1), float(number)) for number in range(MOST_QUEUES + 5)]
    shown = [one.queue for one in drawn(rows)]
    assert (shown[0], shown[-1], len(shown)) == ("q005", f"q{MOST_QUEUES + 4:03}", MOST_QUEUES)


def test_stretches_together_add_counts_and_keep_the_largest():
    first, second = Cell(1, 2, 3.0, 4.0, 5.0, 0, None), Cell(2, 1, None, 9.0, 1.0, 4, 7.0)
    assert together([first, second]) == Cell(1, 3, 3.0, 9.0, 5.0, 4, 7.0)


def test_the_axis_names_a_few_hours_of_a_day_and_quarters_of_an_hour():
    assert re.findall(">([0-9:]{5})<", hours_axis(DAY)) == [
        "00:00",
        "03:00",
        "06:00",
        "09:00",
        "12:00",
        "15:00",
        "18:00",
        "21:00",
    ]
    assert re.findall(">([0-9:]{5})<", hours_axis(HOUR)) == ["10:00", "10:15", "10:30", "10:45"]


def test_a_day_of_sixty_queues_stays_small():
    rows = [
        told(f"queue-{number}", at(0) + step * STEP, float((number * step) % 100_000))
        for number in range(60)
        for step in range(288)
    ]
    size = sum(len(one.svg) for one in drawn(rows))
    assert size < 700_000
