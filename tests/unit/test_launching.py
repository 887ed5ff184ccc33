"""What the planner launches beside what still runs, one decision at a time."""

import json
from collections.abc import Callable
from itertools import islice, permutations
from typing import Any

import pytest

from scylla_spark.client.schedules.history import stored
from scylla_spark.client.schedules.times_already_run import times_that_ran
from scylla_spark.clock import iso
from scylla_spark.core.plan.state import plan_log, schedule_entry
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.records.fact import Fact, Unreadable
from scylla_spark.core.tasks.filter import OneOf, read_filter
from scylla_spark.core.tasks.tags import is_tag
from scylla_spark.core.tasks.task import Failure
from scylla_spark.schemas import FIRES, JOBS, Table
from scylla_spark.transforms.plan_rows import plan_rows
from tests.support.planner_harness import SECOND, START, PlannerHarness, assert_same, key_of

EVERY_MINUTE = {"kind": "cron", "expression": "* * * * *"}
ORDERS = {"kind": "event", "name": "orders"}
ONE = [{"kind": "concurrency", "most": 1}]


def running(plan: PlannerHarness) -> None:
    """A run of `a`, of the handler that `b` may run one of."""
    plan.put("a", ORDERS)
    plan.event("orders")
    plan.put("b", EVERY_MINUTE, constraints=ONE)


def leave(plan: PlannerHarness, how: str) -> None:
    if how == "deleted":
        plan.ask("delete", names=["a"])
    else:
        plan.put("a", ORDERS, handler="other")


def folded(log: list[bytes]) -> PlanState:
    state = PlanState()
    for value in log:
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable)
        state.fold(group)
    return state


