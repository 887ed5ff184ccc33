"""Schedules in the world of a test: triggers by time and by what happens, constraints, overlaps, pauses; by the planner that plans."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from scylla_spark import Constraint, Retry, Schedule, Trigger
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from scylla_spark.testing import world
from tests.support.effort import python_calls

START = datetime(2026, 3, 1, tzinfo=UTC)  # a Sunday


def report(task):
    return task.payload


def fail(task):
    raise RuntimeError("broken")


def hours(w, handler="report"):
    return [(run.started_at - START) / timedelta(hours=1) for run in w.runs if run.handler == handler]


@pytest.fixture
def w():
    with world([report, fail], START) as made:
        yield made


def test_a_cron_fires_at_its_local_times_across_a_change_of_clocks(w):
    w.put_schedules(
        Schedule(
            "nightly",
            "report",
            Trigger.cron("0 2 * * *", tz="Europe/Berlin"),
            payload={"day": '{{ planned | date("%d") }}'},
        )
    )
    w.advance_to(datetime(2026, 3, 28, tzinfo=UTC))
    w.runs.clear()
    w.advance("71h")
    assert [run.started_at.hour for run in w.runs] == [1, 1, 0]  # UTC; on the 29th two o'clock does not exist
    assert [run.payload["day"] for run in w.runs][-1] == "30"


def test_every_kind_of_time_fires(w):
    w.put_schedules(
        Schedule("hourly", "report", Trigger.every("1h")),
        Schedule("once", "report", Trigger.at(START + timedelta(minutes=90))),
        Schedule("rule", "report", Trigger.rrule("FREQ=DAILY;BYHOUR=3", "2026-03-01T00:00:00")),
    )
    w.advance("4h")
    assert hours(w) == [1, 1.5, 2, 3, 3, 4]


def test_a_handler_finds_the_planned_time_of_its_run_and_no_other_task_has_one():
    seen = []

    def look(task, ctx):
        seen.append((ctx.planned_at, task.scheduled_time))

    with world([look], START) as w:
        w.put_schedules(Schedule("hourly", "look", Trigger.every("1h", jitter="30m")))
        w.advance("2h")
        w.enqueue("look")
        w.advance("1m")
    planned, due = zip(*seen, strict=True)
    assert planned == (START + timedelta(hours=1), None)
    assert due[0] > planned[0]


def test_an_event_fires_if_its_fields_are_right(w):
    w.put_schedules(
        Schedule("stock", "report", Trigger.event("order", where={"kind": "book"}), payload={"id": "{{ event.id }}"})
    )
    w.emit("order", {"kind": "book", "id": 7})
    w.emit("order", {"kind": "lamp", "id": 8})
    w.emit("other")
    w.advance()
    assert [run.payload for run in w.runs] == [{"id": 7}]


def test_partitions_are_counted_until_there_are_enough(w):
    w.put_schedules(Schedule("roll", "report", Trigger.partitions("sales", 3)))
    w.notify_partitions("sales", [{"values": {"day": "1"}}, {"values": {"day": "2"}}])
    w.advance("1h")
    assert not w.ran("report")
    w.notify_partitions("sales", [{"values": {"day": "3"}}])
    w.advance()
    assert w.ran("report", times=1)


def test_what_comes_after_another_run_fires_when_that_has_ended_so(w):
    w.put_schedules(
        Schedule("first", "fail", Trigger.event("go"), retry=Retry(1, base="1h")),
        Schedule("cleanup", "report", Trigger.after("first", on=("failed",))),
        Schedule("never", "report", Trigger.after("first")),
    )
    w.emit("go")
    w.advance("2h")
    assert w.ran("fail", times=2)
    assert [run.key.uniqueness_key.partition("/")[0] for run in w.runs if run.handler == "report"] == ["cleanup"]


def test_what_is_missing_for_too_long_fires_too(w):
    w.put_schedules(Schedule("alarm", "report", Trigger.absent(Trigger.event("beat"), within="2h")))
    w.emit("beat")
    w.advance("1h")
    w.emit("beat")
    w.advance("119m")
    assert not w.ran("report")
    w.advance("1m")
    assert w.ran("report", times=1)


def test_a_table_that_has_grown_enough_fires_and_each_run_owns_what_came_since_the_one_before(w):
    w.grow_table("orders", 5_000)  # before anybody watches
    w.put_schedules(
        Schedule(
            "rollup", "report", Trigger.table("orders", min_rows=1_000),
            payload={name: f"{{{{ table.{name} }}}}" for name in ("from_version", "to_version", "rows", "bytes")},
        )
    )  # fmt: skip
    w.grow_table("orders", 600)
    w.advance("1h")
    assert not w.ran("report")
    w.grow_table("orders", 600)
    w.grow_table("other", 9_000)
    w.advance()
    w.grow_table("orders", 2_000, operation="merge", size=7)
    w.advance()
    assert [run.payload for run in w.runs] == [
        {"from_version": 0, "to_version": 2, "rows": 1_200, "bytes": 0},
        {"from_version": 2, "to_version": 3, "rows": 2_000, "bytes": 7},
    ]  # fmt: skip


def test_a_table_that_has_grown_by_enough_bytes_fires_or_an_hour_does_without_them(w):
    grown = Trigger.table("orders", min_bytes=1_000)
    w.put_schedules(Schedule("rollup", "report", grown, payload={"bytes": "{{ table.bytes }}"}))
    w.put_schedules(Schedule("either", "report", grown | Trigger.every("1h")))
    w.grow_table("orders", 600, size=900)
    w.advance("1s")
    assert not w.ran("report")
    w.grow_table("orders", 1, operation="merge", size=100)
    w.advance("1s")
    assert sorted(run.payload.get("bytes", 0) for run in w.runs) == [0, 1_000]
    w.grow_table("orders", 1, size=1)
    w.advance("1h")
    assert sorted(run.payload.get("bytes", 0) for run in w.runs) == [0, 0, 1_000]


@pytest.mark.parametrize(
    ("trigger", "listens"),
    [
        (Trigger.every("1h"), "time"),
        (Trigger.event("a") & Trigger.after("fail"), "event:a, work:fail"),
        (Trigger.batch("night", 2) | Trigger.table("orders"), "batch:night, table:orders"),
        (Trigger.manual(), "manual"),
    ],
)
def test_a_status_names_all_that_a_schedule_listens_to(w, trigger, listens):
    w.put_schedules(Schedule("a", "report", trigger, tags=("t",), owner="me", expect_every="1h"))
    assert w.schedule("a").status().trigger == listens


def test_a_manual_schedule_runs_by_request_alone(w):
    w.put_schedules(
        Schedule("restore", "report", Trigger.manual(), payload={"day": "{{ planned | date('%F') }}".replace("'", '"')})
    )
    w.advance("400d")
    assert not w.runs
    assert (w.schedule("restore").status().state, w.schedule("restore").status().trigger) == ("active", "manual")
    w.schedule("restore").run_now({"day": "2026-01-01"})
    w.advance("1s")
    assert [run.payload for run in w.runs] == [{"day": "2026-01-01"}]


def test_a_table_is_waited_for_until_it_is_quiet_and_not_run_for_too_often(w):
    w.put_schedules(Schedule("rollup", "report", Trigger.table("orders", settle="10m", at_most_every="2h")))
    for _ in range(3):
        w.grow_table("orders", 1)
        w.advance("6m")
    assert not w.ran("report")
    w.advance("5m")
    assert w.ran("report", times=1)
    w.grow_table("orders", 1)
    w.advance("1h")
    assert w.ran("report", times=1)
    w.advance("2h")
    assert hours(w) == [pytest.approx(22 / 60), pytest.approx(2 + 22 / 60)]


def test_growth_of_a_table_is_kept_while_something_else_is_waited_for(w):
    w.put_schedules(Schedule("rollup", "report", Trigger.table("orders") & Trigger.event("go")))
    w.grow_table("orders", 1)
    w.advance("1h")
    w.grow_table("orders", 1)
    w.advance("1h")
    assert not w.ran("report")
    w.emit("go")
    w.advance()
    assert w.ran("report", times=1)


def test_what_would_need_the_rows_of_a_table_is_refused(w):
    w.put_schedules(Schedule("rollup", "report", Trigger.table("orders", per="day")))
    with pytest.raises(ArgumentError, match="'rollup' looks at the rows of 'orders'"):
        w.grow_table("orders", 1)
    with pytest.raises(ArgumentError, match="Operations: append, update"):
        w.grow_table("other", 1, operation="read")


def test_both_of_two_triggers_are_waited_for(w):
    w.put_schedules(Schedule("both", "report", Trigger.event("a") & Trigger.event("b")))
    w.emit("a")
    w.advance("12h")
    assert not w.ran("report")
    w.emit("b")
    w.advance()
    assert w.ran("report", times=1)


def test_a_constraint_makes_a_job_wait_or_drops_it(w):
    w.put_schedules(
        Schedule("office", "report", Trigger.event("a"), constraints=[Constraint.time_range("08:00", "18:00")]),
        Schedule(
            "never",
            "fail",
            Trigger.event("a"),
            constraints=[Constraint.time_range("08:00", "18:00", otherwise="abort")],
        ),
    )
    w.emit("a")
    w.advance("1d")
    assert hours(w) == [8]
    assert not w.ran("fail")
    assert [(fire.schedule, fire.verdict) for fire in w.fires] == [
        ("never", "skipped"), ("office", "waiting"), ("office", "launched"),
    ]  # fmt: skip
    assert "08:00" in w.fires[0].why


def test_a_fire_that_finds_a_run_active_is_skipped_and_says_so(w):
    w.takes("report", "90m")
    w.put_schedules(Schedule("slow", "report", Trigger.every("1h"), timeout="2h"))
    w.advance("5h")
    assert hours(w) == [1, 3, 5]
    assert {fire.verdict for fire in w.fires} == {"launched", "skipped"}


def test_a_fire_that_cancels_others_ends_the_run_that_runs_and_begins_then(w):
    w.takes("report", "150m")
    w.put_schedules(
        Schedule("fresh", "report", Trigger.every("1h"), overlap="cancel_other", timeout="3h"),
        Schedule("told", "fail", Trigger.after("fresh", on=["cancelled"])),
    )
    w.advance("4h1m")
    assert [round(hour, 2) for hour in hours(w)] == [1, 2, 3, 4]
    assert [run.finished_at - START for run in w.runs if run.handler == "report"][:2] == [
        timedelta(hours=2, seconds=10),
        timedelta(hours=3, seconds=10),
    ]
    assert [task.state for task in w.tasks("report")] == ["cancelled"] * 3 + ["running"]
    assert [fire.verdict for fire in w.fires if fire.schedule == "told"] == ["launched"] * 3


def test_a_run_whose_queue_is_paused_expires_by_its_planned_time_and_the_next_one_runs(w):
    w.put_schedules(Schedule("hourly", "report", Trigger.every("1h"), queue="q", expires="10m"))
    w.queue("q").pause()
    w.advance("90m")
    w.queue("q").resume()
    w.advance("1h")
    assert [task.state for task in w.tasks("report")] == ["expired", "succeeded"]
    assert hours(w) == [2]


def test_a_calendar_keeps_holidays_free(w):
    w.put_calendar("home", [date(2026, 3, 3)])
    w.put_schedules(Schedule("daily", "report", Trigger.cron("0 6 * * *", calendar="home", on_holiday="skip")))
    w.advance("4d")
    assert hours(w) == [6, 30, 78]


def test_a_paused_schedule_fires_nothing_and_takes_back_what_was_launched_ahead(w):
    w.put_schedules(Schedule("hourly", "report", Trigger.every("1h")))
    w.advance("1h59m55s")  # the run of two o'clock is launched already
    w.schedule("hourly").pause("holidays", until=START + timedelta(hours=5, minutes=30))
    assert w.schedule("hourly").status().state == "paused"
    with pytest.raises(ConflictError):
        w.schedule("hourly").pause()
    w.advance("4h30m")
    assert hours(w) == [1, 6]
    assert [one.state for one in w.tasks("report")].count("cancelled") == 1


def test_a_schedule_whose_times_are_over_is_completed(w):
    w.put_schedules(Schedule("once", "report", Trigger.at(START + timedelta(hours=1))))
    assert w.schedule("once").status().state == "active"
    w.advance("2h")
    status = w.schedule("once").status()
    assert (status.state, status.next_at, status.running) == ("completed", None, 0)


def test_a_schedule_can_be_run_by_hand_asked_and_deleted(w):
    w.put_schedules(Schedule("nightly", "report", Trigger.cron("0 2 * * *"), payload={"a": 1}))
    assert w.schedule("nightly").next_runs(2) == [START + timedelta(hours=2), START + timedelta(hours=26)]
    task = w.schedule("nightly").run_now({"a": 2})
    w.advance()
    assert task.result() == {"a": 2}
    w.schedule("nightly").delete()
    w.advance("3d")
    assert w.ran("report", times=1)
    with pytest.raises(NotFoundError, match="no schedule 'nightly' in this world"):
        w.schedule("nightly").status()


def test_a_schedule_that_fails_too_often_pauses_itself(w):
    w.put_schedules(Schedule("hourly", "fail", Trigger.every("1h"), retry=Retry(0), pause_after_failures=2))
    w.advance("5h")
    assert w.ran("fail", times=2)
    assert w.schedule("hourly").status().note == "paused after 2 failed runs in a row"


def test_putting_the_same_again_changes_nothing_and_a_set_is_pruned(w):
    hourly = Schedule("hourly", "report", Trigger.every("1h"), owner="me")
    other = Schedule("other", "report", Trigger.every("1h"), owner="me")
    assert w.put_schedules(hourly, other) == {"hourly": "added", "other": "added"}
    assert w.put_schedules(hourly, prune="me") == {"hourly": "unchanged", "other": "removed"}


def test_what_a_planner_would_refuse_is_refused_here(w):
    with pytest.raises(NotFoundError, match=r"no handler 'reprot'\. Did you mean 'report'"):
        w.put_schedules(Schedule("x", "reprot", Trigger.every("1h")))
    with pytest.raises(ArgumentError, match="defined twice"):
        w.put_schedules(Schedule("x", "report", Trigger.every("1h")), Schedule("x", "report", Trigger.every("2h")))
    with pytest.raises(ArgumentError, match="not JSON"):
        w.emit("order", {"at": START})


def test_a_handler_may_pause_its_schedule_and_emit():
    def stop(task):
        w.schedule("hourly").pause("enough")
        w.emit("stopped")

    with world([stop, report], START) as w:
        w.put_schedules(
            Schedule("hourly", "stop", Trigger.every("1h")), Schedule("told", "report", Trigger.event("stopped"))
        )
        w.advance("4h")
        assert hours(w, "stop") == [1]
        assert hours(w) == [1]


def test_the_hours_of_a_schedule_cost_about_a_thousand_calls_each(w):
    w.put_schedules(Schedule("hourly", "report", Trigger.cron("0 * * * *")))
    assert python_calls(lambda: w.advance("250h")) < 250 * 1_500
    assert len(w.runs) == 250
    assert len(w.plan.state().unsent) <= 1  # what was sent is not kept


def test_a_note_of_its_own_is_back_after_a_pause(w):
    w.put_schedules(Schedule("a", "report", Trigger.event("e"), note="runbook 17"))
    w.schedule("a").pause("closing")
    assert w.schedule("a").status().note == "closing"
    w.schedule("a").resume()
    assert w.schedule("a").status().note == "runbook 17"
    w.schedule("a").pause("closing", until=START + timedelta(hours=1))
    w.advance("2h")
    assert w.schedule("a").status().note == "runbook 17"


def test_a_run_for_what_is_missing_may_name_it_and_since_when(w):
    payload = {"text": "no {{ absent.of }} since {{ absent.since }}"}
    w.put_schedules(Schedule("alarm", "report", Trigger.absent(Trigger.event("beat"), "1h"), payload=payload))
    w.advance("30m")
    w.emit("beat")
    w.advance("3h")
    assert [run.payload for run in w.runs] == [{"text": "no event:beat since 2026-03-01T00:30:00Z"}]
    with pytest.raises(ArgumentError, match="absent"):
        Schedule("a", "report", Trigger.event("beat"), payload=payload)
    with pytest.raises(ArgumentError, match=r"absent\.name"):
        Schedule("a", "report", Trigger.absent(Trigger.event("beat"), "1h"), payload={"t": "{{ absent.name }}"})
