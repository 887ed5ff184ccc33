"""`on_pause`: what comes while a schedule is paused has no effect, makes one run, or waits in a backlog."""

import random
from datetime import UTC, datetime

import pytest

from scylla_spark import Schedule, Trigger
from scylla_spark.clock import iso
from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.state import schedule_entry
from scylla_spark.testing import world
from tests.support.planner_harness import SECOND, START, PlannerHarness

EVENT = {"kind": "event", "name": "e"}
MINUTES = {"kind": "every", "period": "1m"}
NUMBER = {"n": "{{ event.n }}"}


def paused(policy: str, trigger=EVENT, **fields) -> PlannerHarness:
    plan = PlannerHarness()
    plan.put("a", trigger, onPause=policy, **fields)
    plan.ask("pause", names=["a"])
    return plan


def resume(plan: PlannerHarness, **fields) -> None:
    assert plan.ask("resume", names=["a"], **fields)[0] == "ok"
    plan.pass_s(0)


def numbers(plan: PlannerHarness) -> list:
    return [one["taskData"]["n"] for one in plan.sent]


def planned(plan: PlannerHarness) -> list[str]:
    return [one.split("/")[1][11:19] for one in plan.launched()]


def test_without_the_field_what_comes_during_a_pause_has_no_effect() -> None:
    plan = paused("drop", payload=NUMBER)
    plan.event("e", n=1)
    resume(plan)
    plan.event("e", n=2)
    assert numbers(plan) == [2]


# -- events -----------------------------------------------------------------------------------------------------------


def test_all_events_of_a_pause_make_one_run() -> None:
    plan = paused("keep", payload=NUMBER)
    for n in range(3):
        plan.event("e", n=n)
        plan.restart(after_us=86_400 * SECOND)
    assert plan.sent == []
    assert plan.verdicts() == ["waiting"]
    resume(plan)
    assert numbers(plan) == [2]
    plan.event("e", n=9)
    assert numbers(plan) == [2, 9]


def test_a_backlog_is_run_in_order_one_after_the_other() -> None:
    plan = paused("backlog", payload=NUMBER)
    for n in range(150):
        plan.event("e", n=n)
        plan.pass_s(1)
    assert plan.sent == []
    plan.restart(after_us=86_400 * SECOND * 3)
    resume(plan)
    assert numbers(plan) == list(range(150))
    assert {one["orderingId"] for one in plan.sent} == {"schedule/a"}
    keys = [(one["scheduledTime"], one["uniquenessKey"]) for one in plan.sent]
    assert keys == sorted(keys)


def test_a_backlog_is_bounded_and_reports_what_it_drops(monkeypatch) -> None:
    monkeypatch.setattr("scylla_spark.core.plan.waiting_jobs.MOST_KEPT", 3)
    plan = paused("backlog", payload=NUMBER)
    for n in range(5):
        plan.event("e", n=n)
    assert [fire["why"] for fire in plan.fires if fire["verdict"] == "skipped"] == [
        "newer jobs came, and a pause keeps 3"
    ] * 2
    resume(plan)
    assert numbers(plan) == [2, 3, 4]


def test_a_thousand_large_events_fit_into_the_log_and_into_a_snapshot() -> None:
    plan = paused("backlog")
    for n in range(schedule_entry.MOST_KEPT):  # without a comparison of the whole state after each
        event = encode_command("event", id=f"e{n}", name="e", fields={"n": n, "text": "x" * 1_000})
        plan.planner.command(plan._offset, event, plan.now, plan.now)
        plan._offset += 1
    plan.turn()
    plan.log = plan.snapshot()
    plan.restart()
    resume(plan)
    assert len(plan.sent) == schedule_entry.MOST_KEPT
    plan.ask("delete", names=["a"])
    assert plan.answers


def test_runs_beyond_the_most_that_are_active_wait_for_a_place(monkeypatch) -> None:
    monkeypatch.setattr(schedule_entry, "MOST_RUNS", 2)
    plan = paused("backlog", payload=NUMBER)
    for n in range(4):
        plan.event("e", n=n)
    resume(plan)
    assert numbers(plan) == [0, 1]
    plan.end(0)
    assert numbers(plan) == [0, 1, 2]
    plan.end(1)
    assert numbers(plan) == [0, 1, 2, 3]