@pytest.mark.parametrize("how", ["deleted", "changed"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_run_counts_for_its_handler_until_it_ends_whatever_becomes_of_its_schedule(how: str, restarts: bool) -> None:
    plan = PlannerHarness()
    running(plan)
    leave(plan, how)
    if restarts:
        plan.restart()
    plan.pass_s(65)
    assert plan.verdicts("b") == ["skipped"], "it runs"
    plan.end(0)
    if restarts:
        plan.restart()
    plan.pass_s(60)
    assert plan.verdicts("b") == ["skipped", "launched"], "it has ended"


@pytest.mark.parametrize("how", ["deleted", "changed"])
def test_what_waits_for_room_goes_on_when_a_run_of_a_schedule_that_is_gone_ends(how: str) -> None:
    plan = PlannerHarness()
    running(plan)
    plan.put("b", ORDERS, constraints=[{**ONE[0], "otherwise": "wait"}])
    plan.event("orders")
    leave(plan, how)
    assert plan.verdicts("b") == ["waiting"]
    for number in range(len(plan.sent)):
        plan.end(number)
    assert plan.verdicts("b") == ["waiting", "launched"]


@pytest.mark.parametrize("how", ["deleted", "changed"])
def test_a_snapshot_knows_of_which_handler_runs_are_that_their_schedule_has_left(how: str) -> None:
    plan = PlannerHarness()
    running(plan)
    leave(plan, how)
    begin = len(plan.log)
    names = plan.planner.begin_snapshot(plan.now)
    plan.planner.snapshot(names, plan.now)
    plan.turn()
    state = folded(plan.log[begin:])
    assert set(state.handlers.values()) == {"work"}
    state.number, state.sent, state.snapshot = plan.shadow.number, plan.shadow.sent, plan.shadow.snapshot
    assert_same(plan.planner.state, state)


LEAVE: dict[str, Callable[[PlannerHarness], object]] = {
    "changed": lambda plan: plan.put("a", ORDERS, handler="other"),
    "changed again": lambda plan: plan.put("a", ORDERS, handler="third"),
    "deleted": lambda plan: plan.ask("delete", names=["a"]),
    "put again": lambda plan: plan.put("a", ORDERS),
    "ended": lambda plan: plan.end(0),
}


@pytest.mark.slow
@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("between", [1, 2])
def test_a_snapshot_knows_that_whatever_happens_while_it_is_made(before: int, between: int) -> None:
    for steps in permutations(LEAVE, 3):
        plan = PlannerHarness()
        running(plan)
        take = iter(steps)
        for step in islice(take, before):
            LEAVE[step](plan)
        begin = len(plan.log)
        names = plan.planner.begin_snapshot(plan.now)
        plan.turn()
        for step in islice(take, between):
            LEAVE[step](plan)
        while names:
            plan.planner.snapshot(names, plan.now)
        plan.turn()
        for step in take:
            LEAVE[step](plan)
        found = folded(plan.log[begin:])
        assert found.handlers == plan.planner.state.handlers, steps
        assert_same(plan.planner.state, found)


def test_a_group_says_the_version_that_knows_its_changes() -> None:
    plan = PlannerHarness()
    running(plan)
    leave(plan, "deleted")
    plan.end()
    assert plan_log.RUNS_OF.encode() in plan.log[-2]
    assert plan_log.RUN_ENDED.encode() in plan.log[-1]
    versions = [value.split(b",")[0] for value in plan.log]
    assert versions == [b'{"v":2'] * (len(plan.log) - 2) + [b'{"v":4'] * 2


@pytest.mark.parametrize(
    ("trigger", "version"),
    [
        ({"kind": "manual"}, 12),
        ({"kind": "any", "of": [ORDERS, {"kind": "table", "table": "t", "minBytes": 5}]}, 12),
        (
            {
                "kind": "any",
                "of": [{"kind": "batch", "tag": "t", "size": 1}, {"kind": "table", "table": "t", "minBytes": 5}],
            },
            12,
        ),
        ({"kind": "batch", "tag": "t", "size": 1}, 8),
        ({"kind": "event", "name": "manual"}, 2),
    ],
)
def test_older_planners_stop_before_triggers_that_they_cannot_read(trigger: Any, version: int) -> None:
    plan = PlannerHarness()
    plan.put("a", trigger)
    assert plan.log[-1].startswith(b'{"v":%d,' % version)


def test_the_end_of_a_run_is_told_though_its_schedule_was_deleted_and_put_again() -> None:
    plan = PlannerHarness()
    plan.put("down", {"kind": "after", "work": "work"}, handler="other")
    plan.put("a", ORDERS)
    plan.event("orders")
    plan.ask("delete", names=["a"])
    plan.put("a", ORDERS)
    plan.end()
    assert plan.verdicts("down") == ["launched"]
    plan.end(0)
    assert plan.verdicts("down") == ["launched"], "it has ended twice, and is told of once"


@pytest.mark.parametrize("told", ["work", None], ids=["the fact names it", "the fact is of a dispatcher that does not"])
def test_the_end_of_a_run_is_told_to_who_waits_for_the_handler_that_ran(told: str | None) -> None:
    plan = PlannerHarness()
    plan.put("down", {"kind": "after", "work": "work"}, handler="last", payload={"of": "{{ upstream.handler }}"})
    plan.put("a", ORDERS)
    plan.event("orders")
    plan.put("a", ORDERS, handler="other")
    key = key_of(plan.sent[0])
    plan.ends(Fact(key, 1, "succeeded", key.time_us, plan.now, key.time_us, 1, handler=told))
    assert [one["taskData"] for one in plan.sent[1:]] == [{"of": "work"}]


@pytest.mark.parametrize("policy", [{}, {"overlap": "buffer_one"}, {"overlap": "cancel_other"}, {"maxRunning": 2}])
@pytest.mark.parametrize("restarts", [False, True])
def test_all_missed_times_run_one_after_the_other_whatever_overlaps(policy: dict[str, Any], restarts: bool) -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE, catchUp="all", **policy)
    plan.restart(5 * 60 * SECOND + SECOND)
    if restarts:
        plan.restart()
    plan.pass_s(2)
    assert plan.launched() == [f"a/2026-03-01T00:0{n}:00Z/{n}" for n in range(1, 6)]
    assert {one["orderingId"] for one in plan.sent} == {"schedule/a"}
    assert plan.cancelled == []
    assert plan.verdicts() == ["launched"] * 5


@pytest.mark.parametrize("snapshot", [False, True])
def test_later_times_cancel_each_other_and_none_of_all_that_were_missed(snapshot: bool) -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, catchUp="all", overlap="cancel_other")
    plan.restart(3 * 60 * SECOND + SECOND)
    plan.pass_s(1)
    begin = len(plan.log)
    if snapshot:
        plan.planner.snapshot(plan.planner.begin_snapshot(plan.now), plan.now)
        plan.turn()
        plan.log = plan.log[begin:]
    plan.restart()
    plan.pass_s(120)
    assert plan.launched() == [f"a/2026-03-01T00:0{n}:00Z/{n}" for n in range(1, 6)]
    assert [one["uniquenessKey"] for one in plan.cancelled] == ["a/2026-03-01T00:04:00Z/4"]
    for number in (0, 1, 2, 4):
        plan.end(number)
    plan.pass_s(60)
    assert len(plan.cancelled) == 1, "a run that has ended is not cancelled"
    newest = [number for number in (4, 5) if any(value.startswith(b'{"v":%d' % number) for value in plan.log)]
    assert newest == [5], "older readers stop before what they would cancel"


