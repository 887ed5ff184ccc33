"""What counts of a table's commits, which versions a fire owns, and when it may fire."""

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scylla_spark.core.plan.tables.changes import (
    WHOLE,
    Cursor,
    begun,
    bridged,
    counted,
    due_at,
    fired,
    narrowed,
    ranges,
)
from scylla_spark.core.plan.tables.commit import MAX_LINE, Commit, Count, Unreadable, read_commit
from scylla_spark.core.plan.tables.table_metadata import Header, as_header, physical_name, read_header
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.errors import ArgumentError

SECOND = 1_000_000
NOW = 10**15
UNHURRIED = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
ORDERS = OnTable("orders")
DAILY = OnTable("orders", per="day")


def line(kind, **body):
    return json.dumps({kind: body}).encode() + b"\n"


def add(rows=None, day="d1", **more):
    stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
    return line("add", path="f", size=100, dataChange=True, partitionValues={"day": day}, **stats, **more)


def remove(rows=None, day="d1", **more):
    stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
    return line("remove", path="f", size=100, dataChange=True, partitionValues={"day": day}, **stats, **more)


def info(operation, mode="", **metrics):
    return line(
        "commitInfo",
        timestamp=5_000,
        operation=operation,
        operationParameters={"mode": mode},
        operationMetrics=metrics,
    )


def commit(version, rows=1, operation="append", at_us=0, **by_day):
    by = {"day": {day: Count(n, 0, 10 * n) for day, n in by_day.items()}} if by_day else {}
    return Commit(version, at_us, operation, Count(rows, 0, 10), by)


def of(*lines, by=(), header=None):
    return read_commit(3, lines, 7, by, header)


# -- reading --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=200) | st.recursive(
    st.none() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["add", "remove", "metaData", "commitInfo", "stats", "size", "partitionValues", "dataChange",
                         "operationMetrics", "operation", "deletionVector", "timestamp", "id", "schemaString"]) | st.text(), inner),
).map(lambda value: json.dumps(value).encode())))  # fmt: skip
@UNHURRIED
@pytest.mark.slow
def test_no_bytes_raise_anything(lines):
    found = read_commit(1, lines, 0, ["day"])
    assert isinstance(found, Commit | Unreadable)
    read_header(lines)


@pytest.mark.parametrize("bad", [b"{", b"", b" \n", b"[]\n", b"\xff\n", b"[" * 100_000, b'{"a":' * 100_000, b"1"])
def test_a_line_that_holds_no_object_makes_the_commit_unreadable(bad):
    found = of(info("WRITE", "Append"), add(1), bad)
    assert isinstance(found, Unreadable)
    assert "Line 3 of version 3" in found.why


def test_an_empty_file_is_no_commit():
    assert "is empty" in of().why


def test_a_line_without_end_is_refused_before_it_is_parsed():
    found = of(b'{"add": "' + b"x" * MAX_LINE + b'"}')
    assert "bytes" in found.why


@pytest.mark.parametrize(
    ("lines", "operation", "added", "removed"),
    [
        ([info("WRITE", "Append"), add(2), add(3)], "append", 5, 0),
        ([info("WRITE", "Append", numOutputRows="9"), add(2), add()], "append", 9, 0),
        ([info("WRITE", "ErrorIfExists", num_added_rows=4), add()], "append", 4, 0),
        ([info("STREAMING UPDATE"), add(2)], "append", 2, 0),
        ([info("CREATE TABLE AS SELECT"), add(2)], "append", 2, 0),
        ([add(2)], "append", 2, 0),
        ([info("WRITE", "Append"), add()], "append", None, 0),
        ([info("WRITE", "Overwrite"), add(2), remove(3)], "overwrite", 2, 3),
        ([info("WRITE", "Overwrite"), add(2), remove()], "overwrite", 2, None),
        ([info("WRITE", "Overwrite", numOutputRows="1000", numCopiedRows="999", numDeletedRows="1"), add(1000), remove(1000)],
         "overwrite", 1, 1),
        ([info("WRITE", "Overwrite", numOutputRows="1000", numCopiedRows="999"), add(), remove()], "overwrite", 1, None),
        ([info("WRITE", "Overwrite", num_added_rows=1), add(1000), remove()], "overwrite", 1, None),
        ([info("WRITE", "Overwrite", num_added_rows=1), add(1000), remove(1000)], "overwrite", 1, 1),
        ([info("WRITE", "Overwrite", num_added_rows=3), add(900), add(100, "d2"), remove(), remove(day="d2")], "overwrite", 3, None),
        ([info("CREATE OR REPLACE TABLE AS SELECT"), add(2)], "overwrite", 2, 0),
        ([info("RESTORE"), add(2), remove(1)], "overwrite", 2, 1),
        ([info("DELETE", numDeletedRows="3"), add(7), remove(10)], "delete", 0, 3),
        ([info("DELETE", num_deleted_rows=3), add(7), remove()], "delete", 0, 3),
        ([info("DELETE"), remove(4)], "delete", 0, 4),
        ([info("DELETE"), add(7), remove(10)], "delete", 0, None),
        ([info("TRUNCATE"), remove()], "delete", 0, None),
        ([info("UPDATE", numUpdatedRows="2"), add(10), remove(10)], "update", 2, 0),
        ([info("MERGE", numTargetRowsInserted="2", numTargetRowsUpdated="3", numTargetRowsDeleted="1"), add(9), remove(5)],
         "merge", 5, 1),
        ([info("MERGE"), add(9), remove(5)], "merge", None, None),
        ([info("Manual Update"), add(9), remove(5)], "update", None, 0),
        ([info("a writer of tomorrow"), remove(5)], "delete", 0, 5),
    ],
)  # fmt: skip
def test_rows_are_those_that_are_new_or_gone_and_not_those_copied(lines, operation, added, removed):
    found = of(*lines)
    assert (found.operation, found.total.rows_added, found.total.rows_removed) == (operation, added, removed)


