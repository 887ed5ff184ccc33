"""Which versions of a table that delta-rs writes a backfill would run, as the trigger would have fired on them."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scylla_spark.client.schedules.version_ranges import not_in, ranges_between, spans_of
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.tables.past_ranges import NULL_PART, PastRange
from scylla_spark.core.plan.triggers.trigger import Condition, OnTable
from scylla_spark.errors import ArgumentError
from scylla_spark.io.delta.log_place import LocalLog


@pytest.fixture
def path(tmp_path):
    return f"{tmp_path}/orders"


@pytest.fixture
def settings(tmp_path):
    return Settings(data_dir=f"{tmp_path}/own")


def append(path, *ids, day="d1"):
    rows = pa.table({"day": [day] * len(ids), "id": list(ids)}, schema=pa.schema([("day", "string"), ("id", "int64")]))
    write_deltalake(path, rows, mode="append", partition_by=["day"])


def spans(found):
    return [(one.from_version, one.to_version, one.rows) for one in found]


def write_some(path):
    """Versions 0 to 6: appends of 1, 2, 3, 4 and 5 rows, and what puts files together between them."""
    append(path, *range(1))
    append(path, *range(2))
    append(path, *range(3))
    DeltaTable(path).optimize.compact()
    append(path, *range(4))
    DeltaTable(path).optimize.z_order(["id"])
    append(path, *range(5), day="d2")


def test_each_commit_that_counts_is_a_range_and_ranges_touch(path, settings):
    write_some(path)
    table_id, found = ranges_between(settings, OnTable(path), -1, 6)
    assert spans(found) == [(-1, 0, 1), (0, 1, 2), (1, 2, 3), (2, 4, 4), (4, 6, 5)]
    assert table_id == str(DeltaTable(path).metadata().id)
    assert all(one.commits == 1 and one.bytes > 0 and one.part == "" for one in found)
    assert [one.at_us for one in found] == sorted(one.at_us for one in found)
    assert ranges_between(settings, OnTable(path), 1, 4) == (table_id, found[2:4])
    assert spans(ranges_between(settings, OnTable(path), 2, 3)[1]) == [], "a version that only put files together"


def test_ranges_are_as_large_as_the_trigger_asks_for_and_the_rest_is_one_too(path, settings):
    write_some(path)
    assert spans(ranges_between(settings, OnTable(path, min_rows=3), -1, 6)[1]) == [
        (-1, 1, 3),
        (1, 2, 3),
        (2, 4, 4),
        (4, 6, 5),
    ]
    assert spans(ranges_between(settings, OnTable(path, min_commits=2), -1, 6)[1]) == [(-1, 1, 3), (1, 4, 7), (4, 6, 5)]
    assert spans(ranges_between(settings, OnTable(path, operations=("delete",)), -1, 6)[1]) == []
    some = OnTable(path, where=(Condition("id", ">=", 2),))
    assert spans(ranges_between(settings, some, -1, 6)[1]) == [(-1, 2, 1), (2, 4, 2), (4, 6, 3)]


def test_commits_that_came_close_together_are_one_range_for_a_trigger_that_waits_until_it_is_quiet(path, settings):
    write_some(path)
    times = ranges_between(settings, OnTable(path), -1, 6)[1]
    settled = OnTable(path, settle_us=3_600_000_000)
    assert spans(ranges_between(settings, settled, -1, 6)[1]) == [(-1, 6, 15)]
    assert times[-1].at_us - times[0].at_us < 3_600_000_000


def test_each_partition_has_ranges_of_its_own(path, settings):
    append(path, 1, day="d1")
    append(path, 2, day="d2")
    append(path, 3, day=None)
    append(path, 4, 5, day="d1")
    found = ranges_between(settings, OnTable(path, per="day"), -1, 3)[1]
    assert [(one.part, one.from_version, one.to_version, one.rows) for one in found] == [
        ("d1", -1, 0, 1), ("d2", -1, 1, 1), (NULL_PART, -1, 2, 1), ("d1", 0, 3, 2),
    ]  # fmt: skip


def test_versions_that_the_log_does_not_have_are_refused_with_what_to_do(path, settings):
    write_some(path)
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        Path(path, "_delta_log", f"{version:020d}.json").unlink()
    with pytest.raises(ArgumentError, match="0 to 1 cannot be read any more") as found:
        ranges_between(settings, OnTable(path), -1, 6)
    assert found.value.hint == "Begin after version 1, or later."
    assert spans(ranges_between(settings, OnTable(path), 1, 6)[1])[0] == (1, 2, 3)
    with pytest.raises(ArgumentError, match="ends with version 6; versions up to 9"):
        ranges_between(settings, OnTable(path), 1, 9)
    with pytest.raises(ArgumentError, match="ends with version 6"):
        ranges_between(settings, OnTable(path), 8, 9)
    with pytest.raises(ArgumentError, match="more than 10000 versions"):
        ranges_between(settings, OnTable(path), 0, 10_001)
    for begin, end in ((3, 3), (4, 3), (-2, 3)):
        with pytest.raises(ArgumentError, match="no versions after"):
            ranges_between(settings, OnTable(path), begin, end)


def test_a_table_that_cannot_be_read_from_here_is_to_be_asked_about_elsewhere(path, settings):
    with pytest.raises(ArgumentError, match="no Delta table") as found:
        ranges_between(settings, OnTable(path), 0, 3)
    assert "from where it can be read" in found.value.hint
    with pytest.raises(ArgumentError, match="is not known") as found:
        ranges_between(settings, OnTable("main.orders"), 0, 3)
    assert "plan.tables" in found.value.hint
    with pytest.raises(ArgumentError, match="one of the deployment's own"):
        ranges_between(settings, OnTable(f"{settings.tables_path}/tasks"), 0, 3)


def test_a_table_that_may_not_be_read_is_told_of_likewise(path, settings, monkeypatch):
    def names(self):
        raise PermissionError(13, "Permission denied")

    append(path, 1)
    monkeypatch.setattr(LocalLog, "names", names)
    with pytest.raises(ArgumentError, match="Permission denied") as found:
        ranges_between(settings, OnTable(path), -1, 0)
    assert "the right to read it" in found.value.hint


def test_more_runs_than_may_be_are_refused(path, settings, monkeypatch):
    monkeypatch.setattr("scylla_spark.client.schedules.version_ranges.MOST_RUNS", 4)
    write_some(path)
    with pytest.raises(ArgumentError, match="More than 4 runs"):
        ranges_between(settings, OnTable(path), -1, 6)
    assert len(ranges_between(settings, OnTable(path), 0, 6)[1]) == 4


def test_what_lies_within_runs_of_before_is_left_out_and_what_lies_in_part_in_them_is_not():
    ranges = [
        PastRange(first, first + 2, 1, 1, 1, part, 0) for first, part in ((0, ""), (2, ""), (4, ""), (6, "x"), (8, "x"))
    ]
    assert not_in(ranges, [("", (0, 1)), ("", (1, 3)), ("y", (0, 20))]) == ranges[1:]
    assert not_in(ranges, [("", (5, 8)), ("x", (8, 9)), ("x", (9, 10))]) == ranges[:3]
    rows = [
        {"values": '{"table":{"table_id":"id","from_version":1,"to_version":4,"partition":null}}'},
        {"values": '{"table":{"table_id":"other","from_version":1,"to_version":4,"partition":"p"}}'},
        {"values": None},
    ]
    assert spans_of(rows, "id") == [("", (1, 4))]