def test_of_very_many_missed_times_the_rest_waits_for_runs_to_end() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "every", "period": "1s"}, catchUp="all", overlap="buffer_all")
    plan.restart(1_010 * SECOND + SECOND // 2)
    plan.to(plan.now)
    assert plan.verdicts() == ["launched"] * 1_000
    for number in range(10):
        plan.end(number)
        plan.to(plan.now)
    assert plan.verdicts() == ["launched"] * 1_010
    assert len(set(plan.launched())) == 1_010
    assert plan.launched()[-1].startswith("a/2026-03-01T00:16:50Z/")


def test_a_change_of_a_paused_schedule_keeps_the_note_and_the_end_of_its_pause() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    plan.ask("pause", names=["a"], note="closing", until=plan.now + 90 * SECOND)
    plan.put("a", EVERY_MINUTE, tags=["t"])
    entry = plan.planner.state.entries["a"]
    assert (entry.paused, entry.note) == (True, "closing")
    plan.restart()
    plan.pass_s(125)
    assert plan.launched() == ["a/2026-03-01T00:02:00Z/1"]


def test_a_definition_that_says_that_it_is_paused_ends_an_earlier_pause_or_begins_its_own() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE)
    plan.ask("pause", names=["a"], note="closing", until=plan.now + 90 * SECOND)
    plan.put("a", EVERY_MINUTE, paused=True, note="for good")
    entry = plan.planner.state.entries["a"]
    assert (entry.paused, entry.note, entry.until_us) == (True, "for good", 0)
    plan.put("a", EVERY_MINUTE, paused=False)
    assert not plan.planner.state.entries["a"].paused


def test_the_note_and_the_end_of_a_pause_can_be_changed() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, tags=["t"])
    plan.ask("pause", names=["a"], note="closing")
    until = plan.now + 90 * SECOND
    assert plan.ask("pause", names=["a"], note="month-end")[0] == "ok"
    assert plan.ask("pause", names=["a"], until=until)[0] == "ok"
    assert plan.ask("pause", names=["a"], note="month-end", until=until)[0] == "conflict"
    assert plan.ask("pause", names=["a"])[0] == "conflict"
    assert plan.ask("pause", tag="t", note="all of them", until=until + SECOND)[0] == "ok"
    entry = plan.planner.state.entries["a"]
    assert (entry.note, entry.until_us) == ("month-end", until), "a tag does not speak of those that are paused"
    plan.pass_s(125)
    assert plan.launched() == ["a/2026-03-01T00:02:00Z/1"]


def test_of_a_backfill_only_what_runs_at_once_counts_for_a_limit_of_its_handler() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, constraints=[{"kind": "concurrency", "most": 3}])
    begin = plan.now - 60 * 60 * SECOND
    plan.ask("backfill", name="a", begin=begin, end=plan.now, maxRunning=2)
    plan.pass_s(65)
    assert plan.verdicts() == ["launched"] * 3, "two are active, and 58 are left"
    plan.put("a", EVERY_MINUTE, constraints=[{"kind": "concurrency", "most": 2}])
    plan.pass_s(60)
    assert plan.fires[-1]["why"] == "3 of at most 2 runs are active"


def test_runs_by_hand_do_not_count_for_a_rate() -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, overlap="allow_all", constraints=[{"kind": "rate", "most": 1, "per": "90s"}])
    plan.ask("run", name="a")
    plan.pass_s(65)
    assert plan.verdicts() == ["launched", "launched"]
    plan.ask("run", name="a")
    plan.pass_s(60)
    assert plan.verdicts() == ["launched", "launched", "launched", "waiting"], "the launch of before still counts"