@pytest.mark.parametrize(
    "lines",
    [
        [info("OPTIMIZE"), add(5), remove(5)],
        [info("VACUUM START", numFilesToDelete=9)],
        [info("VACUUM END")],
        [info("SET TBLPROPERTIES"), line("metaData", id="t")],
        [info("CREATE TABLE"), line("protocol", minReaderVersion=1), line("metaData", id="t")],
        [info("MERGE", numTargetRowsInserted="0")],
        [line("txn", appId="a", version=1)],
        [line("cdc", path="c", dataChange=False, size=1)],
        [line("an action of tomorrow", dataChange=True)],
    ],
)
def test_what_moves_no_rows_does_not_count(lines):
    lines = [one.replace(b'"dataChange": true', b'"dataChange": false') for one in lines]
    found = of(*lines)
    assert (found.changes_data, found.operation, found.total) == (False, "", Count())


def test_rows_that_a_deletion_vector_hides_are_not_counted():
    vector = {"storageType": "u", "cardinality": 3}
    found = of(info("RESTORE"), add(10, deletionVector=vector))
    assert (found.total.rows_added, found.total.bytes_added) == (7, 0)


def test_the_time_is_that_of_the_commit_where_commits_are_ordered_by_time_else_that_of_the_file():
    ordered = line("commitInfo", timestamp=1, inCommitTimestamp=9)
    assert (of(ordered).timestamp_us, of(info("WRITE")).timestamp_us, of(add(1)).timestamp_us) == (9_000, 7, 7)
    assert read_commit(1, [info("WRITE")], 0).timestamp_us == 5_000_000
    assert read_commit(1, [line("commitInfo", timestamp=-1)], 0).timestamp_us == 0
    assert of(line("commitInfo", inCommitTimestamp=2**62)).timestamp_us == 2**63 - 1


def test_partitions_are_counted_by_their_values():
    found = of(info("WRITE", "Append"), add(2), add(3), add(4, day="d2"), add(5, day=None), add(6, day=""), by=["day"])
    assert {value: count.rows_added for value, count in found.by["day"].items()} == {"d1": 5, "d2": 4, None: 11}


def test_rows_of_a_rewrite_over_several_partitions_are_unknown_in_each():
    rewrite = info("MERGE", numTargetRowsInserted="2", numTargetRowsUpdated="0", numTargetRowsDeleted="0")
    one = of(rewrite, add(9), by=["day"])
    two = of(rewrite, add(9), add(9, day="d2"), by=["day"])
    assert one.by["day"] == {"d1": Count(2, 0, 100)}
    assert two.by["day"] == {"d1": Count(None, None, 100), "d2": Count(None, None, 100)}
    assert two.total.rows_added == 2


def test_a_partition_column_is_found_by_the_name_that_files_use():
    schema = {"fields": [{"name": "day", "metadata": {"delta.columnMapping.physicalName": "col-1"}}]}
    meta = {"id": "t", "partitionColumns": ["day"], "schemaString": json.dumps(schema)}
    meta["configuration"] = {"delta.columnMapping.mode": "name"}
    header = as_header(meta)
    assert (physical_name(header, "day"), physical_name(header, "else")) == ("col-1", "else")
    file = line("add", size=1, partitionValues={"col-1": "d1"}, stats='{"numRecords":2}')
    assert of(file, by=["day"], header=header).by["day"]["d1"].rows_added == 2
    assert of(line("metaData", **meta), file, by=["day"]).by["day"]["d1"].rows_added == 2
    assert of(file, by=["day"]).by == {}


