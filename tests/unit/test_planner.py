"""Decisions of the planner, one at a time."""

import json
from collections import Counter
from datetime import date, datetime
from typing import Any

import pytest

from scylla_spark.clock import iso, to_us
from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.plan.tables.watch import Place
from scylla_spark.core.plan.times import cron
from scylla_spark.core.plan.times.fire_times import Every, FireTimes
from scylla_spark.core.records.fact import Fact, Unreadable
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.duration import duration_ms
from scylla_spark.table_place import TablePlaces
from tests.support.planner_harness import SECOND, START, PlannerHarness, assert_same, key_of

MINUTE = 60 * SECOND
EVERY_MINUTE = {"kind": "cron", "expression": "* * * * *"}
ORDERS = {"kind": "event", "name": "orders"}


def test_a_cron_launches_each_minute_once_with_its_planned_time() -> None:
    plan = PlannerHarness()
    assert plan.put("a", EVERY_MINUTE)[0] == "ok"
    for _ in range(3):
        plan.pass_s(60)
        plan.end()
    assert plan.launched() == [f"a/2026-03-01T00:0{n}:00Z/{n}" for n in (1, 2, 3)]
    assert plan.verdicts() == ["launched"] * 3


def test_what_is_launched_ahead_keeps_its_time_and_is_checked_at_it() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(51)
    assert [one["scheduledTime"] for one in plan.sent] == ["2026-03-01T00:01:00Z"]
    plan.pass_s(60)
    assert len(plan.sent) == 2
    plan.pass_s(20)
    assert plan.cancelled[0]["uniquenessKey"] == plan.sent[1]["uniquenessKey"], "the first one has not ended"
    assert plan.verdicts() == ["launched", "launched"], "it may still have begun"
    plan.unrun(1)
    assert plan.verdicts() == ["launched", "launched", "skipped"]
    assert plan.fires[2]["key"] == plan.fires[1]["key"], "the row closes that launch"


def test_rows_of_fires_add_up_to_the_runs_where_many_were_handed_over_and_taken_back() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", {"kind": "cron", "expression": "* * * * * *"})
    unrun = 0
    for _ in range(90):
        plan.pass_s(1)
        for number in range(unrun + 1, len(plan.cancelled) + 1):
            plan.unrun(number)
        unrun = len(plan.cancelled)
    plan.ask("pause", names=["a"])
    for number in range(unrun + 1, len(plan.sent)):
        plan.unrun(number)
    rows = Counter(row["verdict"] for row in plan.fires if row["verdict"] == "launched" or row.get("key"))
    assert rows["launched"] > 90
    assert rows["launched"] - rows["skipped"] - rows["obsolete"] == 1, rows
    assert {row["why"] for row in plan.fires if row["verdict"] == "obsolete"} == {"its schedule was paused"}


def test_a_run_that_began_although_it_was_to_be_taken_back_stays_launched() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(51)
    plan.ask("pause", names=["a"])
    plan.end()
    assert plan.verdicts() == ["launched"]


def test_a_run_that_is_taken_back_between_two_attempts_stays_launched() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, overlap="cancel_other")
    plan.pass_s(60)
    plan.pass_s(60)
    (cancelled,) = plan.cancelled
    assert cancelled["uniquenessKey"] == plan.sent[0]["uniquenessKey"]
    plan.ends(Fact(key_of(plan.sent[0]), 1, "cancelled", finished_us=plan.now, used=1))
    assert plan.verdicts() == ["launched", "launched"]


def test_what_a_removed_schedule_had_handed_over_has_a_row_at_once() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(51)
    plan.ask("delete", names=["a"])
    assert [(row["verdict"], row["why"]) for row in plan.fires] == [
        ("launched", ""),
        ("obsolete", "its schedule was removed"),
    ]


def test_a_run_that_was_skipped_at_its_time_has_a_row_when_its_schedule_is_removed_before_it_ends() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(131)
    assert [one["uniquenessKey"] for one in plan.cancelled] == [plan.sent[1]["uniquenessKey"]]
    plan.ask("delete", names=["a"])
    plan.unrun(1)
    assert plan.verdicts() == ["launched", "launched", "skipped"]
    assert plan.fires[2]["key"] == plan.fires[1]["key"]


def test_a_put_parses_the_expression_of_a_schedule_three_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()

    class Counted(cron.CronSim):
        def __init__(self, expression: str, begin: datetime) -> None:
            read[expression] += 1
            super().__init__(expression, begin)

    plan = PlannerHarness()
    monkeypatch.setattr(cron, "CronSim", Counted)
    plan.put("a", {"kind": "cron", "expression": "7 2 * * 1"})
    assert set(read) == {"7 2 * * 1"}, "no field is parsed alone"
    assert read.total() <= 3, "is it an expression, does it name a day, and when is it due first"


def test_a_run_that_takes_long_lets_the_next_be_skipped_and_the_one_after_run() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(150)
    assert plan.verdicts() == ["launched", "skipped"]
    plan.end()
    plan.pass_s(60)
    assert plan.verdicts() == ["launched", "skipped", "launched"]
    assert "00:01:00" in plan.fires[1]["why"]


def test_at_most_two_run_where_two_may() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, maxRunning=2)
    plan.pass_s(190)
    assert plan.verdicts() == ["launched", "launched", "skipped"]
    assert len({one["orderingId"] for one in plan.sent}) == 2


def test_one_waits_where_one_is_buffered() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, overlap="buffer_one")
    plan.pass_s(190)
    assert plan.verdicts() == ["launched", "waiting", "skipped"]
    plan.end()
    assert plan.verdicts()[-1] == "launched"
    assert plan.launched()[-1].startswith("a/2026-03-01T00:02:00Z")


def test_a_buffered_lane_takes_all_in_order() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, overlap="buffer_all")
    plan.pass_s(190)
    assert {one["orderingId"] for one in plan.sent} == {"schedule/a"}
    assert len(plan.sent) == 3


def test_a_paused_schedule_takes_back_what_is_ahead_and_answers_when_that_has_ended() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(55)
    assert plan.ask("pause", names=["a"]) == ()
    assert len(plan.cancelled) == 1
    plan.end(outcome="cancelled")
    (answer,) = [answer for answer in plan.answers.values() if "paused" in str(answer)]
    assert answer[0] == "ok"
    plan.pass_s(300)
    assert len(plan.sent) == 1
    assert plan.ask("pause", names=["a"])[0] == "conflict"
    assert plan.ask("resume", names=["a"])[0] == "ok"
    assert plan.ask("resume", names=["a"])[0] == "conflict"
    plan.pass_s(30)
    assert plan.launched()[1:] == ["a/2026-03-01T00:06:00Z/2"], "what lay in the pause is not made up for"


def test_a_schedule_that_is_removed_takes_back_what_is_ahead_and_answers_when_that_has_ended() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(55)
    assert plan.ask("delete", names=["a"]) == ()
    plan.end_key(key_of(plan.cancelled[0]), "cancelled")
    (answer,) = [answer for answer in plan.answers.values() if "removed" in str(answer)]
    assert answer[0] == "ok"
    plan.ask("put", schedules=[{"name": "a", "handler": "other", "trigger": EVERY_MINUTE}])
    plan.pass_s(60)
    plan.ask("delete", names=["a"])
    plan.pass_s(5)
    (answer,) = [answer for answer in plan.answers.values() if "pending" in str(answer)]
    assert "may still begin" in answer[1]