def test_a_time_that_finds_a_job_too_old_begins_anew() -> None:
    plan = PlannerHarness()
    daily = {"kind": "cron", "expression": "0 2 * * *"}
    plan.put("a", {"kind": "all", "of": [daily, ORDERS]})
    plan.pass_s(26 * 3600 + 1)
    assert plan.verdicts() == ["obsolete"], "nothing came on the first day"
    plan.pass_s(8 * 3600)
    plan.event("orders")
    assert plan.verdicts() == ["obsolete", "launched"]


@pytest.mark.parametrize(
    ("result", "known"),
    [
        ('{"rows":[1,{"n":2}]}', {"all": {"rows": [1, {"n": 2}]}, "rows": [1, {"n": 2}], "text": 'of [1, {"n": 2}]'}),
        ('{"rows":"\\ud800"}', {"all": '{"rows":"\\ud800"}'}),
        ("[" * 40 + "]" * 40, {"all": "[" * 40 + "]" * 40}),
        ("[" * 100_000, {"all": "[" * 100_000}),
        ("7", {"all": 7}),
        ("NaN", {"all": "NaN"}),
        ('{"rows":[-1e999]}', {"all": '{"rows":[-1e999]}'}),
        (None, {"all": None}),
    ],
)
def test_what_a_run_has_returned_is_a_value_to_those_that_come_after(result: str | None, known: dict[str, Any]) -> None:
    plan = PlannerHarness()
    places = {
        "all": "{{ upstream.result }}",
        "rows": "{{ upstream.result.rows }}",
        "text": "of {{ upstream.result.rows }}",
    }
    for name in known:
        plan.put(name, {"kind": "after", "work": "a"}, handler="other", payload={name: places[name]})
    plan.put("waits", {"kind": "all", "of": [{"kind": "after", "work": "a"}, {"kind": "event", "name": "late"}]})
    plan.put("a", ORDERS)
    plan.event("orders")
    plan.end(result=result)
    made = {name: value for one in plan.sent[1:] for name, value in one["taskData"].items()}
    assert made == {name: value for name, value in known.items() if value is not None}


def test_those_that_come_after_know_why_a_run_has_failed() -> None:
    plan = PlannerHarness()
    payload = {"why": "{{ upstream.error.kind }}: {{ upstream.error.message }}", "times": "{{ upstream.attempts }}"}
    plan.put("alarm", {"kind": "after", "work": "a", "on": ["failed"]}, handler="other", payload=payload)
    plan.put("a", ORDERS)
    plan.event("orders")
    key = key_of(plan.sent[0])
    plan.ends(Fact(key, 3, "failed", key.time_us, plan.now, key.time_us, 3, failure=Failure("KeyError", "'x'")))
    assert plan.sent[1]["taskData"] == {"why": "KeyError: 'x'", "times": 3}


@pytest.mark.parametrize(
    "place",
    ["upstream.payload", "upstream.key.time", "table.from", "partitions.sum", "planned.year", "table.rows.n"],
)
def test_a_field_that_no_fire_has_is_refused_when_the_schedule_is_put(place: str) -> None:
    plan = PlannerHarness()
    leaves = [
        {"kind": "after", "work": "x"}, {"kind": "table", "table": "/t"}, {"kind": "partitions", "dataset": "d"},
    ]  # fmt: skip
    answer = plan.put("a", {"kind": "all", "of": leaves}, payload={"x": f"{{{{ {place} }}}}"})
    assert answer[0] == "argument"
    assert place in answer[1]


def rows_of(plan: PlannerHarness, table: Table) -> list[dict[str, Any]]:
    """Rows of a table, as its log makes them; the newest first."""
    rows = []
    for offset, value in enumerate(plan.log):
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable)
        rows += [stored(table, row.text) for row in plan_rows(group, offset) if row.kind == table.name]
    return rows[::-1]


