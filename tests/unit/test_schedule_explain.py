"""Why a schedule ran or did not, told from the planner's own log; and which schedules a list shows."""

import json

import pytest

from scylla_spark.api.schedules.plan_mirror import excerpt
from scylla_spark.cli.commands.schedule_rows import listed, with_verdicts
from scylla_spark.client.schedules.explanation_words import end_of, last_run_us, standing, told, undecided
from scylla_spark.client.schedules.history import last_of, stored
from scylla_spark.client.schedules.selection import Selection, chosen, to_steer
from scylla_spark.clock import iso
from scylla_spark.core.plan.state import plan_log, schedule_entry
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.errors import ArgumentError
from scylla_spark.schemas import FIRES, JOBS, SCHEDULES
from scylla_spark.transforms.plan_rows import plan_rows
from tests.support.planner_harness import SECOND, START, PlannerHarness

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
EVERY_HOUR = {"kind": "every", "period": "1h"}


def rows(plan, table):
    """What the tables would hold, the newest first."""
    found = []
    for offset, value in enumerate(plan.log):
        found += [
            stored(table, row.text) for row in plan_rows(plan_log.decode(value), offset) if row.kind == table.name
        ]
    return found[::-1]


def about(plan, at_us, name="s"):
    """Sentences about a time."""
    entry = plan.shadow.entries[name]
    end_us = end_of(at_us)
    found = [row for row in rows(plan, FIRES) if row["planned_at"] < end_us and at_us <= last_of(row)][::-1]
    said = list(told(found, rows(plan, JOBS), entry.runs))
    return said or list(undecided(entry, rows(plan, SCHEDULES), plan.shadow.calendars, at_us, plan.now))


def now_of(plan, name="s"):
    return list(standing(plan.shadow.entries[name], plan.shadow, plan.now))


@pytest.fixture
def hourly():
    plan = PlannerHarness()
    plan.put("s", EVERY_HOUR)
    plan.to(START + HOUR)
    return plan


def test_a_run_is_told_of_with_its_end(hourly):
    (sentence,) = about(hourly, START + HOUR)
    assert sentence.startswith(
        "2026-03-01T01:00:00Z: launched at 2026-03-01T01:00:00Z, revision 1. Its run has not ended"
    )
    hourly.pass_s(5)
    hourly.end(outcome="failed")
    (sentence,) = about(hourly, START + HOUR)
    assert "Its run ended as failed at 2026-03-01T01:00:05Z; its task: 2026-03-01T01:00:00Z,schedule%2Fs," in sentence


def test_a_time_that_found_another_run_active_says_which(hourly):
    hourly.to(START + 2 * HOUR)
    (sentence,) = about(hourly, START + 2 * HOUR)
    assert sentence.endswith(
        "not run, decided at 2026-03-01T02:00:00Z: the run planned for 2026-03-01T01:00:00Z is active."
    )


def test_times_that_nobody_planned_are_told_of_as_one(hourly):
    hourly.end()
    hourly.restart(after_us=5 * HOUR)
    hourly.pass_s(1)
    (sentence,) = about(hourly, START + 3 * HOUR)
    assert sentence.startswith(
        "2026-03-01T02:00:00Z and all times before 2026-03-01T05:00:00Z: not run: nobody planned"
    )


def test_a_time_while_paused_says_who_paused_it_and_why(hourly):
    hourly.end()
    hourly.ask("pause", names=["s"], note="month end", author="ada")
    hourly.to(START + 3 * HOUR)
    assert about(hourly, START + 2 * HOUR) == [
        "It was paused at 2026-03-01T02:00:00Z, by ada since 2026-03-01T01:00:00Z: month end."
    ]
    assert now_of(hourly) == ["It is paused, by ada since 2026-03-01T01:00:00Z: month end."]


def test_times_before_the_schedule_was_there_and_after_now_are_told_of(hourly):
    assert about(hourly, START - HOUR) == [
        "The schedule was not there at 2026-02-28T23:00:00Z: it was put at 2026-03-01T00:00:00Z."
    ]
    assert about(hourly, START + 5 * HOUR)[0] == "2026-03-01T05:00:00Z is still to come."
    hourly.to(START + 90 * MINUTE)
    assert about(hourly, START + 80 * MINUTE) == [
        "The trigger does not name 2026-03-01T01:20:00Z: the time before is 2026-03-01T01:00:00Z, the one after 2026-03-01T02:00:00Z."
    ]