def test_a_header_moves_the_cursor_to_another_table():
    found = of(line("metaData", id="new", partitionColumns=["day"]))
    assert found.header == Header("new", ("day",))
    assert Cursor("old", 2).after(found) == Cursor("new", 3)
    assert Cursor("old", 2).after(of(add(1))) == Cursor("old", 3)


# -- what is pending ------------------------------------------------------------------------------------------------------

COMMITS = st.lists(
    st.tuples(
        st.sampled_from(["append", "update", "delete", "merge", "overwrite", ""]),
        st.none() | st.integers(0, 100),
        st.integers(0, 10**9),
        st.sets(st.sampled_from(["d1", "d2", None])),
    ),
    max_size=30,
).map(
    lambda found: [
        Commit(n, at, op, Count(rows, 0, 1), {"day": {day: Count(rows, 0, 1) for day in days}})
        for n, (op, rows, at, days) in enumerate(found)
    ]
)
TRIGGERS = st.builds(
    lambda operations, per, rows: OnTable("t", min_rows=rows, operations=tuple(operations), per=per),
    st.sets(st.sampled_from(["append", "delete", "merge"])),
    st.sampled_from(["", "day"]),
    st.integers(0, 50),
)


@UNHURRIED
@given(TRIGGERS, COMMITS, st.lists(st.integers(0, 30)))
@pytest.mark.slow
def test_commits_split_over_polls_give_what_one_poll_gives(trigger, commits, cuts):
    pending = begun(-1)
    edges = sorted({0, len(commits), *(min(cut, len(commits)) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        seen_again = max(begin - 2, 0)
        pending = counted(trigger, pending, commits[seen_again:end], NOW)
    assert pending == counted(trigger, begun(-1), commits, NOW)


@UNHURRIED
@given(TRIGGERS, COMMITS, st.sets(st.integers(0, 30)))
@pytest.mark.slow
def test_ranges_of_consecutive_fires_touch_and_own_every_row_once(trigger, commits, fire_after):
    pending, owned = begun(-1), []
    for one in commits:
        pending = counted(trigger, pending, [one], NOW)
        if one.version in fire_after:
            for found in ranges(trigger, pending):
                owned.append(found)
                pending = fired(pending, found.key, NOW)
    for key in {found.key for found in owned}:
        mine = [found for found in owned if found.key == key]
        assert [found.from_version for found in mine] == [-1, *(found.to_version for found in mine[:-1])]
        last = mine[-1].to_version
        whole = counted(trigger, begun(-1), commits[: last + 1], NOW).grown[key]
        assert sum(found.grown.rows for found in mine) == whole.rows
        assert sum(found.grown.commits for found in mine) == whole.commits


def test_versions_that_do_not_count_lie_inside_the_range():
    commits = [commit(0), commit(1, operation=""), commit(2, operation="delete"), commit(3), commit(4, operation="")]
    pending = counted(OnTable("t", operations=("append",)), begun(-1), commits, NOW)
    (found,) = ranges(ORDERS, pending)
    assert (found.from_version, found.to_version, found.grown.commits) == (-1, 4, 2)
    assert ranges(ORDERS, fired(pending, WHOLE, NOW)) == []


def test_only_maintenance_fires_nothing():
    pending = counted(ORDERS, begun(0), [commit(1, operation=""), commit(2, operation="")], NOW)
    assert ranges(ORDERS, pending) == []
    (found,) = ranges(ORDERS, counted(ORDERS, pending, [commit(3)], NOW))
    assert (found.from_version, found.to_version) == (0, 3)


def test_a_missing_version_is_an_error_unless_the_gap_is_bridged():
    pending = counted(ORDERS, begun(0), [commit(1)], NOW)
    with pytest.raises(ArgumentError, match="Version 2 is missing before 5"):
        counted(ORDERS, pending, [commit(5)], NOW)
    (found,) = ranges(ORDERS, counted(ORDERS, bridged(pending, 4), [commit(5)], NOW))
    assert (found.from_version, found.to_version, found.grown.commits) == (0, 5, 2)


def test_each_partition_has_a_range_of_its_own():
    pending = counted(DAILY, begun(-1), [commit(0, a=1, b=2), commit(1, b=3)], NOW)
    pending = fired(pending, "b", NOW)
    pending = counted(DAILY, pending, [commit(2, a=4), commit(3, b=5)], NOW)
    found = {one.key: (one.from_version, one.to_version, one.grown.rows) for one in ranges(DAILY, pending)}
    assert found == {"a": (-1, 3, 5), "b": (1, 3, 5)}


def test_deleted_rows_count_only_where_deletes_are_asked_for():
    gone = Commit(0, 0, "delete", Count(0, 9, 0))
    asked = OnTable("t", min_rows=9, operations=("delete",))
    assert ranges(asked, counted(asked, begun(-1), [gone], NOW))
    every = OnTable("t", min_rows=1)
    assert not ranges(every, counted(every, begun(-1), [gone], NOW))


# -- when it may fire -----------------------------------------------------------------------------------------------------


def grown(trigger, *commits, now=NOW):
    return counted(trigger, begun(-1), commits, now).grown[WHOLE]


def test_enough_rows_and_enough_commits_are_needed():
    trigger = OnTable("t", min_rows=10, min_commits=2)
    assert due_at(trigger, grown(trigger, commit(0, 50)), None) is None
    assert due_at(trigger, grown(trigger, commit(0, 4), commit(1, 5)), None) is None
    assert due_at(trigger, grown(trigger, commit(0, 4), commit(1, 6)), None) == 0


def test_unknown_rows_are_enough_rows():
    trigger = OnTable("t", min_rows=10)
    assert due_at(trigger, grown(trigger, commit(0, None)), None) == 0


def test_a_table_settles_after_the_last_commit_that_counts():
    trigger = OnTable("t", settle_us=60 * SECOND)
    busy = [commit(0, at_us=10 * SECOND), commit(1, at_us=40 * SECOND), commit(2, operation="", at_us=90 * SECOND)]
    assert due_at(trigger, grown(trigger, *busy), None) == 100 * SECOND


def test_a_writers_clock_that_is_ahead_delays_nothing():
    trigger = OnTable("t", settle_us=60 * SECOND)
    assert due_at(trigger, grown(trigger, commit(0, at_us=NOW + 10**12)), None) == NOW + 60 * SECOND


def test_less_is_enough_so_long_after_the_last_fire_and_before_the_first_since_it_came():
    trigger = OnTable("t", min_bytes=1_000_000, settle_us=SECOND, overdue_us=600 * SECOND)
    new = grown(trigger, commit(0, at_us=50 * SECOND), commit(1, at_us=60 * SECOND))
    assert due_at(trigger, new, None) == 650 * SECOND
    assert due_at(trigger, new, 100 * SECOND) == 700 * SECOND
    late = grown(trigger, commit(0, at_us=900 * SECOND))
    assert due_at(trigger, late, 100 * SECOND) == 901 * SECOND, "it settles in any case"


def test_a_fire_holds_back_the_next_one_for_as_long_as_the_throttle():
    trigger = OnTable("t", throttle_us=600 * SECOND, settle_us=SECOND)
    new = grown(trigger, commit(0, at_us=50 * SECOND))
    assert due_at(trigger, new, None) == 51 * SECOND
    assert due_at(trigger, new, 40 * SECOND) == 640 * SECOND
    assert due_at(trigger, new, 40 * SECOND - 600 * SECOND) == 51 * SECOND


def test_partitions_are_throttled_apart_and_a_skipped_fire_throttles_nothing():
    trigger = OnTable("t", per="day", throttle_us=600 * SECOND)
    pending = fired(counted(trigger, begun(-1), [commit(0, a=1, b=1)], NOW), "a", 100 * SECOND)
    pending = fired(pending, "b", None)
    pending = counted(trigger, pending, [commit(1, a=1, b=1)], NOW)
    assert [(found.key, found.due_us) for found in ranges(trigger, pending)] == [("b", 0), ("a", 700 * SECOND)]
    pending = counted(trigger, fired(pending, "a", None), [commit(2, a=1)], NOW)
    assert [found.due_us for found in ranges(trigger, pending) if found.key == "a"] == [700 * SECOND]


def test_a_commit_without_rows_that_match_changes_nothing():
    one = commit(0, 5, a=2, b=3)
    none = narrowed(one, Count(0, 0, 10), {"day": {"a": Count(0, 0, 10)}})
    some = narrowed(one, Count(2, 0, 10), {"day": {"a": Count(2, 0, 5), "b": Count(0, 0, 5)}})
    assert (none.changes_data, none.by) == (False, {"day": {}})
    assert (some.changes_data, some.by) == (True, {"day": {"a": Count(2, 0, 5)}})