def test_a_backfill_leaves_out_what_has_run_and_not_what_was_taken_back() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(121)
    plan.unrun(1)
    assert plan.verdicts() == ["launched", "launched", "skipped"]
    plan.end(0, "failed")
    plan.pass_s(57)
    plan.ask("pause", names=["a"])
    ahead = key_of(plan.sent[2])
    assert ahead.time_us > plan.now, "it is taken back by the pause"
    plan.ends(Fact(ahead, 0, "cancelled", finished_us=plan.now))
    fires, jobs = rows_of(plan, FIRES), rows_of(plan, JOBS)
    first = key_of(plan.sent[0]).time_us
    assert [row["verdict"] for row in fires].count("launched") == 3
    assert times_that_ran(fires, jobs, failed=True) == {first}
    assert times_that_ran(fires, jobs, failed=False) == frozenset()


def test_a_backfill_runs_what_a_schedule_had_handed_over_when_it_was_removed() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a", EVERY_MINUTE)
    plan.pass_s(51)
    plan.ask("delete", names=["a"])
    plan.unrun(0)
    fires, jobs = rows_of(plan, FIRES), rows_of(plan, JOBS)
    assert [row["verdict"] for row in fires] == ["obsolete", "launched"]
    assert times_that_ran(fires, jobs, failed=True) == frozenset()


def test_a_backfill_leaves_out_a_time_that_ran_in_the_place_of_one_before() -> None:
    plan = PlannerHarness()
    later = [{"kind": "delay", "delay": "90s"}]
    plan.put("a", EVERY_MINUTE, constraints=later)
    plan.pass_s(151)
    assert plan.verdicts() == ["waiting", "skipped", "waiting", "launched"]
    fires, jobs = rows_of(plan, FIRES), rows_of(plan, JOBS)
    assert len({row["generation"] for row in fires}) == 1
    ran = fires[0]["planned_at"]
    assert times_that_ran(fires, jobs, failed=True) == {ran}
    plan.end(0)
    assert times_that_ran(rows_of(plan, FIRES), rows_of(plan, JOBS), failed=False) == {ran}


def test_a_delay_that_no_job_outlives_is_refused() -> None:
    plan = PlannerHarness()
    delay = [{"kind": "delay", "delay": "1d"}]
    answer = plan.put("a", ORDERS, constraints=delay)
    assert answer[0] == "argument"
    assert "job_timeout" in answer[2]
    assert plan.put("a", ORDERS, constraints=delay, jobTimeout="25h")[0] == "ok"
    plan.event("orders")
    plan.pass_s(24 * 3600)
    assert plan.verdicts() == ["waiting", "launched"]


@pytest.mark.parametrize("name", ["daily", "team/" + "x" * 150])
def test_the_tasks_of_a_backfill_have_a_tag_of_its_own_and_the_answer_names_it(name: str) -> None:
    plan = PlannerHarness()
    plan.put(name, EVERY_MINUTE, tags=[f"t{number}" for number in range(16)])
    spans = [(plan.now - number * 60 * SECOND, plan.now - (number - 2) * 60 * SECOND) for number in (4, 2)]
    tags = [plan.ask("backfill", name=name, begin=begin, end=end, maxRunning=2)[3]["tag"] for begin, end in spans]
    plan.pass_s(0)
    assert [one["tags"][:2] for one in plan.sent] == [[tags[0], "t0"]] * 2 + [[tags[1], "t0"]] * 2
    assert tags[0] != tags[1]
    assert all(is_tag(tag) and tag.startswith("backfill:") for tag in tags)
    assert read_filter(f"tag:{tags[0]}", plan.now).conditions == (OneOf("tag", (tags[0],)),)
    plan.ask("run", name=name)
    assert tags[1] not in plan.sent[-1]["tags"]


def test_all_missed_times_run_also_where_a_constraint_makes_them_wait() -> None:
    plan = PlannerHarness()
    night = [{"kind": "time_range", "begin": "01:00", "end": "02:00"}]
    plan.put("a", EVERY_MINUTE, catchUp="all", constraints=night)
    plan.restart(5 * 60 * SECOND + SECOND)
    plan.pass_s(2)
    assert plan.verdicts() == ["waiting"] * 5
    plan.to(plan.now - plan.now % (3600 * SECOND) + 3600 * SECOND)
    assert plan.launched()[:5] == [f"a/2026-03-01T00:0{n}:00Z/{n}" for n in range(1, 6)]
    assert {one["orderingId"] for one in plan.sent} == {"schedule/a"}


