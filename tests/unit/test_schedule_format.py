"""Definitions of schedules: what is read, what is refused and with which words; nothing else is ever raised."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scylla_spark.clock import iso
from scylla_spark.core.plan.constraint import Concurrency, TimeRange
from scylla_spark.core.plan.schedule_format import read_schedule, stored_schedule
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.template_names import names_of
from scylla_spark.core.plan.times.planned_times import planned_after, times_of
from scylla_spark.core.plan.trigger_format import read_trigger
from scylla_spark.core.plan.triggers.trigger import AnyOf, AtTimes, OnAbsence, OnEvent, OnRuns, OnTable
from scylla_spark.core.tasks.task import NOT_GIVEN
from scylla_spark.errors import ArgumentError

NIGHTLY = {"kind": "cron", "expression": "0 2 * * *", "tz": "Europe/Berlin"}
BACKWARDS = NIGHTLY | {"startAt": "2027-01-02T00:00:00Z", "endAt": "2027-01-01T00:00:00Z"}
ORDERS = {"kind": "table", "table": "main.sales.orders", "minRows": 1_000, "settle": "60s"}
WHOLE = {
    "name": "crm.sync",
    "handler": "sync@2",
    "payload": {"day": '{{ planned | date("%Y-%m-%d") }}', "n": 1},
    "queue": "slow",
    "priority": 3,
    "trigger": {
        "kind": "any",
        "of": [
            NIGHTLY,
            ORDERS,
            {
                "kind": "all",
                "of": [
                    {"kind": "event", "name": "closed", "where": {"region": "eu"}},
                    {"kind": "after", "work": "load", "on": ["failed", "cancelled"]},
                ],
            },
        ],
    },
    "constraints": [
        {"kind": "concurrency", "most": 1, "otherwise": "wait"},
        {"kind": "time_range", "begin": "22:00", "end": "06:00"},
    ],
    "timeout": "10m",
    "expires": "90s",
    "retry": {"maxRetries": 3, "base": "1s"},
    "overlap": "buffer_one",
    "catchUp": "all",
    "catchUpWindow": "7d",
    "pauseAfterFailures": 5,
    "lateAfter": "5m",
    "onJobTimeout": "run",
    "onPause": "keep",
    "paused": True,
    "note": "n",
    "owner": "o",
    "tags": ["a"],
}


def test_a_whole_definition_is_read():
    found = read_schedule(WHOLE)
    assert (found.name, found.work.handler, found.work.timeout_ms, found.work.expires_ms, found.work.retry) == (
        "crm.sync",
        "sync@2",
        600_000,
        90_000,
        (3, 1_000, NOT_GIVEN),
    )
    assert isinstance(found.trigger, AnyOf)
    assert [type(branch) for branch in found.trigger.branches] == [AtTimes, OnTable, AnyOf]
    assert found.trigger.branches[1].settle_us == 60_000_000
    assert found.trigger.branches[2] == AnyOf(
        (OnEvent("closed", (("region", "eu"),)), OnRuns("load", frozenset({"failed", "cancelled"}))), 2
    )
    assert found.constraints == (Concurrency(1, "wait"), TimeRange(22 * 60, 6 * 60))
    assert (found.policies.overlap, found.policies.catch_up_window_us, found.paused) == (
        "buffer_one",
        7 * 86_400_000_000,
        True,
    )
    assert found.definition == WHOLE


def test_what_is_left_out_has_defaults():
    found = read_schedule({"name": "a", "handler": "h", "trigger": {"kind": "every", "period": "1h", "phase": "19m"}})
    assert (found.policies.overlap, found.policies.catch_up, found.work.queue, found.constraints) == (
        "skip",
        "latest",
        "default",
        (),
    )


def test_several_crons_are_an_or():
    both = read_trigger({"kind": "cron", "expression": ["0 1 * * *", "0 2 * * 1"], "jitter": "5m"})
    assert [branch.times.rule.expression for branch in both.branches] == ["0 1 * * *", "0 2 * * 1"]
    assert both.branches[1].times.jitter_us == 300_000_000


def test_a_count_counts_the_runs_of_several_crons_together():
    counted = {"kind": "cron", "startAt": "2026-01-01T00:00:00Z", "count": 3}
    both = read_trigger(counted | {"expression": ["0 9 * * *", "0 17 * * *"]})
    times = list(planned_after(times_of(both), 0, {}))
    assert [iso(at) for at in times] == ["2026-01-01T09:00:00Z", "2026-01-01T17:00:00Z", "2026-01-02T09:00:00Z"]
    same = read_trigger(counted | {"expression": ["0 9 * * *", "0 9 * * 1-5"]})
    assert len(list(planned_after(times_of(same), 0, {}))) == 3


@pytest.mark.parametrize("tz", ["UTC", "Pacific/Kiritimati", "America/New_York"])
@pytest.mark.parametrize("start", ["9999-12-31T23:59:59-12:00", "2262-01-01T00:00:00Z", "0001-01-01T00:00:00+12:00"])
@pytest.mark.parametrize(
    "rule", [{"kind": "cron", "expression": "0 9 * * *"}, {"kind": "rrule", "rule": "FREQ=DAILY", "start": "2026-01-01T00:00"}]
)  # fmt: skip
def test_a_start_that_no_table_can_hold_is_refused_before_it_is_reckoned_with(rule, start, tz):
    with pytest.raises(ArgumentError, match="is before 1970 or after 2261"):
        read_trigger(rule | {"tz": tz, "startAt": start, "count": 3})


def test_an_end_beyond_all_times_is_no_end_and_a_blackout_until_then_has_none():
    far = "9999-12-31T23:59:59-12:00"
    daily = {"kind": "cron", "expression": "0 9 * * *", "tz": "Pacific/Kiritimati"}
    assert read_trigger(daily | {"endAt": far}).times == read_trigger(daily).times
    shut = read_trigger(daily | {"blackout": [["2026-01-02T00:00:00Z", far]]}).times
    assert len(list(planned_after([shut], 1_767_225_600_000_000, {}))) == 1


def test_every_kind_of_time_and_its_bounds_are_read():
    end = "2027-01-01T00:00:00Z"
    at = read_trigger({"kind": "at", "times": ["2026-12-24T18:00:00+01:00"], "endAt": end})
    assert at.times.next_after(0, {}) == 1_798_131_600_000_000
    rule = read_trigger(
        {"kind": "rrule", "rule": "FREQ=DAILY", "start": "2026-01-01T09:00", "tz": "UTC", "startAt": end}
    )
    assert rule.times.next_after(0, {}) == 1_798_794_000_000_000
    break_ = [["2026-12-24T00:00:00Z", "2026-12-27T00:00:00Z"]]
    shut = read_trigger(
        {"kind": "cron", "expression": "0 0 * * *", "calendar": "de", "onHoliday": "next", "blackout": break_}
    )
    assert shut.times.next_after(1_798_041_600_000_000, {}) == 1_798_329_600_000_000
    absent = read_trigger({"kind": "absent", "of": ORDERS, "within": "26h"})
    assert isinstance(absent, OnAbsence)


def test_a_count_ends_a_rule_of_each_second_at_the_right_one():
    sixty = ",".join(map(str, range(60)))
    rule = {"kind": "rrule", "rule": f"FREQ=HOURLY;BYMINUTE={sixty};BYSECOND={sixty}", "start": "2026-01-01T00:00"}
    found = read_trigger(rule | {"startAt": "2027-01-01T00:00:00Z", "count": 1_000})
    assert found.times.last_us == 1_798_761_600_000_000 + 999 * 1_000_000


@pytest.mark.slow
def test_counts_of_all_times_of_a_trigger_have_a_bound_but_what_is_stored_is_read():
    counted = {"kind": "cron", "expression": ["0 1 * * *"] * 3, "startAt": "2027-01-01T00:00:00Z", "count": 700}
    for trigger in (counted, {"kind": "any", "of": [NIGHTLY, counted]}):
        with pytest.raises(ArgumentError, match="add up to 2100; at most 2000"):
            read_trigger(trigger)
        with pytest.raises(ArgumentError, match="add up to 2100; at most 2000"):
            read_schedule(WHOLE | {"trigger": trigger})
    assert read_trigger(counted | {"count": 600}).branches[0].times.last_us == 1_850_518_800_000_000
    definition = {"name": "a", "handler": "h", "trigger": counted}
    assert len(Entry("a", json.dumps(definition)).schedule.trigger.branches) == 3


def test_templates_know_what_fires_of_the_trigger_know():
    assert "table" in names_of(read_trigger(ORDERS))
    assert "table" not in names_of(read_trigger(NIGHTLY))
    with pytest.raises(ArgumentError, match="No fire of this schedule knows 'table'"):
        read_schedule({"name": "a", "handler": "h", "trigger": NIGHTLY, "payload": {"v": "{{ table.to_version }}"}})


def test_what_could_never_fire_is_read_where_it_is_stored():
    for stored in (changed(trigger=BACKWARDS), changed(jobTimeout="0s")):
        assert stored_schedule(stored).name == WHOLE["name"]
    assert read_schedule(changed(jobTimeout="1ms")).policies.timeout_us == 1_000
    once = NIGHTLY | dict.fromkeys(("startAt", "endAt"), "2027-01-01T01:00:00Z")
    assert read_trigger(once).times.next_after(0, {}) == 1_798_765_200_000_000


def changed(**changes):
    return WHOLE | changes


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ([], "schedule"),
        ({}, "name"),
        (changed(name="größe"), "name"),
        (changed(name="x" * 201), "name"),
        (changed(handler=""), "handler"),
        (changed(trigger={"kind": "cron"}), "expression"),
        (changed(trigger={"kind": "cron", "expression": "61 * * * *"}), "minute"),
        (changed(trigger={"kind": "cron", "expression": "0 0 30 2 *"}), "no day"),
        (changed(trigger={"kind": "moon"}), "moon"),
        (changed(trigger={"kind": "every", "period": "0s"}), "interval"),
        (changed(trigger={"kind": "every", "period": "1h", "rule": "x"}), "rule"),
        (changed(trigger={"kind": "any", "of": []}), "no branches"),
        (changed(trigger={"kind": "all"}), "list"),
        (changed(trigger={"kind": "any", "of": [NIGHTLY], "atLeast": 2}), "at_least"),
        (changed(trigger={"kind": "any", "of": [NIGHTLY], "x": 1}), "atLeast"),
        (changed(trigger=NIGHTLY | {"tz": "Europe/Berlim"}), "Berlim"),
        (changed(trigger=NIGHTLY | {"blackout": [["2026-01-02T00:00:00Z"] * 2]}), "blackout"),
        (changed(trigger=NIGHTLY | {"endAt": "2026-01-01"}), "endAt"),
        (changed(trigger=BACKWARDS), "No time lies between the start and the end"),
        (changed(trigger={"kind": "any", "of": [NIGHTLY, BACKWARDS]}), "No time lies between the start and the end"),
        (changed(jobTimeout="0s"), "jobTimeout of 0 ms"),
        (changed(trigger={"kind": "after", "work": "a", "on": ["running"]}), "on"),
        (changed(trigger={"kind": "after", "work": "a", "atLeast": 0}), "at_least"),
        (changed(constraints=[{"kind": "concurrency", "most": 0}]), "nothing would ever run"),
        (changed(constraints=[{"kind": "delay"}]), "delay"),
        (changed(constraints=[{"kind": "rate", "most": 1, "per": "1s", "tz": "UTC"}]), "rate"),
        (changed(constraints=[{"kind": "rate", "most": 1_001, "per": "1h"}]), "more than the 1,000 that are counted"),
        (changed(constraints=[{"kind": "time_range", "begin": "06:00", "end": "06:00"}]), "empty"),
        (changed(overlap="perhaps"), "overlap"),
        (changed(priority=256), "priority"),
        (changed(surprise=1), "surprise"),
        (changed(catchUpWindow="-1s"), "catchUpWindow"),
        (changed(timeout="soon"), "timeout"),
        (changed(payload={"a": "{{ planed }}"}), "planed"),
        (changed(retry={"maxRetries": 2**31}), "retry"),
    ],
)
def test_what_is_wrong_is_named(wrong, named):
    with pytest.raises(ArgumentError) as error:
        read_schedule(wrong)
    assert named in str(error.value)


@pytest.mark.slow
def test_trees_that_are_too_large_are_refused():
    deep = NIGHTLY
    for _ in range(500):
        deep = {"kind": "any", "of": [deep]}
    for tree in (deep, {"kind": "any", "of": [NIGHTLY] * 10_000}):
        with pytest.raises(ArgumentError, match=r"large|levels"):
            read_trigger(tree)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(
        [
            "cron",
            "any",
            "table",
            "1h",
            "2026-01-01T00:00:00Z",
            "9999-12-31T23:59:59-05:00",
            "0 0 * * *",
            "UTC",
            [],
            {},
            [NIGHTLY],
            NIGHTLY,
            2**63,
            -1,
        ]
    )
)


def _paths(value, at=()):
    yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _paths(item, (*at, key))


PATHS = [path for path in _paths(WHOLE) if path]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=3))
@pytest.mark.slow
def test_any_change_of_a_definition_is_read_or_refused_with_words(changes):
    value = json.loads(json.dumps(WHOLE))
    for path, new in changes:
        place = value
        with contextlib.suppress(KeyError, IndexError, TypeError):
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = json.loads(json.dumps(new))  # of its own, or a later change puts it into itself
    with contextlib.suppress(ArgumentError):
        read_schedule(value)