def test_what_waited_before_the_pause_is_kept_and_its_timeout_begins_with_the_resume() -> None:
    night = [{"kind": "time_range", "begin": "12:00", "end": "13:00"}]
    plan = PlannerHarness()
    plan.put("a", EVENT, onPause="backlog", payload=NUMBER, constraints=night, jobTimeout="1h")
    plan.event("e", n=1)
    plan.ask("pause", names=["a"])
    plan.event("e", n=2)
    plan.to(START + 11 * 3_600 * SECOND + 60 * SECOND)
    resume(plan)
    assert plan.sent == []
    plan.to(START + 12 * 3_600 * SECOND)
    assert numbers(plan) == [1, 2]


def test_a_constraint_that_drops_jobs_drops_those_of_a_pause() -> None:
    plan = paused("backlog", payload=NUMBER, constraints=[{"kind": "concurrency", "most": 1}])
    plan.event("e", n=1)
    plan.event("e", n=2)
    resume(plan)
    assert numbers(plan) == [1]
    assert plan.verdicts()[-1] == "skipped"


def test_half_a_round_of_a_pause_goes_on_after_it() -> None:
    both = {"kind": "all", "of": [EVENT, {"kind": "event", "name": "f"}]}
    plan = paused("keep", both, payload={"n": "{{ events.e.n }}"})
    plan.event("e", n=1)
    resume(plan)
    assert plan.sent == []
    plan.event("f")
    assert numbers(plan) == [1]


def test_no_round_is_too_old_during_a_pause() -> None:
    both = {"kind": "all", "of": [EVENT, {"kind": "event", "name": "f"}]}
    plan = PlannerHarness()
    plan.put("a", both, onPause="keep", payload={"n": "{{ events.e.n }}"}, jobTimeout="2m")
    plan.event("e", n=1)
    plan.ask("pause", names=["a"])
    plan.pass_s(300)
    plan.event("f")
    resume(plan)
    assert numbers(plan) == [1]


@pytest.mark.parametrize("restart", [False, True])
def test_half_a_round_of_a_pause_has_its_whole_job_timeout_after_it(restart) -> None:
    both = {"kind": "all", "of": [EVENT, {"kind": "event", "name": "f"}]}
    plan = PlannerHarness()
    plan.put("a", both, onPause="backlog", jobTimeout="2m", onJobTimeout="run")
    plan.event("e", n=1)
    plan.ask("pause", names=["a"])
    plan.pass_s(300)
    plan.event("e", n=2)
    if restart:
        plan.restart(after_us=SECOND)
    resume(plan)
    plan.pass_s(119)
    assert plan.sent == []
    plan.pass_s(1)
    assert [one["missing"] for one in plan.sent] == [["event:f"]]


def test_a_job_that_a_pause_keeps_after_its_job_timeout_still_reports_what_is_missing() -> None:
    both = {"kind": "all", "of": [EVENT, {"kind": "event", "name": "f"}]}
    plan = PlannerHarness()
    plan.put("a", both, onPause="backlog", jobTimeout="2m", onJobTimeout="run", overlap="buffer_one")
    plan.event("e")
    plan.event("f")
    plan.event("e")
    plan.pass_s(120)
    assert plan.verdicts() == ["launched", "waiting"]
    plan.ask("pause", names=["a"])
    resume(plan)
    plan.end(0)
    assert plan.sent[1]["missing"] == ["event:f"]


def test_ends_of_other_runs_are_kept() -> None:
    plan = PlannerHarness()
    plan.put("first", EVENT)
    plan.put("a", {"kind": "after", "work": "first"}, onPause="backlog", payload={"n": "{{ upstream.key }}"})
    plan.ask("pause", names=["a"])
    for n in range(3):
        plan.event("e", n=n)
        plan.end(n)
    resume(plan)
    assert len(plan.sent) == 6


# -- times ------------------------------------------------------------------------------------------------------------