@pytest.mark.parametrize("overlap", ["skip", "allow_all"])
@pytest.mark.parametrize("missed", [False, True])
def test_times_that_are_all_run_wait_for_a_place_where_a_hundred_wait_for_a_constraint(missed, overlap) -> None:
    plan = PlannerHarness()
    night = [{"kind": "time_range", "begin": "04:00", "end": "06:00"}]
    every_minute = EVERY_MINUTE | {"endAt": "2026-03-01T02:10:30Z"}
    plan.put("a", every_minute, catchUp="all", constraints=night, overlap=overlap)
    if missed:
        plan.restart(after_us=7_200 * SECOND)
    plan.to(START + round(4.5 * 3_600) * SECOND)
    assert "skipped" not in plan.verdicts()
    times = sorted(run.split("/")[1] for run in plan.launched())
    assert times == [f"2026-03-01T{n // 60:02}:{n % 60:02}:00Z" for n in range(1, 131)]
    if overlap == "skip":
        assert {one["orderingId"] for one in plan.sent} == {"schedule/a"}, "one after the other"


@pytest.mark.parametrize("overlap", ["buffer_all", "allow_all", "cancel_other"])
@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_no_time_is_skipped_for_the_bound_of_jobs_where_each_has_a_job_of_its_own(overlap, catch_up) -> None:
    plan = PlannerHarness()
    night = [{"kind": "time_range", "begin": "04:00", "end": "06:00"}]
    every_minute = EVERY_MINUTE | {"endAt": "2026-03-01T02:10:30Z"}
    plan.put("a", every_minute, catchUp=catch_up, constraints=night, overlap=overlap)
    for _ in range(9):
        plan.pass_s(1_800)
        plan.restart()
    assert plan.verdicts().count("skipped") == plan.verdicts().count("missed") == 0
    times = sorted(run.split("/")[1] for run in plan.launched())
    assert times == [f"2026-03-01T{n // 60:02}:{n % 60:02}:00Z" for n in range(1, 131)]


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("bound", ["jobs", "runs"])
def test_times_that_wait_for_a_place_are_none_that_were_missed_however_old_they_are(bound, snapshot) -> None:
    plan, times = PlannerHarness(), {"jobs": 210, "runs": 1_010}[bound]  # a few more than may wait, or run
    limits = {"jobs": [{"kind": "rate", "most": 1, "per": "30s"}], "runs": []}[bound]
    every = {"kind": "every", "period": "1s", "endAt": iso(START + times * SECOND)}
    plan.put("a", every, catchUp="all", catchUpWindow="20m", overlap="buffer_all", constraints=limits, jobTimeout="9d")
    plan.restart(1_020 * SECOND)
    plan.pass_s(60)
    for number in range(20):
        plan.pass_s(600)
        if bound == "runs":
            plan.end(number)
        if snapshot:
            plan.log = plan.snapshot()
        plan.restart(after_us=600 * SECOND if number % 2 else 0)
        plan.pass_s(0)
    if bound == "jobs":
        plan.pass_s(times * 30)
    assert "missed" not in plan.verdicts()
    assert [run.split("/")[2] for run in plan.launched()] == [f"{number + 1}" for number in range(times)]


def test_older_readers_stop_before_a_snapshot_that_says_which_times_wait_for_a_place() -> None:
    plan = PlannerHarness()
    night = [{"kind": "time_range", "begin": "02:00", "end": "06:00"}]
    plan.put("a", EVERY_MINUTE, overlap="buffer_all", constraints=night)
    plan.pass_s(7_080)
    assert {json.loads(value)["v"] for value in plan.log} == {2}
    assert {json.loads(value)["v"] for value in plan.snapshot()} == {2}, "none has found a place yet"
    plan.pass_s(180)
    assert 7 in {json.loads(value)["v"] for value in plan.snapshot()}


def test_what_was_missed_behind_times_that_waited_for_a_place_is_caught_up_with_by_policy() -> None:
    plan = PlannerHarness()
    early = [{"kind": "time_range", "begin": "02:00", "end": "03:00"}]
    plan.put("a", EVERY_MINUTE, overlap="buffer_all", constraints=early)
    plan.pass_s(2 * 3_600 + 90)
    assert plan.verdicts().count("launched") == 121
    for number in range(121):
        plan.end(number)
    plan.restart(after_us=600 * SECOND)
    plan.pass_s(0)
    assert plan.verdicts()[-2:] == ["missed", "launched"], "nothing waited any more"


