"""The demo's schedules: what they are to run, when all of it has ended, and that their runs are told apart from other tasks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.handlers.registry import load as load_handlers
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import Table
from scylla_spark_tools.demo import collect_evidence, handlers, schedules
from scylla_spark_tools.demo.evidence import ScheduledRun

SECOND = 1_000_000
START = 1_800_000_000 * SECOND
INTENDED = schedules.intended(START)
ENDED = [
    *(ScheduledRun(schedules.EACH_SECOND, at) for at in INTENDED.seconds),
    ScheduledRun(schedules.GROWTH, START, versions=(0, 1)),
    ScheduledRun(schedules.GROWTH, START + 1, versions=(1, 3)),
    ScheduledRun(schedules.EITHER, INTENDED.moment_us),
    ScheduledRun(schedules.EITHER, START, versions=(0, 3)),
]


class Rows(TableReader):
    """Tables of a few rows: an enqueued task, and runs of two schedules."""

    def __init__(self) -> None:
        self.rows = pl.LazyFrame(
            {
                "uniqueness_key": [
                    "t00001",
                    "demo-each-second/2027-01-15T08:00:00.000000Z/1",
                    "demo-growth/2027-01-15T08:00:00.250000Z/1",
                ],
                "outcome": [SUCCEEDED] * 3,
                "result": ['{"delivered_by":1}', "{}", '{"after":0,"upto":2}'],
            }
        )

    def frame(self, table: Table) -> pl.LazyFrame:
        return self.rows


def test_ten_whole_seconds_and_a_moment_among_them_are_planned_and_not_before_the_beginning() -> None:
    plan = schedules.intended(START - 1)

    assert plan.seconds == tuple(START + number * SECOND for number in range(10))
    assert plan.moment_us in plan.seconds
    assert schedules.intended(START) == plan
    assert schedules.intended(START + 1).seconds[0] == START + SECOND


def test_the_schedules_name_a_registered_handler_and_the_bounds_of_the_planned_seconds(tmp_path: Path) -> None:
    each, grown, either = schedules.definitions(INTENDED, tmp_path)

    assert {one.handler for one in (each, grown, either)} <= load_handlers([handlers.__name__]).keys()
    assert (each.trigger.definition["startAt"], each.trigger.definition["endAt"]) == (
        "2027-01-15T08:00:00Z",
        "2027-01-15T08:00:09.500Z",
    )
    assert [one["kind"] for one in either.trigger.definition["of"]] == ["at", "table"]


def test_a_run_that_was_told_of_versions_owns_them_and_one_that_was_told_of_none_owns_none() -> None:
    assert schedules.versions({"after": 0, "upto": 2}) == (0, 2)
    assert schedules.versions({"after": "1", "upto": "3"}) == (1, 3)
    assert schedules.versions({"after": "", "upto": ""}) is None
    assert schedules.versions({}) is None


@pytest.mark.parametrize("missing", [ENDED[0], *ENDED[9:10], *ENDED[11:]], ids=str)
def test_the_schedules_are_waited_for_until_the_last_of_their_runs_has_ended(missing: ScheduledRun) -> None:
    assert schedules.settled(INTENDED, ENDED)
    assert not schedules.settled(INTENDED, [run for run in ENDED if run != missing])


def test_runs_of_schedules_are_told_apart_from_the_tasks_that_somebody_enqueued() -> None:
    assert collect_evidence.scheduled(Rows()) == [
        ScheduledRun(schedules.EACH_SECOND, START),
        ScheduledRun(schedules.GROWTH, START + SECOND // 4, versions=(0, 2)),
    ]
    assert collect_evidence.written(Rows())[0] == 1