def test_of_the_times_of_a_pause_the_newest_is_run_and_one_row_reports_the_others() -> None:
    plan = paused("keep", MINUTES)
    plan.restart(after_us=630 * SECOND)
    plan.pass_s(0)
    assert plan.fires == []
    resume(plan)
    assert planned(plan) == ["00:10:00"]
    row = plan.fires[0]
    assert row["why"] == "9 times of the pause came before the newest 1, which are kept"
    assert (iso(row["planned_us"])[11:19], iso(row["until_us"])[11:19]) == ("00:01:00", "00:09:00")
    plan.end()
    plan.pass_s(30)
    assert planned(plan) == ["00:10:00", "00:11:00"]


def test_the_times_of_a_pause_are_run_one_after_the_other_regardless_of_overlap() -> None:
    plan = paused("backlog", MINUTES, overlap="skip")
    plan.pass_s(200)
    plan.restart(after_us=130 * SECOND)
    resume(plan)
    assert planned(plan) == [f"00:0{n}:00" for n in range(1, 6)]
    assert {one["orderingId"] for one in plan.sent} == {"schedule/a"}
    plan.restart(after_us=20 * SECOND)
    plan.pass_s(0)
    assert len(plan.sent) == 5


def test_a_backlog_of_times_has_a_bound(monkeypatch) -> None:
    monkeypatch.setattr("scylla_spark.core.plan.triggers.due_times.MOST_KEPT", 3)
    monkeypatch.setattr("scylla_spark.core.plan.triggers.due_times._MOST_COUNTED", 5)
    plan = paused("backlog", MINUTES)
    plan.pass_s(630)
    resume(plan)
    assert planned(plan) == ["00:08:00", "00:09:00", "00:10:00"]
    assert plan.fires[0]["why"].startswith("5 or more times")


def test_a_run_that_was_handed_over_early_is_kept_too() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", MINUTES, onPause="backlog")
    plan.pass_s(55)
    assert planned(plan) == ["00:01:00"]
    plan.ask("pause", names=["a"])
    assert len(plan.cancelled) == 1
    plan.unrun()
    plan.pass_s(70)
    resume(plan)
    assert planned(plan) == ["00:01:00", "00:01:00", "00:02:00"]
    assert len(set(plan.launched())) == 3


def test_a_calendar_that_changes_during_a_pause_loses_no_time_of_it() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", {"kind": "every", "period": "1h", "calendar": "c"}, onPause="keep")
    plan.pass_s(3_595)
    plan.ask("pause", names=["a"])
    plan.unrun()
    plan.pass_s(60)
    assert plan.ask("calendar", name="c", days=["2030-01-01"])[0] == "ok"
    resume(plan)
    assert planned(plan) == ["01:00:00", "01:00:00"]


def test_a_run_that_had_begun_when_it_was_taken_back_is_not_run_again() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", MINUTES, onPause="backlog")
    plan.pass_s(59)
    plan.ask("pause", names=["a"])
    plan.pass_s(70)
    resume(plan)
    assert planned(plan) == ["00:01:00"], "it may have begun"
    plan.restart()
    plan.end(0)
    plan.pass_s(0)
    assert planned(plan) == ["00:01:00", "00:02:00"]


def test_a_time_that_is_a_branch_is_kept_for_its_round() -> None:
    plan = paused("keep", {"kind": "all", "of": [MINUTES, EVENT]}, payload=NUMBER)
    plan.pass_s(61)
    plan.event("e", n=1)
    resume(plan)
    assert numbers(plan) == [1]


def test_a_paused_definition_keeps_from_the_beginning() -> None:
    plan = PlannerHarness()
    plan.put("a", EVENT, onPause="keep", paused=True, payload=NUMBER)
    plan.event("e", n=1)
    plan.put("a", EVENT, onPause="keep", paused=True, payload=NUMBER, owner="us")
    resume(plan)
    assert numbers(plan) == [1]


# -- ends of a pause --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", [EVENT, MINUTES])
def test_a_resume_from_now_on_drops_what_was_kept_with_rows(trigger) -> None:
    plan = paused("backlog", trigger)
    plan.event("e", n=1)
    plan.pass_s(90)
    resume(plan, fromNow=True)
    assert plan.sent == []
    assert plan.fires[-1]["verdict"] == "obsolete"
    plan.event("e", n=2)
    plan.pass_s(60)
    assert len(plan.sent) == 1