def test_a_schedule_that_is_gone_leaves_nothing_of_the_times_that_waited_for_a_place() -> None:
    plan = PlannerHarness()
    night = [{"kind": "time_range", "begin": "04:00", "end": "06:00"}]
    plan.put("a", EVERY_MINUTE, overlap="buffer_all", constraints=night)
    plan.pass_s(7_200)
    timing = plan.planner._timing
    kept = [name for name, value in vars(timing).items() if isinstance(value, dict | set) and "a" in value]
    assert kept == ["_held"]
    plan.ask("delete", names=["a"])
    assert not [name for name, value in vars(timing).items() if isinstance(value, dict | set) and "a" in value]


@pytest.mark.slow
def test_a_restart_does_not_skip_times_that_wait_for_a_place() -> None:
    plan = PlannerHarness()
    night = [{"kind": "time_range", "begin": "04:00", "end": "06:00"}]
    plan.put("a", EVERY_MINUTE | {"endAt": "2026-03-01T02:10:30Z"}, catchUp="all", constraints=night)
    for _ in range(10):
        plan.pass_s(1_620)
        plan.restart()
    plan.pass_s(60)
    assert len(plan.launched()) == 130
    assert "skipped" not in plan.verdicts()


# -- so many runs that there is no place for another ------------------------------------------------------------------------


@pytest.fixture
def three_runs(monkeypatch):
    """No more than three runs of a schedule are active at once."""
    monkeypatch.setattr(schedule_entry, "MOST_RUNS", 3)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("overlap", ["buffer_all", "allow_all"])
def test_times_wait_where_each_is_promised_a_run_and_too_many_are_active(
    three_runs, overlap: str, restarts: bool
) -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, overlap=overlap, catchUp="none")
    plan.pass_s(10 * 60 + 5)
    assert plan.verdicts() == ["launched"] * 3
    if restarts:
        plan.restart(after_us=SECOND)
    for number in range(10):
        plan.end(number)
        plan.pass_s(0)
    assert plan.verdicts() == ["launched"] * 10
    assert [fire["planned_us"] for fire in plan.fires] == [START + minute * 60 * SECOND for minute in range(1, 11)]


@pytest.mark.parametrize("overlap", ["buffer_all", "allow_all"])
def test_what_happens_waits_too_and_is_said_to(three_runs, overlap: str) -> None:
    plan = PlannerHarness()
    plan.put("a", ORDERS, overlap=overlap)
    for _ in range(5):
        plan.event("orders")
    assert plan.verdicts() == ["launched"] * 3 + ["waiting"] * 2
    assert plan.fires[-1]["why"] == "3 runs are active"
    plan.restart()
    plan.end(0)
    assert plan.verdicts()[5:] == ["launched"]
    plan.end(1)
    assert plan.verdicts()[5:] == ["launched"] * 2
    assert [fire["generation"] for fire in plan.fires[5:]] == [4, 5]


def test_a_job_that_has_waited_for_its_constraints_waits_on_where_too_many_runs_are_active(three_runs) -> None:
    plan = PlannerHarness()
    plan.put("a", EVERY_MINUTE, overlap="allow_all", constraints=[{"kind": "delay", "delay": "150s"}])
    plan.pass_s(9 * 60)
    assert "skipped" not in plan.verdicts()
    for number in range(4):
        plan.end(number)
        plan.pass_s(0)
    plan.pass_s(160)
    assert "skipped" not in plan.verdicts()
    assert [fire["planned_us"] for fire in plan.fires if fire["verdict"] == "launched"] == [
        START + minute * 60 * SECOND for minute in range(1, 8)
    ]


def test_no_more_jobs_wait_for_a_place_than_may(three_runs, monkeypatch) -> None:
    monkeypatch.setattr(schedule_entry, "MOST_JOBS", 2)
    plan = PlannerHarness()
    plan.put("a", {"kind": "partitions", "dataset": "d", "atLeast": 1}, overlap="buffer_all")
    for _ in range(9):
        plan.ask("partitions", name="d", partitions=[{"count": 1}])
    assert len(plan.planner.state.entries["a"].jobs) == 2
    assert "skipped" not in plan.verdicts()