def test_trouble_with_a_table_is_a_sentence_with_one_full_stop():
    row = {
        "planned_at": START,
        "decided_at": START,
        "verdict": "trouble",
        "why": "unreachable: It cannot be read:\ntimed out.",
        "generation": None,
    }
    (sentence,) = told([row], [], [])
    assert sentence.endswith("told of at 2026-03-01T00:00:00Z: unreachable: It cannot be read: timed out.")


def test_a_holiday_is_the_reason_where_there_is_one():
    plan = PlannerHarness()
    plan.ask("calendar", name="de", days=["2026-03-02"])
    plan.put("s", {"kind": "cron", "expression": "0 2 * * *", "calendar": "de"})
    plan.to(START + 72 * HOUR)
    assert about(plan, START + 26 * HOUR) == [
        "Nothing fires at Mon 2026-03-02 02:00: left out: a day of the calendar 'de'."
    ]


def test_what_a_trigger_still_waits_for_is_told_leaf_by_leaf():
    plan = PlannerHarness()
    trigger = {
        "kind": "all",
        "of": [{"kind": "event", "name": "a"}, {"kind": "partitions", "dataset": "d", "atLeast": 3}],
    }
    plan.put("s", trigger)
    assert now_of(plan) == ["Its trigger has seen nothing since the last launch: event:a waits; dataset:d waits."]
    plan.event("a")
    plan.ask("partitions", name="d", partitions=[{"count": 2}])
    assert now_of(plan) == [
        "Job 1 waits since 2026-03-01T00:00:00Z for its trigger: event:a holds, 1 seen; dataset:d waits, 2 seen."
    ]


def test_a_constraint_that_is_waited_for_is_told_of():
    plan = PlannerHarness()
    plan.put("s", EVERY_HOUR, constraints=[{"kind": "delay", "delay": "10m"}])
    plan.to(START + HOUR)
    assert "it waited" in about(plan, START + HOUR)[0]
    assert (
        now_of(plan)[0]
        == "Job 1 waits since 2026-03-01T01:00:00Z for its constraints: 0 s of 600 s have passed since the first event "
        "(asked again at 2026-03-01T01:10:00Z); it is planned for 2026-03-01T01:00:00Z."
    )
    plan.pass_s(600)
    assert "launched at 2026-03-01T01:10:00Z" in about(plan, START + HOUR)[1]


def test_runs_of_other_schedules_of_the_handler_are_counted():
    plan = PlannerHarness()
    plan.put("other", {"kind": "event", "name": "e"})
    plan.put("s", {"kind": "event", "name": "f"}, constraints=[{"kind": "concurrency", "most": 1, "otherwise": "wait"}])
    plan.event("e")
    plan.event("f")
    assert "for its constraints: 1 of at most 1 runs are active;" in now_of(plan)[0]


def test_a_success_of_another_schedule_of_the_handler_holds_a_run_back_also_in_what_the_api_keeps():
    plan = PlannerHarness()
    plan.put("other", {"kind": "event", "name": "e"})
    plan.event("e")
    plan.end()
    last = {"kind": "last_run", "within": "1h", "otherwise": "wait"}
    plan.put("s", {"kind": "event", "name": "f"}, constraints=[last])
    plan.event("f")
    kept = excerpt(plan.shadow, "s")
    assert "the last success ended 0 s ago; it must be 3600 s" in next(standing(kept.entries["s"], kept, plan.now))


def test_a_whole_minute_means_all_of_it_a_second_likewise_and_an_instant_itself():
    assert [end_of(at) - at for at in (MINUTE, MINUTE + SECOND, MINUTE + 1)] == [MINUTE, SECOND, 1]


def test_past_times_show_what_was_decided(hourly):
    hourly.to(START + 2 * HOUR)
    hourly.restart(after_us=5 * HOUR)
    hourly.pass_s(1)
    times = [{"planned_at": iso(START + hours * HOUR)} for hours in range(5)]
    found = [row["verdict"] for row in with_verdicts(times, rows(hourly, FIRES))]
    assert found == [None, "launched", "skipped", "missed", "missed"]


def test_a_completed_schedule_says_when_it_has_run_for_the_last_time():
    plan = PlannerHarness()
    plan.put("s", {"kind": "at", "times": [iso(START + HOUR)]})
    plan.to(START + HOUR)
    assert not any("completed" in sentence for sentence in now_of(plan)), "its run has not ended"
    plan.end()
    plan.pass_s(60)
    plan.ask("run", name="s")
    plan.end()
    last_us = last_run_us(rows(plan, FIRES))
    assert list(standing(plan.shadow.entries["s"], plan.shadow, plan.now, last_us)) == [
        "It is completed: it has run for the last time at 2026-03-01T01:00:00Z, and its trigger can never fire again."
    ]
    assert now_of(plan) == ["It is completed: its trigger can never fire again."]
    assert last_run_us([]) is None


