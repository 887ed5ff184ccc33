"""What has become of a schedule is the same however far the tables are: the rest is read from the planner's log."""

from types import SimpleNamespace

import pytest

from scylla_spark.client.schedules.history import ScheduleHistory, stored
from scylla_spark.clock import from_us
from scylla_spark.core.plan.state import plan_log
from scylla_spark.errors import UnreachableError
from scylla_spark.io.delta.plan_queries import PlanQueries
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import FIRES, JOBS, PROGRESS, SCHEDULES
from scylla_spark.transforms.plan_rows import plan_rows
from tests.support.delta_tables import append, make
from tests.support.planner_harness import SECOND, START, PlannerHarness

HOUR = 3600 * SECOND
PARTITION = 4


@pytest.fixture(scope="module")
def groups():
    """A log of two schedules, as offsets and groups."""
    plan = PlannerHarness()
    plan.put("s", {"kind": "every", "period": "1h"})
    plan.put("other", {"kind": "every", "period": "1h"})
    plan.to(START + HOUR)
    plan.end()
    plan.ask("pause", names=["s"], note="why", author="ada")
    plan.ask("resume", names=["s"])
    plan.to(START + 3 * HOUR)
    plan.restart(after_us=5 * HOUR)
    plan.pass_s(1)
    return [(10 + offset, plan_log.decode(value)) for offset, value in enumerate(plan.log)]


def history(path, groups, known, *, reachable=True):
    """The history where the tables hold what stands below an offset; those a little more than they say, after a crash."""
    make(str(path))
    for table in (FIRES, JOBS, SCHEDULES):
        cells = [row for offset, group in groups if offset < known + 1 for row in plan_rows(group, offset)]
        rows = [stored(table, row.text) for row in cells if row.kind == table.name]
        instants = [column.name for column in table.columns if column.type == "timestamp"]
        append(path, table, [row | {name: row[name] and from_us(row[name]) for name in instants} for row in rows])
    mark = {"topic": "outcomes", "partition_id": PARTITION, "next_offset": known, "epoch": 1, "nonce": "n"}
    append(path, PROGRESS, [mark] if known else [])

    def beyond(found):
        if not reachable:
            raise UnreachableError("Nobody answers.")
        begin = found.outcomes_offset if found is not None else 0
        return [(offset, group) for offset, group in groups if offset >= begin]

    return ScheduleHistory(PlanQueries(TableReader(str(path)), PARTITION), SimpleNamespace(groups=beyond), "s")


@pytest.mark.slow
def test_the_history_is_the_same_however_far_the_tables_are(tmp_path, groups):
    ends = [0, *(offset + 1 for offset, _ in groups)]
    told = []
    for known in ends:
        past = history(tmp_path / str(known), groups, known)
        about = past.fires_about(START + 2 * HOUR, START + 5 * HOUR)
        told.append((past.fires(), past.fires(since_us=START + 2 * HOUR), past.changes(), about, past.jobs_of(about)))
    fires, recent, changes, about, jobs = told[0]
    assert [row["verdict"] for row in fires][::-1] == [
        "launched",
        "launched",
        "skipped",
        "missed",
        "skipped",
        "skipped",
    ]
    assert all(row["schedule"] == "s" for row in fires)
    assert len(recent) == len(fires) - 1
    assert [row["change"] for row in changes] == ["resumed", "paused", "put"]
    assert {row["verdict"] for row in about} == {"launched", "skipped", "missed"}
    assert {row["generation"] for row in jobs} == {row["generation"] for row in about if row["generation"]}
    assert all(one == told[0] for one in told)


@pytest.mark.slow
def test_without_the_log_it_is_what_the_tables_say(tmp_path, groups):
    past = history(tmp_path, groups, groups[-1][0], reachable=False)
    assert not past.complete
    assert past.fires()
