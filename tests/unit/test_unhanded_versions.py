"""What has come to a table and is no run's yet: the same whether it is kept in memory or read again."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scylla_spark.core.plan.state.schedule_entry import Handed
from scylla_spark.core.plan.tables import unhanded as unhanded_module
from scylla_spark.core.plan.tables.changes import Cursor, ranges
from scylla_spark.core.plan.tables.commit import Commit, Count
from scylla_spark.core.plan.tables.table_metadata import Header
from scylla_spark.core.plan.tables.unhanded import Unhanded
from scylla_spark.core.plan.triggers.trigger import OnTable

NOW = 10**15
UNHURRIED = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
BY_DAY = OnTable("t", per="day", min_rows=2)
WHOLE = OnTable("t", min_rows=2)


def commit(version, *days, rows=1, table_id=""):
    by = {"day": {day: Count(rows, 0, 10) for day in days}}
    operation = "append" if days else ""
    return Commit(
        version, version * 10, operation, Count(rows * len(days), 0, 10), by, Header(table_id) if table_id else None
    )


DAYS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=3, unique=True)


@pytest.mark.slow
@UNHURRIED
@given(st.lists(DAYS, min_size=1, max_size=12), st.data())
def test_what_is_left_after_versions_were_handed_over_is_what_reading_again_would_find(days, data):
    commits = [commit(version, *those) for version, those in enumerate(days)]
    seen = data.draw(st.integers(1, len(commits)))
    kept = Unhanded(BY_DAY, Handed("T", -1))
    kept.count(commits[:seen], NOW)
    handed = kept.handed
    for _ in range(data.draw(st.integers(1, 4))):
        part = data.draw(st.sampled_from(["a", "b", "c"]))
        handed = handed.with_part(part, max(handed.of_part(part)[0], data.draw(st.integers(-1, seen - 1))), 5)
        assert kept.hand_over(handed, NOW)
    kept.count(commits[seen:], NOW)
    again = Unhanded(BY_DAY, handed)
    again.count(commits, NOW)
    assert (kept.pending, kept.cursor) == (again.pending, again.cursor)
    assert ranges(BY_DAY, kept.pending) == ranges(BY_DAY, again.pending)
    assert kept.all_handed == again.all_handed


def test_what_all_partitions_have_ends_before_the_first_commit_that_one_of_them_waits_for():
    seen = Unhanded(BY_DAY, Handed("T", 0, 0, {"a": (3, 1)}))
    seen.count([commit(1, "a"), commit(2), commit(3, "a", table_id="U"), commit(4, "a", "b")], NOW)
    assert seen.all_handed == Cursor("U", 3)
    assert seen.hand_over(seen.handed.with_part("b", 4, 1), NOW)
    assert seen.all_handed == Cursor("U", 3)
    assert seen.hand_over(seen.handed.with_part("a", 4, 1), NOW)
    assert seen.all_handed == Cursor("U", 4)


def test_a_table_as_a_whole_is_not_read_again_either():
    seen = Unhanded(WHOLE, Handed("T", 0))
    seen.count([commit(1, "a", rows=5), commit(2, "b", rows=5)], NOW)
    assert seen.hand_over(Handed("T", 1, 7), NOW)
    (left,) = ranges(WHOLE, seen.pending)
    assert (left.from_version, left.to_version, left.grown.rows) == (1, 2, 5)
    assert not seen.hand_over(Handed("T", 0), NOW), "it was set back"
    assert not seen.hand_over(Handed("other", 2), NOW)
    assert not seen.hand_over(Handed("T", 3), NOW), "that was not read yet"
    assert ranges(WHOLE, seen.pending) == [left]


def test_where_too_much_waits_it_is_read_again(monkeypatch):
    monkeypatch.setattr(unhanded_module, "MOST_KEPT", 3)
    seen = Unhanded(BY_DAY, Handed("T", -1))
    seen.count([commit(0, "a", "b"), commit(1, "c", None)], NOW)
    assert len(seen.pending.grown) == 4
    assert seen.all_handed == Cursor("T", -1)
    assert seen.slowest == {"a", "b"}
    assert not seen.hand_over(seen.handed.with_part("a", 0, 1), NOW)


@pytest.mark.parametrize("trigger", [BY_DAY, WHOLE])
def test_versions_that_cannot_be_read_any_more_belong_to_the_next_range(trigger):
    seen = Unhanded(trigger, Handed("T", 0))
    seen.count([commit(1, "a", rows=5)], NOW)
    seen.go_on_after(Cursor("T", 4))
    seen.count([commit(5, "a", rows=5)], NOW)
    assert seen.hand_over(Handed("T", 0, 0, {"a": (1, 7)}) if trigger.per else Handed("T", 1, 7), NOW)
    (left,) = ranges(trigger, seen.pending)
    assert (left.from_version, left.to_version, left.grown.rows) == (1, 5, 5)
