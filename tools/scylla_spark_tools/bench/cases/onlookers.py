"""`onlookers`: lateness, and how quickly the API answers others, while fifty people have the screen Now open, against nobody.

A million tasks are stored (`stored_day`), a hundred others a second start meanwhile. Another asks the API for tasks, pages, counts,
by turns and with pauses; `api_ratio` compares the p99 of its calls. Both are measured three times, by turns. Afterwards nobody asks, and
`one_screen_cores` is the CPU of the API's process with one open screen, `screens_cores` with all, both without what it takes with none
and the same load.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from scylla_spark.clock import boot_us, now_us
from scylla_spark.processes.deployment import Deployment
from scylla_spark_tools.bench import machine, report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.cases.reads import LANES
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Options, place
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.stored_day import StoredDay

_SCREENS: Final = 50
_CALLS: Final = 100
_PAUSE_MS: Final = 50


class _Seen(NamedTuple):
    """A load, and what others saw meanwhile.

    Attributes:
        result: of the load.
        calls_us: how long calls of another took.
        events: that open screens got.
    """

    result: paced_load.Result
    calls_us: list[int]
    events: int


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100 tasks a second for 20 s, three times without a screen and with fifty, then CPU alone."""
    load = paced_load.Load.of(options, rate=100, seconds=20)
    turns: dict[int, list[_Seen]] = {0: [], _SCREENS: []}
    cores: dict[int, float] = {}
    with place(options, "ingest", "dispatch", "plan", "api") as home:
        day = StoredDay(options.stored or 1_000_000, options.lanes or LANES, now_us())
        assert home.spark is not None
        day.store(home.spark, home.settings)
        rounds = itertools.count()
        for _ in range(options.turns):
            for count, seen in turns.items():
                seen.append(_asked(home, load, day, count, before=next(rounds) * load.total))
        for count in (0, 1, _SCREENS):
            cores[count] = _quiet(home, load, count, before=next(rounds) * load.total)
    plain, result = (paced_load.joined([one.result for one in seen]) for seen in turns.values())
    calls = [
        report.percentile(sorted(us for one in turns[count] for us in one.calls_us), 0.99) / 1000
        for count in (_SCREENS, 0)
    ]
    return report.compared(
        "onlookers", result.late_us, plain.late_us, sent=len(result.late) + result.lost, early=result.early,
        cpu_cores=result.cores, violations=result.violations, stored=day.count, screens=_SCREENS,
        events=sum(one.events for one in turns[_SCREENS]), one_screen_cores=round(cores[1] - cores[0], 4),
        screens_cores=round(cores[_SCREENS] - cores[0], 4), api_cores=round(cores[0], 4), api_p99_ms=calls[0],
        api_floor_p99_ms=calls[1], api_ratio=report.ratio(*calls), behind_ms=result.behind_ms,
    )  # fmt: skip


def _asked(home: Deployment, load: paced_load.Load, day: StoredDay, screens: int, *, before: int) -> _Seen:
    """The load, with so many open screens and somebody who asks."""
    with _open(home, screens) as people, _caller(home, day) as caller:
        caller.send(True)
        result = paced_load.measure(home.settings, load, before=before)
        took: dict[str, list[int]] = caller.answer(LIMIT_S)
        people.send(True)
        return _Seen(result, [us for found in took.values() for us in found], people.answer()["events"])


def _quiet(home: Deployment, load: paced_load.Load, screens: int, *, before: int) -> float:
    """Cores of the API's process under the load, with so many open screens, while nobody else asks."""
    with _open(home, screens) as people:
        cpu, begun = _api_seconds(), boot_us()
        paced_load.measure(home.settings, load, before=before)
        cores = (_api_seconds() - cpu) / ((boot_us() - begun) / 1e6)
        people.send(True)
        people.answer()
        return cores


@contextmanager
def _open(home: Deployment, screens: int) -> Iterator[Helper]:
    with Helper("onlookers", home.settings, api=home.addresses["api"], count=screens) as people:
        people.answer(LIMIT_S)
        yield people


@contextmanager
def _caller(home: Deployment, day: StoredDay) -> Iterator[Helper]:
    """Somebody else, who asks all the time; what is remembered of the tables is made by calls that do not count."""
    picked = day.picked(_CALLS)
    paths = {
        "task": [f"/v1/tasks/{day.id(n)}" for n in picked],
        "page": ["/v1/tasks?filter=queue:reads-7&limit=100"] * _CALLS,
        "count": ["/v1/tasks:count?filter=queue:reads-7"] * _CALLS,
    }
    with Helper("reads", home.settings, api=home.addresses["api"], paths=paths, pause_ms=_PAUSE_MS) as caller:
        caller.answer()
        yield caller


def _api_seconds() -> float:
    return machine.cpu_by_part(os.getpid()).get("api", 0.0)
