"""The frames of schedules, as they were at an instant."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import from_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ArgumentError
from scylla_spark.schemas import FIRES, JOBS, SCHEDULES
from tests.support.delta_tables import PARTITIONS, append, at, make


@pytest.fixture
def scheduler(tmp_path, spark):
    make(f"{tmp_path}/tables")
    with Scheduler(Settings(data_dir=tmp_path, partitions=PARTITIONS), spark=spark) as scheduler:
        yield scheduler


@pytest.mark.parametrize(
    ("table", "name", "instant"),
    [(SCHEDULES, "name", "changed_at"), (JOBS, "schedule", "changed_at"), (FIRES, "schedule", "decided_at")],
    ids=["schedules", "jobs", "fires"],
)
def test_a_frame_as_of_an_instant_has_what_was_so_by_then(scheduler, tmp_path, table, name, instant):
    rows = [{name: f"s{hour}", instant: from_us(at(hour)), "plan_offset": hour} for hour in (8, 9, 10)]
    append(f"{tmp_path}/tables", table, rows)
    frame = getattr(scheduler, table.name)

    def names(as_of):
        return sorted(row[name] for row in frame(as_of).collect())

    assert names(None) == ["s10", "s8", "s9"]
    assert names(from_us(at(9))) == ["s8", "s9"], "the instant itself belongs to it"
    assert names(from_us(at(9) - 1)) == ["s8"]
    assert names(datetime(2020, 1, 1, tzinfo=UTC)) == []
    with pytest.raises(ArgumentError):
        frame(datetime(2026, 1, 1))  # noqa: DTZ001