@pytest.fixture
def many():
    plan = PlannerHarness()
    plan.put("b-time", {"kind": "every", "period": "2h"}, tags=["x"], owner="ada")
    plan.put("a-time", EVERY_HOUR, tags=["x", "y"])
    plan.put("event", {"kind": "event", "name": "e"})
    plan.put("both", {"kind": "all", "of": [EVERY_HOUR, {"kind": "after", "work": "w"}]}, paused=True)
    over = {"kind": "at", "times": [iso(START - HOUR)]}
    plan.put("once", over)
    plan.put("twice", {"kind": "all", "of": [EVERY_HOUR, over]})
    return plan


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Selection(), ["a-time", "b-time", "both", "event", "once", "twice"]),
        (Selection(kind="time"), ["a-time", "b-time", "both", "once", "twice"]),
        (Selection(kind="after"), ["both"]),
        (Selection(kind="event"), ["event"]),
        (Selection(state="paused"), ["both"]),
        (Selection(state="active"), ["a-time", "b-time", "event"]),
        (Selection(state="completed"), ["once", "twice"]),
        (Selection(tag="x"), ["a-time", "b-time"]),
        (Selection(tag="x", owner="ada"), ["b-time"]),
        (Selection(kind="table"), []),
    ],
)
def test_a_list_shows_what_is_asked_for(many, wanted, names):
    assert [entry.name for entry in chosen(many.shadow, wanted, START)] == names


def test_all_that_are_not_paused_can_be_paused_also_those_that_are_completed(many):
    for kind, names in (("pause", ["once", "twice"]), ("resume", ["both"]), ("delete", ["both", "once", "twice"])):
        meant = {entry.name for entry in to_steer(many.shadow.entries, kind, Selection(changed_from_us=START))}
        assert meant.issuperset(names)
        assert ("both" in meant) == (kind != "pause")
        assert ("once" in meant) == (kind != "resume")


def test_a_list_can_be_of_what_is_due_soon(many):
    found = chosen(many.shadow, Selection(), START)
    soon = listed(found, many.shadow, START + 90 * MINUTE, 10, START)
    assert [(row["name"], row["next_at"], row["trigger"]) for row in soon] == [
        ("a-time", "2026-03-01T01:00:00Z", "every 1h")
    ]
    assert [row["name"] for row in listed(found, many.shadow, None, 2, START)] == ["a-time", "b-time"]


def test_a_kind_or_state_that_does_not_exist_is_an_error():
    for wanted in (Selection(kind="cron"), Selection(state="broken")):
        with pytest.raises(ArgumentError, match="There is no"):
            chosen(PlanState(), wanted, START)


def test_rows_of_the_log_have_the_columns_of_their_table(hourly):
    row = rows(hourly, FIRES)[0]
    assert list(row) == FIRES.names
    assert (row["planned_at"], row["verdict"], row["uniqueness_key"]) == (
        START + HOUR,
        "launched",
        "s/2026-03-01T01:00:00Z/1",
    )
    assert json.dumps(row)


@pytest.mark.parametrize("bound", ["MOST_JOBS", "MOST_RUNS"])
def test_times_that_wait_for_a_place_say_since_when_and_why(monkeypatch, bound):
    monkeypatch.setattr(schedule_entry, bound, 2)
    plan = PlannerHarness()
    waits = {"constraints": [{"kind": "delay", "delay": "10h"}]} if bound == "MOST_JOBS" else {}
    plan.put("s", EVERY_HOUR, overlap="buffer_all", **waits)
    plan.to(START + 2 * HOUR)
    assert not [sentence for sentence in now_of(plan) if "wait for a place" in sentence]
    plan.to(START + 5 * HOUR + MINUTE)
    why = "2 jobs wait already" if waits else "2 runs are active"
    said = f"Its times from 2026-03-01T03:00:00Z on wait for a place, and are run when there is one: {why}."
    assert said in now_of(plan)
    assert about(plan, START + 3 * HOUR) == ["The trigger names this time, and no decision about it is recorded."]
    plan.ask("pause", names=["s"])
    assert said not in now_of(plan)
