"""How tasks stood at a moment, as memory tells it: the same as the tables read for that moment, on histories made from seeds."""

from __future__ import annotations

import random

import pytest

from scylla_spark.clock import from_us
from scylla_spark.core.tasks.filter import TaskFilter
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.delta.past_status import as_it_was
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_pages import TaskPages
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from tests.support.delta_tables import append, at, fact, make, task

NOW = at(12)
MINUTE = 60_000_000
MOMENTS = [at(hour, minute) for hour in (7, 8, 9, 10, 11) for minute in (0, 20, 59)]


class Reading(TaskPages):
    """Reads every moment from the tables."""

    def _past(self, view, shares, as_of_us, kind):
        return [frame for _, frame in self._read(view, shares, as_of_us, kind)]


def history(path: str, seed: int, *, patient: bool) -> None:
    """Tasks of four hours that came, ran, failed, waited and ended as tasks do; `patient`: some take longer than an hour."""
    rng = random.Random(seed)
    tasks, ends, attempts = [], [], []
    for number in range(120):
        key = TaskKey(at(8) + rng.randrange(240) * MINUTE, f"lane-{number % 7}", f"u{number}")
        came = key.time_us - rng.randrange(120) * MINUTE
        tasks.append(task(key, number, enqueued_at=from_us(came)))
        if rng.random() < 0.1:  # cancelled, maybe long before its time
            ends.append(fact(key, 0, "cancelled", number, started_at=None, finished_at=from_us(came + MINUTE)))
            continue
        clock, last = key.time_us, rng.choice([1, 1, 1, 2, 3])
        for attempt in range(1, last + 1):
            start, clock = clock, clock + rng.randrange(1, 60 if patient else 3) * MINUTE
            if clock > NOW:
                attempts.append(fact(key, attempt, "started", number, started_at=from_us(start)))
                break
            if attempt < last:
                times = {
                    "started_at": from_us(start),
                    "finished_at": from_us(clock),
                    "next_at": from_us(clock + MINUTE),
                }
                attempts.append(fact(key, attempt, "failed", number, error_class="KeyError", **times))
            elif rng.random() < 0.9:
                times = {"started_at": from_us(start), "finished_at": from_us(clock)}
                ends.append(fact(key, attempt, "succeeded", number, **times))
    for table, rows in ((TASKS, tasks), (COMPLETIONS, ends), (ATTEMPTS, attempts)):
        append(path, table, rows)


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2, 3))])
@pytest.mark.slow
def test_memory_tells_of_every_moment_what_the_tables_tell(tmp_path, seed, patient):
    make(tmp_path)
    history(str(tmp_path), seed, patient=patient)
    reader = TableReader(str(tmp_path))
    quick, plain = TaskPages(reader), Reading(reader)
    for moment in MOMENTS:
        told, expected = ([*pages.page(TaskFilter(), 1_000, now=NOW, as_of_us=moment)] for pages in (quick, plain))
        assert told == expected, from_us(moment)
        totals = [pages.totals(TaskFilter(), now=NOW, as_of_us=moment) for pages in (quick, plain)]
        assert totals[0] == totals[1]


def test_hours_that_are_over_are_not_read_again_for_an_earlier_moment(tmp_path):
    make(tmp_path)
    history(str(tmp_path), 1, patient=False)
    pages = TaskPages(TableReader(str(tmp_path)))
    pages.totals(TaskFilter(), now=NOW)
    read = []
    pages._read = lambda view, shares, until_us, detailed: read.append(list(shares)) or []
    pages.totals(TaskFilter(), now=NOW, as_of_us=at(9, 30))
    assert len(read[-1]) <= 2, "the hour of the moment, and perhaps one whose tasks were tried again"


def test_what_was_between_attempts_is_left_to_the_tables(tmp_path):
    make(tmp_path)
    key = TaskKey(at(9), "a", "k")
    append(str(tmp_path), TASKS, [task(key, 1)])
    append(str(tmp_path), COMPLETIONS, [fact(key, 2, "succeeded", 2, finished_at=from_us(at(10)))])
    (rows,) = TaskPages(TableReader(str(tmp_path)))._passing(TaskFilter(), at(11), None, 1)
    assert as_it_was(rows.collect(), at(9, 30)) is None
    assert as_it_was(rows.collect(), at(10)) is not None
    assert as_it_was(rows.collect(), at(8, 59)) is not None