def test_a_pause_that_ends_by_itself_runs_what_was_kept() -> None:
    plan = PlannerHarness()
    plan.put("a", EVENT, onPause="keep", payload=NUMBER)
    plan.ask("pause", names=["a"], until=plan.now + 60 * SECOND)
    plan.event("e", n=1)
    plan.pass_s(61)
    assert numbers(plan) == [1]


def test_failures_pause_a_schedule_and_what_comes_is_kept() -> None:
    plan = PlannerHarness()
    plan.put("a", EVENT, onPause="backlog", payload=NUMBER, pauseAfterFailures=1)
    plan.event("e", n=1)
    plan.end(outcome="failed")
    plan.event("e", n=2)
    assert numbers(plan) == [1]
    resume(plan)
    assert numbers(plan) == [1, 2]


@pytest.fixture
def defect(monkeypatch):
    """The next event of a plan meets a defect."""

    def event(plan: PlannerHarness) -> None:
        with monkeypatch.context() as within:
            within.setattr(plan.planner._launching, "fired", lambda *_, **__: 1 / 0)
            plan.event("e", n=0)

    return event


def test_a_schedule_that_a_defect_paused_keeps_nothing(defect) -> None:
    plan = PlannerHarness()
    plan.put("a", EVENT, onPause="backlog")
    defect(plan)
    plan.event("e", n=2)
    assert plan.ask("pause", names=["a"], note="we look at it")[0] == "ok"
    plan.event("e", n=3)
    plan.put("a", EVENT, onPause="backlog", note="another note")
    plan.event("e", n=4)
    resume(plan)
    assert plan.sent == []


def test_a_defect_during_a_pause_ends_that_it_keeps(defect) -> None:
    plan = paused("backlog")
    plan.event("e", n=1)
    defect(plan)
    assert plan.verdicts() == ["waiting", "obsolete"]
    assert plan.planner.state.entries["a"].note.startswith("paused for a defect")
    plan.event("e", n=2)
    resume(plan)
    assert plan.sent == []


def test_a_change_of_a_paused_schedule_drops_what_was_kept() -> None:
    plan = paused("backlog", payload=NUMBER)
    plan.event("e", n=1)
    plan.put("a", EVENT, onPause="backlog", payload=NUMBER, priority=1)
    assert plan.verdicts() == ["waiting", "obsolete"]
    resume(plan)
    assert plan.sent == []


def report(task):
    return task.payload


def test_a_backlog_drains_one_run_at_a_time() -> None:
    with world([report], datetime(2026, 3, 1, tzinfo=UTC)) as w:
        w.put_schedules(Schedule("a", "report", Trigger.event("e"), on_pause="backlog", overlap="skip"))
        w.schedule("a").pause()
        for n in range(5):
            w.emit("e", {"n": n})
        w.advance("2h")
        w.schedule("a").resume()
        w.advance("1s")
        assert len(w.runs) == 5


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_each_event_of_a_backlog_makes_one_run_in_order(seed) -> None:
    chance = random.Random(seed)
    plan = PlannerHarness()
    plan.put("a", EVENT, onPause="backlog", payload=NUMBER)
    emitted = 0
    for _ in range(60):
        step = chance.choice(("event", "event", "event", "pause", "resume", "restart", "snapshot", "end", "time"))
        if step == "event":
            plan.event("e", n=emitted)
            emitted += 1
        elif step in ("pause", "resume"):
            plan.ask(step, names=["a"])
        elif step == "restart":
            plan.restart(after_us=chance.randrange(86_400) * SECOND)
        elif step == "snapshot":
            plan.log = plan.snapshot()
        elif step == "end" and plan.planner.state.runs:
            plan.end_key(min(plan.planner.state.runs))
        plan.pass_s(chance.choice((0, 1, 60)))
    plan.ask("resume", names=["a"])
    plan.pass_s(0)
    assert numbers(plan) == list(range(emitted))