@pytest.mark.parametrize("kind", ["pause", "delete"])
def test_what_a_change_has_taken_back_is_waited_for_by_a_pause_and_a_removal_right_after_it(kind) -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(55)
    assert plan.put("a", EVERY_MINUTE, handler="other") == ()
    before = len(plan.cancelled)
    assert plan.ask(kind, names=["a"]) == (), "the run of before may still begin"
    for record in plan.cancelled:
        plan.end_key(key_of(record), "cancelled")
    assert before == 1
    assert [answer[0] for answer in plan.answers.values()] == ["ok"] * 3


def test_a_restart_runs_the_last_missed_time_once() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(61)
    plan.end()
    plan.restart(after_us=5 * MINUTE)
    plan.pass_s(0)
    assert plan.verdicts() == ["launched", "missed", "launched"]
    missed = plan.fires[1]
    assert plan.launched()[-1] == "a/2026-03-01T00:06:00Z/2"
    assert (missed["planned_us"], missed["until_us"]) == (START + 2 * MINUTE, START + 6 * MINUTE - 1)


def test_a_planner_that_comes_back_after_a_month_goes_through_no_month_of_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The schedule ended within that month: its last missed time is looked for backwards, over days without any."""
    plan = PlannerHarness()
    day = 24 * 60 * MINUTE
    end = {"endAt": iso(START + 20 * day)}
    plan.put("a", {"kind": "every", "period": "1s"} | end, catchUpWindow="60d", overlap="buffer_one")
    plan.pass_s(2)
    steps, plain = [], Every.next_after
    monkeypatch.setattr(Every, "next_after", lambda self, after_us: steps.append(0) or plain(self, after_us))
    plan.restart(after_us=30 * day)
    plan.pass_s(0)
    missed = next(fire for fire in plan.fires if fire["verdict"] == "missed")
    assert missed["until_us"] == START + 20 * day - 1, "the last one is run"
    assert len(steps) < 1_000


def test_a_kill_across_one_minute_runs_that_minute_once() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(45)
    plan.restart(after_us=90 * SECOND)
    plan.pass_s(0)
    assert plan.launched() == ["a/2026-03-01T00:02:00Z/1"]
    assert plan.verdicts() == ["missed", "launched"], "two minutes were missed, and catch_up is latest"


def test_catch_up_all_runs_every_missed_time_and_none_runs_none() -> None:
    for catch_up, count in (("all", 6), ("none", 1)):
        plan = PlannerHarness()
        plan.put("a", EVERY_MINUTE, catchUp=catch_up, overlap="buffer_all")
        plan.pass_s(61)
        plan.restart(after_us=5 * MINUTE)
        plan.pass_s(0)
        assert len(plan.sent) == count


def test_events_are_latched_until_the_whole_trigger_holds() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "all", "of": [ORDERS, {"kind": "event", "name": "prices", "where": {"day": 3}}]})
    plan.event("orders", n=1)
    plan.event("prices", day=4)
    plan.event("prices", day=True)
    assert not plan.sent
    plan.restart()
    plan.event("prices", day=3)
    assert len(plan.sent) == 1
    plan.event("prices", day=3)
    assert len(plan.sent) == 1, "the launch has cleared all"


def test_partitions_add_up_and_begin_anew_after_a_fire_and_after_a_change() -> None:
    plan = PlannerHarness()
    trigger = {"kind": "partitions", "dataset": "sales", "atLeast": 5}
    plan.put("a", trigger, payload={"n": "{{ partitions.count }}"})
    plan.ask("partitions", name="sales", partitions=[{"count": 4}])
    plan.put("a", trigger, payload={"n": "new"})
    plan.ask("partitions", name="sales", partitions=[{"count": 4}])
    assert not plan.sent
    plan.ask("partitions", name="sales", partitions=[{}])
    assert [one["taskData"] for one in plan.sent] == [{"n": "new"}]


def test_a_run_that_ended_fires_others_and_hands_over_its_result() -> None:
    plan = PlannerHarness()
    plan.put("up", ORDERS)
    plan.put("down", {"kind": "after", "work": "up", "on": ["failed"]}, payload={"of": "{{ upstream.outcome }}"})
    plan.event("orders")
    plan.end()
    assert len(plan.sent) == 1
    plan.event("orders")
    plan.end(outcome="failed")
    assert plan.sent[-1]["taskData"] == {"of": "failed"}


def test_schedules_that_would_fire_themselves_are_refused() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "after", "work": "b"}, handler="one")
    code, message, *_ = plan.put("b", {"kind": "after", "work": "a"}, handler="two")
    assert code == "argument"
    assert "circle" in message
    assert plan.put("c", {"kind": "after", "work": "three"}, handler="three")[0] == "argument", "by way of a handler"


def test_two_schedules_that_race_never_exceed_a_limit() -> None:
    plan = PlannerHarness()
    limit = [{"kind": "concurrency", "most": 1, "otherwise": "wait"}]
    for name in ("a", "b"):
        plan.put(name, ORDERS, constraints=limit)
    plan.event("orders")
    assert plan.verdicts() == ["launched", "waiting"]
    plan.end()
    assert plan.verdicts() == ["launched", "waiting", "launched"]
    assert plan.launched()[-1].startswith("b/")


def test_a_constraint_that_is_not_waited_for_drops_the_job() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS, constraints=[{"kind": "last_run", "within": "5m", "otherwise": "abort"}])
    for _ in range(5):
        plan.event("orders")
        if plan.verdicts()[-1] == "launched":
            plan.end()
        plan.pass_s(60)
    assert plan.verdicts() == ["launched", *["skipped"] * 4]


def test_a_delay_is_waited_for_also_across_a_restart() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS, constraints=[{"kind": "delay", "delay": "40s"}])
    plan.event("orders")
    plan.pass_s(20)
    plan.restart()
    plan.pass_s(19)
    assert not plan.sent
    plan.pass_s(2)
    assert len(plan.sent) == 1


def test_deleted_before_its_delay_is_over_nothing_runs_and_a_new_one_of_the_name_has_keys_of_its_own() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS, constraints=[{"kind": "delay", "delay": "40s"}])
    plan.event("orders")
    plan.pass_s(39)
    plan.ask("delete", names=["a"])
    plan.pass_s(60)
    assert not plan.sent
    assert plan.ask("delete", names=["a"])[0] == "not_found"
    plan.put("a", ORDERS)
    plan.event("orders")
    assert plan.launched()[0].endswith("/2")


def test_what_waits_for_too_long_is_dropped() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS, constraints=[{"kind": "time_range", "begin": "12:00", "end": "13:00"}], jobTimeout="1h")
    plan.event("orders")
    plan.pass_s(3 * 3600)
    assert plan.verdicts() == ["waiting", "obsolete"]


def test_absence_is_told_of_once_and_again_only_after_it_came() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "absent", "of": ORDERS, "within": "1h"})
    plan.pass_s(3 * 3600)
    assert len(plan.sent) == 1
    plan.event("orders")
    plan.pass_s(3599)
    assert len(plan.sent) == 1
    plan.restart()
    plan.pass_s(2)
    assert len(plan.sent) == 2


def test_failures_in_a_row_pause_a_schedule_and_say_so() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, pauseAfterFailures=2)
    for _ in range(4):
        plan.pass_s(60)
        if len(plan.planner.state.runs):
            plan.end(outcome="failed")
    assert len(plan.sent) == 2
    assert "2 failed runs" in plan.planner.state.entries["a"].note


def test_a_run_expires_so_long_after_its_planned_time_also_if_it_is_launched_later() -> None:
    plan = PlannerHarness()
    plan.put("a", {**EVERY_MINUTE, "jitter": "20s"}, expires="30s")
    plan.put("b", ORDERS, expires="1h", constraints=[{"kind": "delay", "delay": "10m"}])
    plan.pass_s(90)
    (task,) = plan.sent
    starts_us = to_us(datetime.fromisoformat(task["scheduledTime"]))
    assert starts_us > START + MINUTE, "the jitter makes it start later"
    assert starts_us + duration_ms(task["expires"]) * 1_000 == pytest.approx(START + 90 * SECOND, abs=1_000)
    assert task["version"] == 2, "an older reader, which would let it run late, refuses it"
    plan.event("orders")
    plan.pass_s(601)
    assert plan.sent[-1]["expires"] == f"{50 * 60_000}ms", "ten minutes have passed for the constraint"


def test_what_would_have_expired_is_skipped_instead_of_launched() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, expires="30s", catchUp="all")
    plan.pass_s(61)
    plan.end()
    plan.restart(after_us=2 * MINUTE + 20 * SECOND)
    plan.pass_s(0)
    assert plan.verdicts() == ["launched", "skipped", "launched"]
    assert plan.fires[1]["why"] == "it expires 30s after its planned time, and had not begun by then"
    assert plan.launched()[-1].startswith("a/2026-03-01T00:03:00Z")


def test_what_waits_for_another_run_is_dropped_when_it_expires_and_the_next_takes_its_place() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, overlap="buffer_one", expires="45s")
    plan.pass_s(150)
    assert plan.verdicts() == ["launched", "waiting"]
    plan.restart()
    plan.pass_s(35)
    assert plan.verdicts() == ["launched", "waiting", "skipped", "waiting"]
    plan.end()
    assert plan.launched()[-1].startswith("a/2026-03-01T00:03:00Z")
    assert plan.sent[-1]["expires"] == "40000ms"


def test_a_constraint_that_holds_too_late_launches_nothing_that_has_expired() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS, expires="5m", constraints=[{"kind": "delay", "delay": "10m"}])
    plan.event("orders")
    plan.pass_s(1_200)
    assert plan.verdicts() == ["waiting", "skipped"]
    assert not plan.sent


def test_a_run_by_hand_and_a_backfill_do_not_expire() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, expires="30s")
    plan.ask("run", name="a")
    assert plan.ask("backfill", name="a", begin=START - 10 * MINUTE, end=START - 9 * MINUTE)[0] == "ok"
    plan.pass_s(0)
    assert [one.get("expires") for one in plan.sent] == [None, None]


def test_what_waits_is_dropped_by_its_job_timeout_also_after_a_restart() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS, constraints=[{"kind": "concurrency", "most": 1, "otherwise": "wait"}], jobTimeout="1h")
    plan.event("orders")
    plan.event("orders")
    assert plan.verdicts() == ["launched", "waiting"]
    plan.restart(after_us=10 * MINUTE)
    plan.pass_s(3_001)
    assert plan.verdicts() == ["launched", "waiting", "obsolete"]


def test_a_promise_that_is_not_kept_is_an_event() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, endWithin="30s", lateAfter="5s", expectEvery="10m")
    plan.put("alarm", {"kind": "event", "name": "schedule.overdue", "where": {"schedule": "a"}}, handler="page")
    plan.pass_s(95)
    assert plan.verdicts("a") == ["launched", "late", "overdue"]
    assert [one["handler"] for one in plan.sent] == ["work", "page"]
    plan.pass_s(600)
    assert "silent" in plan.verdicts("a")


def test_a_time_and_an_event_make_one_trigger() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "all", "of": [EVERY_MINUTE, ORDERS]})
    plan.pass_s(130)
    assert not plan.sent
    plan.event("orders")
    assert plan.launched() == ["a/2026-03-01T00:02:00Z/1"], "it is named by the latest time"


def test_a_bad_definition_changes_nothing_of_its_record() -> None:
    plan = PlannerHarness()
    good = {"name": "good", "handler": "work", "trigger": EVERY_MINUTE}
    code, message, hint, _ = plan.ask(
        "put", schedules=[good, {**good, "name": "bad", "trigger": {"kind": "cron", "expression": "99 * * * *"}}]
    )
    assert code == "argument"
    assert "minute" in message
    assert hint
    assert not plan.planner.state.entries
    assert plan.refused[0][2] == "wrong_value"


def test_nonsense_on_the_topic_is_refused_and_all_others_go_on() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    long_name = b'{"type":"event","name":"' + b"x" * 2000 + b'"}'
    for value in (b"", b"{", b"[1]", b'{"type":"put"}', b'{"type":"explode"}', b"\xff\xfe", long_name):
        plan.raw(value)
    assert len(plan.refused) == 7
    plan.pass_s(61)
    assert len(plan.sent) == 1


def test_a_command_of_before_the_position_is_passed_over() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS)
    plan.planner.command(0, b'{"type":"delete","names":["a"]}', plan.now, plan.now)
    assert "a" in plan.planner.state.entries


def test_the_same_definition_again_changes_nothing_and_another_one_starts_anew() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(55)
    assert plan.put("a", EVERY_MINUTE)[3] == {"a": "unchanged"}
    assert not plan.cancelled
    plan.put("a", EVERY_MINUTE, payload={"new": True})
    assert len(plan.cancelled) == 1
    plan.pass_s(5)
    assert plan.sent[-1]["taskData"] == {"new": True}
    assert len({one["uniquenessKey"] for one in plan.sent}) == 2, "what was cancelled keeps its key for ever"


def test_a_set_replaces_what_its_owner_has_and_leaves_the_rest() -> None:
    plan = PlannerHarness()
    plan.put("other", ORDERS, owner="them")
    plan.put("old", ORDERS, owner="us")
    new = {"name": "new", "handler": "work", "trigger": ORDERS, "owner": "us"}
    assert plan.ask("put", schedules=[new])[3] == {"new": "added"}
    assert "old" in plan.planner.state.entries
    done = plan.ask("put", schedules=[new], prune="us")[3]
    assert done == {"old": "removed", "new": "unchanged"}
    assert set(plan.planner.state.entries) == {"new", "other"}


def test_a_run_by_hand_does_not_count_and_takes_another_payload() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    plan.ask("run", name="a", payload={"by": "hand"})
    plan.pass_s(61)
    assert [one["taskData"] for one in plan.sent] == [{"by": "hand"}, {}]
    assert plan.ask("run", name="none")[0] == "not_found"


def test_what_is_not_known_to_be_sent_is_known_after_a_restart() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS)
    plan.planner.command(1, b'{"type":"event","name":"orders"}', plan.now, plan.now)
    (group,) = plan.planner.take(plan.now)
    plan.log.append(plan_log.encode(group))
    plan.shadow.fold(group)
    plan.restart()
    (texts,) = plan.planner.state.unsent.values()
    assert json.loads(texts[0])["uniquenessKey"].startswith("a/")


def test_a_launch_that_was_never_sent_and_is_too_old_is_launched_anew_for_the_same_time() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, payload={"at": "{{ planned }}"})
    plan.put("after", {"kind": "after", "work": "a", "on": ["succeeded"]})
    plan.pass_s(60)
    old = key_of(plan.sent[0])
    plan.restart()
    plan.planner.anew(old, plan.sent[0]["taskData"], plan.now)
    plan.turn()
    assert [one["uniquenessKey"] for one in plan.cancelled] == [old.uniqueness_key], "the old one runs nowhere"
    new = plan.sent[1]
    assert new["uniquenessKey"] == "a/2026-03-01T00:01:00Z/2"
    assert new["taskData"] == plan.sent[0]["taskData"]
    assert list(plan.planner.state.runs) == [key_of(new)]
    plan.planner.anew(old, {}, plan.now)
    plan.end_key(old, "cancelled")
    assert len(plan.sent) == 2, "it is done once"
    plan.end_key(key_of(new))
    assert plan.sent[-1]["uniquenessKey"].startswith("after/")


def test_what_was_taken_back_is_not_launched_anew() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(55)
    plan.ask("pause", names=["a"])
    plan.planner.anew(key_of(plan.sent[0]), {}, plan.now)
    plan.turn()
    assert (len(plan.sent), len(plan.cancelled)) == (1, 1)
    assert not plan.planner.state.runs


def test_days_of_a_calendar_are_left_out_from_when_they_are_known() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "cron", "expression": "0 12 * * *", "calendar": "de"})
    plan.ask("calendar", name="de", days=["2026-03-01"])
    plan.pass_s(86_400)
    assert not plan.sent
    plan.pass_s(86_400)
    assert len(plan.sent) == 1


def test_what_days_are_is_kept_by_the_log_and_by_snapshots() -> None:
    plan = PlannerHarness()
    plan.ask("calendar", name="de", days=["2026-12-25", "2026-12-26"], notes={"2026-12-25": "Christmas Day"})
    plan.ask("calendar", name="plain", days=["2026-12-24"])
    for again in (False, True):
        if again:
            plan.log = plan.snapshot()
        plan.restart()
        days = plan.planner.state.calendars["de"]
        assert (days, days.notes) == ({date(2026, 12, 25), date(2026, 12, 26)}, {date(2026, 12, 25): "Christmas Day"})
        assert not plan.planner.state.calendars["plain"].notes
    assert {json.loads(value)["v"] for value in plan.log} == {2}, "older readers pass over them"
    plan.ask("calendar", name="de", days=["2026-12-25"])
    assert not plan.planner.state.calendars["de"].notes


@pytest.mark.parametrize("table", ["hdfs://name/a", "s3a://lake//tables/tasks", "ours", "/elsewhere/a", "s3://lake2/a"])
def test_a_schedule_on_a_table_that_triggers_may_not_watch_is_refused_when_it_is_put(table: str) -> None:
    plan = PlannerHarness(places=TablePlaces({"ours": "s3://lake/tables/fires"}, ("s3://lake/tables",), ("s3://lake",)))
    watching = {"kind": "table", "table": table}
    for trigger in (
        watching,
        {"kind": "absent", "of": watching, "within": "1h"},
        {"kind": "any", "of": [watching, watching]},
    ):
        code, why, hint, *_ = plan.put("s", trigger)
        assert (code, hint != "") == ("argument", True), why
    assert plan.put("s", {"kind": "table", "table": "s3://lake/orders"})[0] == "ok"
    assert plan.put("named", {"kind": "table", "table": "unknown"})[0] == "ok"
    assert set(plan.planner.state.entries) == {"s", "named"}


def test_a_note_of_another_day_is_refused() -> None:
    plan = PlannerHarness()
    answer = plan.ask("calendar", name="de", days=["2026-12-25"], notes={"2026-12-26": "Boxing Day"})
    assert "There is a note of 2026-12-26, which is no day of the calendar 'de'." in str(answer)
    assert "de" not in plan.planner.state.calendars


@pytest.mark.parametrize("how", ["goes on", "restarts", "restarts from a snapshot"])
@pytest.mark.parametrize("gone", ["changed", "deleted", "deleted while it runs"])
def test_a_success_counts_for_the_handler_that_had_it_whatever_becomes_of_its_schedule(gone, how) -> None:
    plan = PlannerHarness()
    within = [{"kind": "last_run", "within": "4h", "otherwise": "abort"}]
    plan.put("s", {"kind": "event", "name": "e"}, handler="a")
    plan.event("e")
    if gone == "deleted while it runs":
        plan.ask("delete", names=["s"])
    plan.end()
    if gone == "changed":
        plan.put("s", {"kind": "event", "name": "e"}, handler="b", constraints=within)
    elif gone == "deleted":
        plan.ask("delete", names=["s"])
    plan.put("other", {"kind": "event", "name": "o"}, handler="a", constraints=within)
    plan.pass_s(60)
    if how == "restarts from a snapshot":
        plan.log = plan.snapshot()
    if how != "goes on":
        plan.restart(SECOND)
    plan.event("e")
    plan.event("o")
    assert plan.verdicts("other") == ["skipped"]
    assert plan.verdicts("s")[1:] == (["launched"] if gone == "changed" else [])


HOLIDAYS = [["2026-12-25"], ["2026-12-25", "2026-12-26"]]


def test_a_time_that_was_missed_is_run_although_a_calendar_changes_before_it_is_decided() -> None:
    plan = PlannerHarness()
    plan.ask("calendar", name="de", days=HOLIDAYS[0])
    plan.put("a", {"kind": "at", "times": [iso(START + 60 * SECOND)], "calendar": "de"})
    plan.restart(120 * SECOND)
    plan.ask("calendar", name="de", days=HOLIDAYS[1])
    plan.pass_s(60)
    assert plan.launched() == [f"a/{iso(START + 60 * SECOND)}/1"]


def test_times_that_wait_for_a_place_are_run_although_a_calendar_changes() -> None:
    plan = PlannerHarness()
    plan.ask("calendar", name="de", days=HOLIDAYS[0])
    minutes = {"kind": "every", "period": "1m", "endAt": iso(START + 9_000 * SECOND), "calendar": "de"}
    at_four = [{"kind": "time_range", "begin": "04:00", "end": "05:00"}]
    plan.put("a", minutes, catchUp="all", constraints=at_four)
    plan.pass_s(3 * 3_600)
    assert plan.verdicts() == ["waiting"] * 100
    plan.ask("calendar", name="de", days=HOLIDAYS[1])
    plan.pass_s(2 * 3_600)
    assert len(plan.sent) == 150


def test_a_calendar_that_opens_a_past_day_does_not_start_what_it_left_out() -> None:
    plan = PlannerHarness()
    plan.ask("calendar", name="de", days=["2026-03-01"])
    plan.put("a", {"kind": "cron", "expression": "0 2 * * *", "calendar": "de"})
    plan.pass_s(10 * 3_600)
    plan.ask("calendar", name="de", days=HOLIDAYS[0])
    plan.restart()
    plan.pass_s(24 * 3_600)
    assert plan.launched() == ["a/2026-03-02T02:00:00Z/1"]


@pytest.mark.parametrize("overlap", ["allow_all", "buffer_all"])
@pytest.mark.parametrize("ahead_us", [0, 10 * SECOND])
def test_each_run_starts_by_its_own_span_also_where_jitter_is_longer_than_the_period(
    overlap: str, ahead_us: int
) -> None:
    plan = PlannerHarness(ahead_us=ahead_us)
    plan.put("a", {"kind": "every", "period": "1m", "jitter": "10m"}, overlap=overlap)
    plan.pass_s(3_600)
    starts = {one["uniquenessKey"].split("/")[1]: one["scheduledTime"] for one in plan.sent}
    assert len(starts) >= 59
    for planned, start in starts.items():
        alone = FireTimes(Every(MINUTE), jitter_us=600 * SECOND)
        assert start == iso(alone.starts_us("a", to_us(datetime.fromisoformat(planned)))), planned


def test_a_run_that_waits_for_those_planned_before_it_still_starts_within_its_jitter() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "every", "period": "1m", "jitter": "10m"})
    for _ in range(3_600):
        plan.pass_s(1)
        if plan.planner.state.runs:
            plan.end()
    for one in plan.sent:
        planned_us = to_us(datetime.fromisoformat(one["uniquenessKey"].split("/")[1]))
        assert planned_us <= to_us(datetime.fromisoformat(one["scheduledTime"])) < planned_us + 600 * SECOND


@pytest.mark.parametrize("between", ["nothing", "restart", "snapshot"])
@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("backfill", {"name": "a", "begin": START - 3 * MINUTE, "end": START, "maxRunning": 9}), ("run", {"name": "a"}),
        ("event", {"name": "orders"}), ("partitions", {"name": "d", "partitions": [{"count": 1}]}), ("pause", {"names": ["a"]}),
        ("put", {"schedules": [{"name": "a", "handler": "work", "trigger": EVERY_MINUTE, "note": "first"}]}),
    ],
)  # fmt: skip
def test_a_request_that_comes_again_is_carried_out_once(command: str, fields: dict[str, Any], between: str) -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    plan.put("on-event", ORDERS, overlap="allow_all")
    plan.put("on-partitions", {"kind": "partitions", "dataset": "d"}, overlap="allow_all")
    record = encode_command(command, id="once", **fields)
    plan.raw(record)
    answer = plan.answers.pop("once")
    assert answer[0] == "ok"
    if command == "put":
        plan.put("a", EVERY_MINUTE, note="second")
    if command == "pause":
        plan.ask("resume", names=["a"])
    sent, entry = list(plan.launched()), plan.planner.state.entries["a"]
    if between == "snapshot":
        plan.log = plan.snapshot()
    if between != "nothing":
        plan.restart()
    plan.raw(record)
    assert plan.launched() == sent
    assert plan.answers["once"] == answer
    after = plan.planner.state.entries["a"]
    assert (after.note, after.paused, after.revision) == (entry.note, entry.paused, entry.revision)


def test_a_request_that_was_refused_may_come_again() -> None:
    plan = PlannerHarness()
    record = encode_command("run", id="once", name="a")
    plan.raw(record)
    assert plan.answers["once"][0] == "not_found"
    plan.put("a", EVERY_MINUTE)
    plan.raw(record)
    assert plan.answers["once"][0] == "ok"
    for number in range(1_001):
        plan.raw(encode_command("event", id=f"e{number}", name="x"))
    assert len(plan.planner.state.answers) == 1_000


JITTERED = {"kind": "at", "times": [iso(START + 60 * SECOND)], "jitter": "1h"}


@pytest.mark.parametrize(
    "words", [{"note": "n"}, {"owner": "o"}, {"tags": ["t"]}, {"lateAfter": "2h"}, {"expectEvery": "1d"}]
)
def test_a_change_of_words_keeps_what_waits_and_what_has_been_seen(words: dict[str, Any]) -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    delayed = {"constraints": [{"kind": "delay", "delay": "10m"}]}
    both = {"kind": "all", "of": [ORDERS, {"kind": "event", "name": "stock"}]}
    plan.put("jittered", JITTERED)
    plan.put("delayed", ORDERS, **delayed)
    plan.put("latched", both)
    plan.put("minutely", EVERY_MINUTE)
    plan.pass_s(62)
    plan.event("orders")
    assert len(plan.sent) == 1
    for name, trigger, more in (
        ("jittered", JITTERED, {}), ("delayed", ORDERS, delayed), ("latched", both, {}), ("minutely", EVERY_MINUTE, {}),
    ):  # fmt: skip
        assert plan.put(name, trigger, **more, **words)[0] == "ok"
        assert plan.planner.state.entries[name].revision == 2
    plan.restart()
    plan.event("stock")
    plan.pass_s(3_700)
    assert not plan.cancelled or plan.cancelled[0]["uniquenessKey"].startswith("minutely/2026-03-01T00:02"), (
        "the run is not taken back"
    )
    assert {one.split("/")[0] for one in plan.launched()} == {"jittered", "delayed", "latched", "minutely"}
    assert "obsolete" not in plan.verdicts()


@pytest.mark.parametrize("how", ["put", "pause", "delete"])
def test_a_change_that_drops_a_run_that_jitter_puts_off_says_so(how: str) -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "every", "period": "1m", "jitter": "1h"})
    plan.pass_s(121)
    launched = len(plan.sent)
    if how == "put":
        plan.put("a", {"kind": "every", "period": "1d"})
    else:
        plan.ask(how, names=["a"])
    dropped = plan.fires[-1]
    assert (dropped["verdict"], dropped["planned_us"], dropped["until_us"]) == (
        "obsolete", START + (launched + 1) * MINUTE, START + 2 * MINUTE,
    )  # fmt: skip
    assert "its schedule was" in dropped["why"]


def test_a_time_that_jitter_puts_off_is_run_although_a_calendar_changes_meanwhile() -> None:
    plan = PlannerHarness()
    plan.ask("calendar", name="de", days=HOLIDAYS[0])
    times = {"kind": "at", "times": [iso(START + 60 * SECOND)], "jitter": "1h", "calendar": "de"}
    plan.put("a", times)
    plan.pass_s(62)
    assert not plan.sent
    plan.ask("calendar", name="de", days=HOLIDAYS[1])
    plan.pass_s(3_700)
    assert plan.launched() == [f"a/{iso(START + 60 * SECOND)}/1"]


def test_a_snapshot_gives_the_same_state_whatever_stands_between_its_parts() -> None:
    plan = PlannerHarness()
    for number in range(20):
        plan.put(f"s{number:02}", ORDERS if number % 2 else EVERY_MINUTE)
    plan.ask("calendar", name="de", days=["2026-03-05"])
    plan.event("orders")
    begins = len(plan.log)
    names = plan.planner.begin_snapshot(plan.now)
    plan.turn()
    plan.planner.snapshot(chosen := names[:7], plan.now)
    assert not chosen
    plan.turn()
    plan.end(3)
    plan.ask("delete", names=["s03", "s12"])
    plan.put("s04", ORDERS)
    plan.put("late", ORDERS)
    plan.pass_s(61)
    plan.planner.snapshot(names[7:], plan.now)
    plan.turn()
    plan.planner.end_snapshot(begins)
    state = PlanState()
    for value in plan.log[begins:]:
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable)
        state.fold(group)
    assert_same(plan.planner.state, state)


@pytest.mark.slow
def test_one_event_for_many_schedules_is_told_to_each_once_though_the_planner_ends_in_its_midst() -> None:
    plan = PlannerHarness()
    definition = {"handler": "work", "trigger": ORDERS, "payload": {"text": "x" * 5_000}}
    for first in range(0, 300, 50):
        plan.ask("put", schedules=[{"name": f"s{n:03}", **definition} for n in range(first, first + 50)])
    offset = plan.planner.state.commands
    plan.planner.command(offset, b'{"type":"event","name":"orders"}', plan.now, plan.now)
    groups = plan.planner.take(plan.now)
    assert len(groups) > 2
    for group in groups[:2]:  # the rest is lost with the planner
        plan.log.append(plan_log.encode(group))
        plan.shadow.fold(group)
        for change in group.changes:
            plan.look(change)
    plan.restart()
    plan.planner.command(offset, b'{"type":"event","name":"orders"}', plan.now, plan.now)
    plan.turn()
    assert sorted(one["uniquenessKey"].split("/")[0] for one in plan.sent) == [f"s{n:03}" for n in range(300)]


def lose_after(plan: PlannerHarness, kept: int) -> None:
    """The planner ends when so many of its groups are in the log."""
    groups = plan.planner.take(plan.now)
    assert len(groups) > kept
    for group in groups[:kept]:
        plan.log.append(plan_log.encode(group))
        plan.shadow.fold(group)
        for change in group.changes:
            plan.look(change)
    plan.restart()


def put_many(plan: PlannerHarness, trigger: dict[str, Any], count: int = 300) -> list[str]:
    names = [f"s{n:03}" for n in range(count)]
    definition = {"handler": "work", "trigger": trigger, "payload": {"text": "x" * 5_000}}
    for first in range(0, count, 50):
        plan.ask("put", schedules=[{"name": name, **definition} for name in names[first : first + 50]])
    return names


@pytest.mark.slow
def test_one_event_is_told_to_each_once_though_other_records_come_first_after_the_planner_ended_in_its_midst() -> None:
    plan = PlannerHarness()
    names, offset = put_many(plan, ORDERS), plan.planner.state.commands
    plan.planner.command(offset, b'{"type":"event","name":"orders"}', plan.now, plan.now)
    lose_after(plan, 2)
    plan.planner.outcomes(1, 0, [Fact(TaskKey(0, "other", "one"), 1, "succeeded")], (1, 1, "d"), plan.now)
    plan.pass_s(10)
    plan.restart()
    plan.planner.command(offset, b'{"type":"event","name":"orders"}', plan.now, plan.now)
    plan.turn()
    assert sorted(one["uniquenessKey"].split("/")[0] for one in plan.sent) == names


@pytest.mark.slow
@pytest.mark.parametrize("work", ["up", "first"])
def test_the_end_of_a_run_is_told_to_each_once_though_the_planner_ends_in_its_midst(work: str) -> None:
    plan = PlannerHarness()
    names = put_many(plan, {"kind": "after", "work": work})
    plan.put("up", ORDERS, handler="first")
    plan.event("orders")
    fact = Fact(key_of(plan.sent[0]), 1, "succeeded", plan.now, plan.now, plan.now, 1)
    facts = [Fact(TaskKey(0, "other", "one"), 1, "succeeded"), fact]
    plan.planner.outcomes(0, 0, facts, (1, 1, "d"), plan.now)
    lose_after(plan, 2)
    plan.planner.outcomes(0, 0, facts, (1, 1, "d"), plan.now)
    plan.turn()
    assert sorted(one["uniquenessKey"].split("/")[0] for one in plan.sent[1:]) == names


def by_hand(plan: PlannerHarness, unique: str = "u", outcome: str = "succeeded") -> Fact:
    """The end of a task that somebody enqueued for handler `load`."""
    key = TaskKey(plan.now, "lane", unique)
    return Fact(key, 1, outcome, plan.now, plan.now, plan.now, 1, result='{"rows": 7}', queue="q", handler="load")


def test_the_end_of_a_task_that_somebody_enqueued_fires_who_listens_to_its_handler() -> None:
    plan = PlannerHarness()
    assert not plan.planner.wants_facts
    trigger = {"kind": "after", "work": "load", "on": ["succeeded"]}
    plan.put("down", trigger, payload={"of": "{{ upstream.handler }}", "rows": "{{ upstream.result }}"})
    assert plan.planner.wants_facts, "facts of all tasks are read from now on"
    plan.ends(by_hand(plan, "failed", "failed"), by_hand(plan)._replace(handler="other"))
    assert plan.sent == []
    plan.ends(by_hand(plan))
    assert [one["uniquenessKey"].split("/")[0] for one in plan.sent] == ["down"]
    assert plan.sent[0]["taskData"]["of"] == "load"
    plan.put("load", ORDERS)
    assert not plan.planner.wants_facts, "it is a schedule now: its runs are known by their keys"


def test_a_run_that_ends_twice_is_told_of_once_also_to_who_listens_to_its_handler() -> None:
    plan = PlannerHarness()
    plan.put("down", {"kind": "after", "work": "load"})
    plan.put("up", ORDERS, handler="load")
    plan.event("orders")
    plan.end()
    assert len(plan.sent) == 2
    fact = by_hand(plan)._replace(key=key_of(plan.sent[0]))
    plan.ends(fact)
    assert len(plan.sent) == 2


def test_who_waits_for_a_schedule_and_for_its_handler_is_told_of_one_end_once() -> None:
    plan = PlannerHarness()
    works = {"kind": "after", "work": "up"}, {"kind": "after", "work": "load"}
    plan.put("any", {"kind": "any", "of": works}, payload={"by": "{{ upstream.schedule }}"})
    plan.put("all", {"kind": "all", "of": works})
    plan.put("other", {"kind": "any", "of": [{**works[0], "on": ["failed"]}, works[1]]})
    plan.put("handler", works[1])
    plan.put("up", ORDERS, handler="load")
    plan.event("orders")
    plan.end()
    assert sorted(text.partition("/")[0] for text in plan.launched()[1:]) == ["all", "any", "handler", "other"]
    assert {"by": "up"} in [one.get("taskData") for one in plan.sent]


@pytest.mark.slow
def test_the_end_of_a_task_is_told_to_each_once_though_the_planner_ends_in_its_midst() -> None:
    plan = PlannerHarness()
    names = put_many(plan, {"kind": "after", "work": "load"})
    facts = [Fact(TaskKey(0, "other", "one"), 1, "succeeded"), by_hand(plan)]
    plan.planner.outcomes(0, 0, facts, (1, 1, "d"), plan.now)
    lose_after(plan, 2)
    plan.planner.outcomes(0, 0, facts, (1, 1, "d"), plan.now)
    plan.turn()
    assert sorted(one["uniquenessKey"].split("/")[0] for one in plan.sent) == names


@pytest.mark.parametrize("kind", ["pause", "delete"])
@pytest.mark.slow
def test_what_is_asked_of_many_is_done_to_all_though_the_planner_ends_in_its_midst(kind: str) -> None:
    plan = PlannerHarness()
    definitions = [{"name": f"s{n:03}", "handler": "work", "trigger": ORDERS} for n in range(600)]
    plan.ask("put", schedules=definitions)
    offset = plan.planner.state.commands
    value = encode_command(kind, id="me", author="\x01" * 1024, names=[one["name"] for one in definitions])
    plan.planner.command(offset, value, plan.now, plan.now)
    lose_after(plan, 2)
    entries = plan.planner.state.entries
    assert 0 < sum(entry.paused for entry in entries.values()) < 600 or 0 < len(entries) < 600
    plan.planner.command(offset, value, plan.now, plan.now)
    plan.turn()
    code, _, _, done = plan.answers["me"]
    assert (code, len(done)) == ("ok", 600)
    assert all(entry.paused for entry in plan.planner.state.entries.values())
    assert len(plan.planner.state.entries) == (600 if kind == "pause" else 0)


@pytest.mark.slow
def test_commands_that_came_together_and_times_that_were_missed_together_are_written_in_records_that_fit() -> None:
    plan = PlannerHarness()
    heavy = {"handler": "work", "payload": {"text": '"' * 60_000}, "overlap": "allow_all"}
    for n in range(10):
        schedule = {"name": f"s{n}", "trigger": {"kind": "every", "period": "1s"}, "catchUp": "all", **heavy}
        plan.planner.command(n, encode_command("put", schedules=[schedule]), plan.now, plan.now)
    plan.turn()  # it looks at the size of each record
    plan.restart(after_us=5 * SECOND)
    plan.pass_s(0)
    assert len(plan.sent) == 50


def test_an_event_that_several_branches_wait_for_launches_once() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "any", "of": [ORDERS, {**ORDERS, "where": {"n": 1}}]}, payload={"n": "{{ event.n }}"})
    plan.event("orders", n=1)
    assert [one["taskData"] for one in plan.sent] == [{"n": 1}]


def test_what_no_log_could_hold_is_refused() -> None:
    plan = PlannerHarness()
    deep = b"[" * 120 + b"]" * 120
    for value in (b"NaN", b"1e999", deep, b'"' + b"x" * 20_000 + b'"'):
        plan.raw(b'{"type":"event","name":"e","fields":{"x":' + value + b"}}")
        plan.raw(b'{"type":"partitions","name":"d","partitions":[{"values":{"x":' + value + b"}}]}")
    plan.raw(b'{"type":"explode","id":"\\ud800"}')
    assert len(plan.refused) == 9


def test_a_short_template_that_names_a_long_value_a_thousand_times_fails_that_job_only() -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS, payload={"all": ["{{ event }}"] * 900})
    plan.event("orders", text="x" * 16_000)
    assert plan.verdicts() == ["failed"]
    assert "262144" in plan.fires[0]["why"]


def test_versions_of_a_table_are_handed_over_once_and_ranges_touch_also_across_a_restart() -> None:
    plan = PlannerHarness()
    plan.put(
        "a",
        {"kind": "all", "of": [{"kind": "table", "table": "/t"}, ORDERS]},
        payload={"v": "{{ table.from_version }}-{{ table.to_version }}"},
    )
    place = watch(plan)
    plan.planner.tables.begins(place, "id", 3)
    plan.turn()
    plan.planner.tables.grew(place, Growth("id", 3, 5), plan.now)
    plan.turn()
    plan.restart()
    plan.event("orders")
    assert plan.sent[-1]["taskData"] == {"v": "3-5"}
    plan.planner.tables.grew(watch(plan), Growth("id", 3, 5), plan.now)
    plan.planner.tables.grew(watch(plan), Growth("other", 5, 6), plan.now)
    plan.event("orders")
    assert len(plan.sent) == 1, "told twice, or of another table"
    plan.planner.tables.grew(watch(plan), Growth("id", 5, 9), plan.now)
    plan.turn()
    assert plan.sent[-1]["taskData"] == {"v": "5-9"}


def test_a_pause_keeps_where_a_table_stands_and_answers_of_before_it_do_not_count() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "table", "table": "/t"})
    place = watch(plan)
    plan.planner.tables.begins(place, "id", 3)
    plan.pass_s(1)
    plan.ask("pause", names=["a"])
    plan.planner.tables.grew(place, Growth("id", 3, 4), plan.now)
    assert not plan.planner.watched()
    plan.pass_s(1)
    plan.ask("resume", names=["a"])
    plan.planner.tables.grew(place, Growth("id", 3, 4), plan.now)
    assert not plan.sent
    plan.planner.tables.grew(watch(plan), Growth("id", 3, 6), plan.now)
    plan.turn()
    assert len(plan.sent) == 1


def test_a_resume_from_now_on_leaves_out_what_came_to_a_table_during_the_pause() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "table", "table": "/t"}, pauseAfterFailures=5)
    plan.planner.tables.begins(watch(plan), "id", 3)
    plan.planner.tables.grew(watch(plan), Growth("id", 3, 4), plan.now)
    plan.turn()
    plan.end(outcome="failed")
    plan.ask("pause", names=["a"])
    before = plan.shadow.entries["a"]
    plan.pass_s(1)
    assert plan.ask("resume", version=2, names=["a"], fromNow=True)[0] == "ok"
    plan.restart()
    (wanted,) = plan.planner.watched().values()
    assert wanted.handed is None, "where it begins is to be found out, as of a new one"
    plan.planner.tables.begins(watch(plan), "id", 9)
    plan.planner.tables.grew(watch(plan), Growth("id", 9, 10), plan.now)
    plan.turn()
    assert len(plan.sent) == 2
    after = plan.shadow.entries["a"]
    assert (after.revision, after.generation, after.text) == (before.revision, before.generation + 1, before.text)
    assert not after.paused


def test_a_schedule_that_begins_at_a_version_cannot_be_resumed_from_now_on() -> None:
    plan = PlannerHarness()
    plan.put("b", {"kind": "absent", "of": {"kind": "table", "table": "/t", "start": "earliest"}, "within": "1h"})
    plan.put("a", {"kind": "table", "table": "/t"})
    plan.ask("pause", names=["a", "b"])
    code, message, *_ = plan.ask("resume", names=["a", "b"], fromNow=True)
    assert (code, "'b' begins to read '/t' at 'earliest'" in message) == ("argument", True)
    assert all(entry.paused for entry in plan.planner.state.entries.values())
    assert plan.ask("resume", names=["a", "b"])[0] == "ok"


def test_only_a_command_that_an_older_planner_would_misread_says_a_version_that_it_refuses() -> None:
    said = [json.loads(encode_command("resume", names=["a"], fromNow=now))["version"] for now in (None, True)]
    assert said == [1, 2]


def test_partitions_of_a_table_fire_for_themselves() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "table", "table": "/t", "per": "day"}, payload={"day": "{{ table.partition }}"})
    plan.planner.tables.begins(watch(plan), "id", 0)
    plan.planner.tables.grew(watch(plan), Growth("id", 0, 2, part="mon", alone=False), plan.now)
    plan.planner.tables.grew(watch(plan), Growth("id", 0, 2, part="mon", alone=False), plan.now)
    plan.planner.tables.grew(watch(plan), Growth("id", 0, 3, part="tue"), plan.now)
    plan.turn()
    plan.restart()
    plan.planner.tables.grew(watch(plan), Growth("id", 2, 3, part="mon"), plan.now)
    plan.turn()
    assert [one["taskData"]["day"] for one in plan.sent] == ["mon", "tue"]
    assert plan.planner.state.entries["a"].tables[0].version == 3


def test_a_table_that_is_in_trouble_is_told_of_once_and_goes_on_where_it_can() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "table", "table": "/t"})
    for _ in range(3):
        plan.planner.tables.trouble(watch(plan), "missing", "There is none.", None, plan.now)
    plan.planner.tables.trouble(watch(plan), "replaced", "It is another.", ("new", 0), plan.now)
    plan.turn()
    assert plan.verdicts() == ["trouble", "trouble"]
    plan.planner.tables.grew(watch(plan), Growth("new", 0, 1), plan.now)
    plan.turn()
    assert len(plan.sent) == 1


def watch(plan: PlannerHarness) -> Place:
    (place,) = plan.planner.watched()
    return place


@pytest.mark.slow
def test_a_command_for_many_schedules_is_written_in_parts_and_gone_on_with_after_a_crash() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    names = [f"s{number:03}" for number in range(300)]
    tick = {"kind": "every", "period": "1s"}
    plan.ask("put", schedules=[{"name": name, "handler": "work", "trigger": tick} for name in names])
    plan.pass_s(1)
    offset = plan.planner.state.commands
    delete = encode_command("delete", id="all", names=names)
    plan.planner.command(offset, delete, plan.now, plan.now)
    groups = plan.planner.take(plan.now)
    assert len(groups) > 2
    for group in groups[:2]:
        plan.log.append(plan_log.encode(group))
        plan.shadow.fold(group)
    plan.restart()
    left = len(plan.planner.state.entries)
    assert 0 < left < 300
    plan.planner.command(offset, delete, plan.now, plan.now)
    plan.turn()
    assert not plan.planner.state.entries
    assert "all" not in plan.answers, "what was taken back may still begin"
    plan.pass_s(5)
    assert plan.answers["all"][0] == "pending"


@pytest.mark.slow
def test_a_set_that_defines_one_name_twice_is_refused_whole_by_the_planner_itself() -> None:
    plan = PlannerHarness()
    one = {"name": "a", "handler": "work", "trigger": EVERY_MINUTE}
    code, message, *_ = plan.ask("put", schedules=[one] * 1_000)
    assert (code, "'a' is defined twice" in message) == ("argument", True)
    assert plan.ask("put", schedules=[one | {"name": "b"}, one, one | {"handler": "other"}])[0] == "argument"
    assert plan.planner.state.entries == {}


def test_a_backfill_runs_past_times_in_lanes_of_its_own_and_does_not_count() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, payload={"at": "{{ planned }}"})
    begin, end = START - 5 * MINUTE, START
    code, *_, done = plan.ask("backfill", name="a", begin=begin, end=end, maxRunning=2, leaveOut=[START - 2 * MINUTE])
    assert (code, done) == ("ok", {"planned": 5, "launched": 4, "tag": "backfill:a/1"})
    plan.pass_s(0)
    assert plan.verdicts() == ["launched"] * 2, "as many as may run at once"
    plan.end(0)
    plan.end(2)
    assert [one["taskData"]["at"] for one in plan.sent] == [f"2026-02-28T23:5{n}:00Z" for n in (5, 6, 7, 9)]
    assert len({one["orderingId"] for one in plan.sent}) == 4
    plan.pass_s(61)
    assert plan.verdicts() == ["launched"] * 5, "the minute runs beside them"
    plan.restart()
    assert plan.ask("backfill", name="a", begin=0, end=START)[0] == "argument"
    plan.put("e", ORDERS)
    assert plan.ask("backfill", name="e", begin=begin, end=end)[0] == "argument"


def test_a_schedule_that_is_deleted_leaves_the_triggers_that_wait_for_it() -> None:
    plan = PlannerHarness()
    up, other = {"kind": "after", "work": "up"}, {"kind": "event", "name": "prices"}
    plan.put("up", ORDERS)
    plan.put("lone", up, handler="l")
    plan.put("chained", {"kind": "after", "work": "lone"}, handler="c")
    plan.put("and", {"kind": "all", "of": [up, other]}, handler="a")
    plan.put("or", {"kind": "any", "of": [up, other]}, handler="o")
    plan.put("wide", {"kind": "any", "of": [up, other, ORDERS]}, handler="w")
    done = plan.ask("delete", names=["up"])[3]
    assert done == {
        "up": "removed", "and": "removed", "lone": "removed", "chained": "removed", "or": "changed", "wide": "changed"
    }  # fmt: skip
    assert json.loads(plan.planner.state.entries["or"].text)["trigger"] == other
    assert json.loads(plan.planner.state.entries["wide"].text)["trigger"] == {"kind": "any", "of": [other, ORDERS]}
    assert set(plan.planner.state.entries) == {"or", "wide"}


def test_a_change_of_what_was_changed_meanwhile_is_refused():
    planner = PlannerHarness()
    definition = {"name": "s", "handler": "work", "trigger": {"kind": "every", "period": "1h"}}
    assert planner.ask("put", schedules=[definition], expect={"s": 1})[0] == "conflict"
    assert planner.ask("put", schedules=[definition], expect={"s": 0})[0] == "ok"
    seen = planner.shadow.entries["s"].changed_us
    planner.now += 1
    assert planner.ask("pause", names=["s"])[0] == "ok"
    assert planner.ask("put", schedules=[definition | {"note": "x"}], expect={"s": seen})[0] == "conflict"
    assert planner.ask("delete", names=["s"], expect={"s": seen})[0] == "conflict"
    assert planner.ask("delete", names=["s"], expect={"s": planner.shadow.entries["s"].changed_us})[0] == "ok"


def test_a_trigger_on_absence_has_one_timer_however_much_comes() -> None:
    plan = PlannerHarness()
    heartbeat = {"kind": "event", "name": "heartbeat"}
    plan.put("quiet", {"kind": "absent", "of": heartbeat, "within": "1h"})
    for _ in range(200):
        plan.now += SECOND
        plan.event("heartbeat")
    assert len(plan.planner._timers._heap) == 1
    plan.restart()
    assert len(plan.planner._timers._heap) == 1
    last = plan.now
    plan.to(last + 60 * MINUTE - 1)
    assert not plan.sent
    plan.to(last + 60 * MINUTE)
    assert len(plan.sent) == 1


def test_a_shorter_wait_for_what_is_absent_is_obeyed_though_a_longer_one_was_begun() -> None:
    plan = PlannerHarness()
    heartbeat = {"kind": "event", "name": "heartbeat"}
    for within in ("1h", "1m"):
        plan.put("quiet", {"kind": "absent", "of": heartbeat, "within": within})
    plan.pass_s(60)
    assert len(plan.sent) == 1
    plan.ask("delete", names=["quiet"])
    plan.pass_s(7_200)
    assert not plan.planner._watching._armed


@pytest.mark.parametrize(
    "unique", ["orders/2026-03-01/1", "orders/2026-03-01T00:00:00Z/17", "orders/2026-03-01T00:00:00/1", "orders/x/1"]
)
def test_a_task_by_hand_that_is_named_like_a_run_of_a_schedule_fires_who_waits_for_its_handler(unique: str) -> None:
    plan = PlannerHarness()
    plan.put("orders", EVERY_MINUTE, handler="other")
    plan.put("report", {"kind": "after", "work": "load"})
    plan.pass_s(60)
    plan.end()
    plan.ends(by_hand(plan, unique))
    assert [one["handler"] for one in plan.sent] == ["other", "work"]


@pytest.mark.slow
def test_ends_that_are_through_are_not_told_again_when_a_later_one_of_their_record_was_not() -> None:
    plan = PlannerHarness()
    names = put_many(plan, {"kind": "after", "work": "load"})
    facts = [by_hand(plan, "one"), by_hand(plan, "two")]
    plan.planner.outcomes(0, 0, facts, (1, 1, "d"), plan.now)
    groups = plan.planner.take(plan.now)
    kept = next(number for number, group in enumerate(groups) if group.partly is not None and group.partly.item == 1)
    for group in groups[: kept + 1]:
        plan.log.append(plan_log.encode(group))
        plan.shadow.fold(group)
        for change in group.changes:
            plan.look(change)
    plan.restart()
    plan.planner.outcomes(0, 0, facts, (1, 1, "d"), plan.now)
    plan.turn()
    told = [(one["name"], json.loads(one["values"])["upstream"]["key"]) for one in plan.fires]
    assert len(told) == len(set(told)) == 2 * len(names)


def test_a_schedule_fires_after_so_many_ends_and_counts_anew_after_each_launch() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "event", "name": "e"})
    plan.put("b", {"kind": "after", "work": "a", "atLeast": 3}, handler="other", payload={"last": "{{ upstream.key }}"})
    for number, outcome in enumerate(["succeeded", "failed", *["succeeded"] * 5]):
        if number == 3:
            plan.restart()
        plan.event("e")
        plan.end(-1, outcome)
    assert [run.split("/")[0] for run in plan.launched()] == [*"aaaa", "b", *"aaa", "b"]
    assert plan.sent[4]["taskData"]["last"] == str(key_of(plan.sent[3]))


def test_ends_of_a_handler_are_counted_beside_another_branch() -> None:
    plan = PlannerHarness()
    both = [{"kind": "after", "work": "load", "atLeast": 2}, {"kind": "event", "name": "e"}]
    plan.put("b", {"kind": "all", "of": both}, handler="other")
    plan.put("a", {"kind": "event", "name": "run"}, handler="load", overlap="allow_all")
    plan.event("e")
    for number in range(2):
        assert len(plan.sent) == number
        plan.event("run")
        plan.end()
    assert [run.split("/")[0] for run in plan.launched()] == ["a", "a", "b"]
