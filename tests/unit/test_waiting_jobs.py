"""What becomes of what comes while nothing is launched: versions of tables stay, events are collected, the latest time stands."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from scylla_spark import Constraint, Schedule, Trigger
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.schedule_entry import MOST_JOBS, Entry, Handed, Job
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.plan.tables.handing_over import moved
from scylla_spark.core.plan.tables.watch import Place
from scylla_spark.testing import world
from scylla_spark.transforms.plan_rows import plan_rows
from tests.support.planner_harness import SECOND, PlannerHarness
from tests.support.planner_harness import START as START_US

START = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
AT_ONE = Constraint.time_range("13:00", "14:00")
VERSIONS = {
    name: f"{{{{ table.{field} }}}}"
    for name, field in (("from", "from_version"), ("to", "to_version"), ("rows", "rows"))
}
PARTS = VERSIONS | {"part": "{{ table.partition }}"}
EVENT = {"kind": "event", "name": "e"}
TABLE = {"kind": "table", "table": "/t"}
LATER = [{"kind": "delay", "delay": "60s"}]


HOUR = 3_600


def jobs(plan: PlannerHarness) -> list[Job]:
    return [*plan.planner.state.entries["a"].jobs.values()]


def planned(unique: str) -> str:
    return unique.split("/")[1][8:16]


def report(task):
    return task.payload


@pytest.fixture
def w():
    with world([report], START) as made:
        yield made


def owned(w):
    return [(run.payload["from"], run.payload["to"]) for run in w.runs]


def verdicts(w):
    return [fire.verdict for fire in w.fires]


# -- versions of tables ----------------------------------------------------------------------------------------------


def test_versions_that_a_constraint_drops_belong_to_the_next_run(w):
    w.put_schedules(
        Schedule("a", "report", Trigger.table("t"), payload=VERSIONS, constraints=[Constraint.last_run("5m")])
    )
    for _ in range(6):
        w.grow_table("t", 10)
        w.advance("1m")
    assert owned(w) == [(-1, 0), (0, 5)]
    assert w.runs[-1].payload["rows"] == 50
    assert verdicts(w) == ["launched", *["skipped"] * 4, "launched"]


def test_versions_that_the_overlap_policy_skips_belong_to_the_next_run(w):
    w.takes("report", "150s")
    w.put_schedules(Schedule("a", "report", Trigger.table("t"), payload=VERSIONS, overlap="skip"))
    for _ in range(7):
        w.grow_table("t", 10)
        w.advance("1m")
    w.advance("5m")
    assert owned(w) == [(-1, 0), (0, 3), (3, 6)]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all", "allow_all"])
def test_what_comes_to_a_table_while_its_job_waits_goes_with_that_job(w, overlap):
    w.put_schedules(
        Schedule("a", "report", Trigger.table("t"), payload=VERSIONS, constraints=[AT_ONE], overlap=overlap)
    )
    for _ in range(3):
        w.grow_table("t", 10)
        w.advance("1m")
    w.advance("2h")
    assert owned(w) == [(-1, 2)]
    assert w.runs[0].payload["rows"] == 30
    assert verdicts(w) == ["waiting", "launched"]


def test_what_waited_when_a_schedule_was_paused_belongs_to_the_run_after_the_pause(w):
    w.put_schedules(Schedule("a", "report", Trigger.table("t"), payload=VERSIONS, constraints=[AT_ONE]))
    w.grow_table("t", 10)
    w.advance("1m")
    w.schedule("a").pause()
    w.advance("1h")
    assert not w.runs
    w.schedule("a").resume()
    w.advance("1m")
    assert owned(w) == [(-1, 0)]


def test_what_waited_when_a_schedule_was_changed_belongs_to_the_run_after_the_change(w):
    for note in ("before", "after"):
        w.put_schedules(Schedule("a", "report", Trigger.table("t"), payload=VERSIONS, constraints=[AT_ONE], note=note))
        w.grow_table("t", 10)
        w.advance("1m")
    w.advance("1h")
    assert owned(w) == [(-1, 1)]


def test_what_waited_for_too_long_belongs_to_the_next_run(w):
    w.put_schedules(
        Schedule("a", "report", Trigger.table("t"), payload=VERSIONS, constraints=[AT_ONE], job_timeout="10m")
    )
    w.grow_table("t", 10)
    w.advance("61m")
    assert verdicts(w) == ["waiting", "obsolete"]
    w.grow_table("t", 7)
    w.advance("1m")
    assert owned(w) == [(-1, 1)]


def test_a_payload_that_cannot_be_made_leaves_the_versions_to_the_next_run(w):
    payload = VERSIONS | {"day": "{{ event.day }}"}
    w.put_schedules(Schedule("a", "report", Trigger.table("t") & Trigger.event("e"), payload=payload))
    w.grow_table("t", 10)
    w.emit("e")
    w.grow_table("t", 10)
    w.emit("e", {"day": 2})
    w.advance("1m")
    assert verdicts(w) == ["failed", "launched"]
    assert owned(w) == [(-1, 1)]


def test_a_job_that_waits_is_not_told_of_again_by_commits_that_do_not_count(w):
    w.put_schedules(
        Schedule(
            "a", "report", Trigger.table("t", operations=["append"]), payload=VERSIONS,
            constraints=[Constraint.time_range("13:00", "14:00", otherwise="abort")],
        )
    )  # fmt: skip
    w.grow_table("t", 10)
    for _ in range(5):
        w.grow_table("t", 10, operation="delete")
        w.advance("1m")
    assert verdicts(w) == ["skipped"]


def watch(plan: PlannerHarness) -> Place:
    (place,) = plan.planner.watched()
    return place


def grow(plan: PlannerHarness, before: int, to: int, part: str = "", *, alone: bool = True, table: str = "id") -> None:
    plan.planner.tables.grew(watch(plan), Growth(table, before, to, part=part, alone=alone), plan.now)
    plan.turn()


def begun(plan: PlannerHarness) -> None:
    plan.planner.tables.begins(watch(plan), "id", 0)
    plan.turn()


def edges(plan: PlannerHarness) -> list[tuple[str | None, int, int]]:
    payloads = [one["taskData"] for one in plan.sent]
    return [(one.get("part"), one["from"], one["to"]) for one in payloads]


def test_partitions_that_wait_each_claim_what_is_theirs_and_hand_over_nothing_twice() -> None:
    plan = PlannerHarness()
    plan.put("a", {**TABLE, "per": "day"}, payload=PARTS, constraints=LATER, overlap="skip")
    begun(plan)
    grow(plan, 0, 5, "mon")  # nothing has come to another one
    plan.pass_s(1)
    grow(plan, 0, 7, "tue", alone=False)
    plan.pass_s(59)
    assert edges(plan) == [("mon", 0, 5)]
    plan.end()
    plan.restart()
    grow(plan, 5, 9, "tue")
    plan.pass_s(60)
    assert edges(plan) == [("mon", 0, 5), ("tue", 0, 9)], "up to 5 nothing had come to it"
    assert plan.planner.state.entries["a"].tables[0].of_part("mon")[0] == 9


def test_a_partition_that_was_alone_takes_nothing_back_of_what_others_were_given() -> None:
    entry = Entry("a", "", tables={0: Handed("id", 3, 0, {"tue": (7, 0)})})
    claim = {"table_id": "id", "from_version": 3, "to_version": 5, "partition": "mon", "alone": True}
    assert moved(entry, 0, claim, 9) == ("table_part", "a", 0, "mon", 5, 9)
    assert moved(entry, 0, {**claim, "to_version": 7}, 9) == ("table", "a", 0, Handed("id", 7, 9))


def test_a_claim_ends_with_the_table_that_it_was_of() -> None:
    plan = PlannerHarness()
    plan.put("a", TABLE, payload=VERSIONS, constraints=LATER)
    begun(plan)
    grow(plan, 0, 5)
    plan.planner.tables.trouble(watch(plan), "rewound", "It was set back.", ("id", 3), plan.now)
    grow(plan, 3, 4)
    plan.pass_s(61)
    assert plan.verdicts() == ["waiting", "trouble", "obsolete", "waiting", "launched"]
    assert edges(plan) == [(None, 3, 4)]


def test_a_claim_that_ends_leaves_the_events_that_came_beside_it() -> None:
    plan = PlannerHarness()
    plan.put("a", {"kind": "all", "of": [EVENT, TABLE]}, payload=VERSIONS | {"n": "{{ event.n }}"})
    begun(plan)
    grow(plan, 0, 5)
    plan.planner.tables.trouble(watch(plan), "rewound", "It was set back.", ("id", 3), plan.now)
    plan.event("e", n=1)
    assert plan.verdicts() == ["trouble", "obsolete"], "nothing was left of that job"
    plan.planner.tables.trouble(watch(plan), "rewound", "It was set back again.", ("id", 2), plan.now)
    grow(plan, 2, 4)
    assert [one["taskData"]["n"] for one in plan.sent] == [1]
    assert edges(plan) == [(None, 2, 4)]


def test_a_job_that_has_seen_an_event_and_versions_keeps_the_event_when_the_table_is_another() -> None:
    plan = PlannerHarness()
    late = {"kind": "event", "name": "late"}
    plan.put("a", {"kind": "all", "of": [EVENT, TABLE, late]}, payload={"n": "{{ events.e.n }}"} | VERSIONS)
    begun(plan)
    plan.event("e", n=1)
    grow(plan, 0, 5)
    plan.planner.tables.trouble(watch(plan), "rewound", "It was set back.", ("id", 3), plan.now)
    plan.event("late")
    assert not plan.sent
    grow(plan, 3, 4)
    assert edges(plan) == [(None, 3, 4)]
    assert plan.verdicts() == ["trouble", "launched"]


def test_jobs_of_a_log_of_before_that_have_their_versions_already_keep_them() -> None:
    plan = PlannerHarness()
    plan.put("a", TABLE, payload=VERSIONS, constraints=LATER)
    begun(plan)
    grow(plan, 0, 1)
    plan.planner._journal.note("table", "a", 0, ["id", 4, plan.now, {}])  # as it was noted when the trigger held
    plan.turn()
    plan.restart()
    grow(plan, 4, 6)
    plan.pass_s(61)
    assert edges(plan) == [(None, 0, 1), (None, 4, 6)]
    assert plan.planner.state.entries["a"].tables[0].version == 6


# -- events, partitions and times --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
def test_events_that_come_while_a_job_waits_are_collected_by_it(overlap) -> None:
    plan = PlannerHarness()
    trigger = {"kind": "partitions", "dataset": "d", "atLeast": 2}
    plan.put("a", trigger, overlap=overlap, constraints=LATER, payload={"n": "{{ partitions.count }}"})
    for _ in range(5):
        plan.ask("partitions", name="d", partitions=[{}])
    plan.restart()
    plan.pass_s(61)
    assert [one["taskData"] for one in plan.sent] == [{"n": 5}]
    assert plan.verdicts() == ["waiting", "launched"]
    plan.ask("partitions", name="d", partitions=[{}])
    assert len(plan.sent) == 1, "counting has begun anew"


BOTH = {"kind": "all", "of": [{"kind": "event", "name": "x"}, {"kind": "event", "name": "y"}]}
PAIR = {"x": "{{ events.x.n }}", "y": "{{ events.y.n }}"}


def pairs(plan: PlannerHarness) -> list[tuple[int, int]]:
    return [(one["taskData"]["x"], one["taskData"]["y"]) for one in plan.sent]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all"])
def test_half_a_round_that_comes_while_a_job_waits_for_a_constraint_is_half_of_the_next_run(overlap) -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, overlap=overlap, constraints=LATER, payload=PAIR)
    for name, n in (("x", 1), ("y", 1), ("x", 2)):
        plan.event(name, n=n)
    plan.restart()
    plan.pass_s(61)
    plan.end()
    plan.event("y", n=2)
    plan.pass_s(61)
    assert pairs(plan) == [(1, 1), (2, 2)]
    assert not jobs(plan)


def test_half_a_round_that_comes_while_a_job_waits_for_a_run_is_half_of_the_next_run() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, overlap="buffer_one", payload=PAIR)
    for n in (1, 2):
        plan.event("x", n=n)
        plan.event("y", n=n)
    plan.event("x", n=3)
    plan.end()
    plan.end()
    plan.event("y", n=3)
    assert pairs(plan) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one"])
def test_a_whole_round_that_comes_while_a_job_waits_goes_with_that_job(overlap) -> None:
    plan = PlannerHarness()
    both = {"kind": "all", "of": [{"kind": "partitions", "dataset": "d", "atLeast": 2}, EVENT]}
    payload = {"n": "{{ partitions.count }}", "all": "{{ partitions.all }}", "e": "{{ event.n }}"}
    plan.put("a", both, overlap=overlap, constraints=LATER, payload=payload)
    for n in range(2):
        for part in range(2):
            plan.ask("partitions", name="d", partitions=[{"values": {"p": 2 * n + part}}])
        plan.event("e", n=n)
    plan.ask("partitions", name="d", partitions=[{"values": {"p": 4}}])
    assert [job.state for job in jobs(plan)] == ["pending_constraint", "pending_trigger"]
    plan.pass_s(61)
    assert [one["taskData"] for one in plan.sent] == [{"n": 4, "all": [{"p": n} for n in range(4)], "e": 1}]
    assert [job.latches[0].seen for job in jobs(plan)] == [1]


def test_versions_that_go_on_with_a_job_that_waits_take_the_event_with_them_that_waits_for_versions() -> None:
    plan = PlannerHarness()
    plan.put(
        "a",
        {"kind": "all", "of": [EVENT, TABLE]},
        overlap="skip",
        constraints=LATER,
        payload=VERSIONS | {"n": "{{ event.n }}"},
    )
    begun(plan)
    plan.event("e", n=1)
    grow(plan, 0, 3)
    plan.event("e", n=2)
    assert len(jobs(plan)) == 2
    grow(plan, 0, 5)
    assert len(jobs(plan)) == 1
    plan.pass_s(61)
    assert [(one["taskData"]["n"], one["taskData"]["to"]) for one in plan.sent] == [(2, 5)]


def test_partitions_of_a_table_that_wait_with_an_event_each_keep_their_job() -> None:
    plan = PlannerHarness()
    both = {"kind": "all", "of": [EVENT, {**TABLE, "per": "day"}]}
    plan.put("a", both, overlap="skip", constraints=LATER, payload=PARTS)
    begun(plan)
    for part in ("mon", "tue"):
        plan.event("e")
        grow(plan, 0, 5, part, alone=False)
    assert len(jobs(plan)) == 2
    plan.pass_s(61)
    plan.end()
    assert edges(plan) == [("mon", 0, 5)]
    plan.pass_s(1)
    assert plan.verdicts()[-1] == "skipped", "the other one found a run active; its versions stay"


def test_an_event_that_comes_while_one_waits_for_a_run_is_not_lost_where_one_is_buffered() -> None:
    plan = PlannerHarness()
    plan.put("a", EVENT, overlap="buffer_one", payload={"n": "{{ event.n }}"})
    for n in range(3):
        plan.event("e", n=n)
    assert plan.verdicts() == ["launched", "waiting"]
    plan.end()
    assert plan.sent[-1]["taskData"] == {"n": 2}


def test_events_each_have_a_job_where_all_are_buffered_until_there_are_too_many() -> None:
    plan = PlannerHarness()
    plan.put("a", EVENT, constraints=LATER, payload={"n": "{{ event.n }}"})
    for n in range(MOST_JOBS + 20):
        plan.event("e", n=n)
    plan.pass_s(61)
    assert [one["taskData"]["n"] for one in plan.sent] == [*range(MOST_JOBS - 1), MOST_JOBS + 19]
    assert "skipped" not in plan.verdicts(), "the last job has collected what came further"


@pytest.mark.parametrize("overlap", ["buffer_all", "skip"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("event_last", [False, True])
def test_rounds_of_events_and_partitions_wait_until_there_are_too_many_and_the_next_one_collects(
    overlap, restarts, event_last
) -> None:
    plan = PlannerHarness()
    both = {"kind": "all", "of": [EVENT, {**TABLE, "per": "day"}]}
    plan.put("a", both, overlap=overlap, constraints=LATER, payload=PARTS | {"n": "{{ event.n }}"})
    begun(plan)
    rounds = MOST_JOBS + 20
    for n in range(rounds):
        if event_last:
            grow(plan, 0, n + 1, f"p{n}", alone=False)
            plan.event("e", n=n)
        else:
            plan.event("e", n=n)
            grow(plan, 0, n + 1, f"p{n}", alone=False)
        assert sum(job.state != "pending_trigger" for job in jobs(plan)) <= MOST_JOBS
    assert len(jobs(plan)) == MOST_JOBS + 1
    if restarts:
        plan.restart()
    plan.pass_s(61)
    assert plan.sent
    if overlap == "skip":
        return  # all others found a run active
    last = MOST_JOBS + event_last  # versions alone begin no round where it is full: they stay
    assert edges(plan)[-1] == (f"p{last}", 0, last + 1)
    assert len(plan.sent) == MOST_JOBS + 1
    assert plan.sent[-1]["taskData"]["n"] == rounds - 1, "the round that found no place has collected what came further"
    assert not jobs(plan)
    plan.event("e", n="next")
    grow(plan, 0, rounds, f"p{rounds - 1}", alone=False)
    plan.pass_s(61)
    assert edges(plan)[-1] == (f"p{rounds - 1}", 0, rounds), "its versions had stayed"


def a_round_without_a_place(plan: PlannerHarness) -> None:
    """A hundred jobs wait, each with an event and a partition, and one more round is whole."""
    both = {"kind": "all", "of": [EVENT, {**TABLE, "per": "day"}]}
    plan.put("a", both, constraints=LATER, jobTimeout="2m", overlap="buffer_all", payload=PARTS)
    begun(plan)
    for n in range(MOST_JOBS + 1):
        plan.event("e", n=n)
        grow(plan, 0, n + 1, f"p{n}", alone=False)


@pytest.mark.parametrize("how", ["an event comes first", "nothing comes"])
def test_a_round_that_found_no_place_for_as_long_as_a_job_may_wait_is_told_of_so(how) -> None:
    plan = PlannerHarness()
    a_round_without_a_place(plan)
    plan.restart(after_us=120 * SECOND)
    if how == "an event comes first":
        plan.event("e", n="late")
    plan.pass_s(0)
    told = [fire for fire in plan.fires if fire.get("generation") == MOST_JOBS + 1]
    assert [fire["verdict"] for fire in told] == ["obsolete"]
    assert told[0]["why"] == "it has waited for longer than its job timeout"


def test_a_round_that_found_no_place_waits_no_longer_than_its_job_timeout(monkeypatch) -> None:
    plan = PlannerHarness()
    a_round_without_a_place(plan)
    monkeypatch.setattr(plan.planner._launching, "again", lambda *_: None)  # no job ever goes
    plan.pass_s(121)
    assert plan.verdicts()[-1] == "obsolete"
    assert len(jobs(plan)) == MOST_JOBS


def test_half_a_round_that_is_never_completed_is_told_of_so() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, jobTimeout="2m")
    plan.event("x", n=1)
    plan.pass_s(121)
    plan.event("x", n=2)
    assert [fire["why"] for fire in plan.fires] == ["its trigger has not held within the job timeout"]


def test_of_times_that_wait_for_a_constraint_the_latest_is_run(w):
    w.put_schedules(Schedule("a", "report", Trigger.cron("*/10 * * * *"), constraints=[AT_ONE]))
    w.advance_to(datetime(2026, 3, 1, 13, 0, 1, tzinfo=UTC))
    first = next(fire.planned_at for fire in w.fires if fire.verdict == "launched")
    assert first >= datetime(2026, 3, 1, 12, 50, tzinfo=UTC)
    told = [(fire.planned_at.minute, fire.verdict) for fire in w.fires][:5]
    assert told == [(10, "waiting"), (10, "skipped"), (20, "waiting"), (20, "skipped"), (30, "waiting")]
    assert len(w.runs) == len([fire for fire in w.fires if fire.verdict == "launched"]) <= 2


def test_a_time_that_waited_for_a_run_and_then_for_a_constraint_keeps_its_place_beside_a_later_one() -> None:
    plan = PlannerHarness()
    by_day = [{"kind": "time_range", "begin": "09:00", "end": "17:00", "tz": "UTC"}]
    plan.put("a", {"kind": "cron", "expression": "30 9-18 * * *"}, overlap="buffer_one", constraints=by_day)
    plan.pass_s(HOUR * 17.5 + 60)
    assert [(job.state, job.planned_us) for job in jobs(plan)] == [
        ("pending_launch", START_US + round(10.5 * HOUR * SECOND)),
        ("pending_constraint", START_US + round(17.5 * HOUR * SECOND)),
    ]
    plan.end()
    plan.restart()
    plan.pass_s(HOUR)
    assert [job.state for job in jobs(plan)] == ["pending_constraint", "pending_constraint"]
    plan.to(START_US + HOUR * 33 * SECOND + SECOND)
    plan.end()
    plan.end()
    assert [planned(launched) for launched in plan.launched()] == ["01T09:30", "01T10:30", "01T18:30"]
    assert not jobs(plan)


def test_a_delay_counts_from_the_first_of_the_times_that_wait(w):
    w.put_schedules(Schedule("a", "report", Trigger.cron("* * * * *"), constraints=[Constraint.delay("5m")]))
    w.advance("7m")
    assert [run.started_at - START for run in w.runs] == [timedelta(minutes=5, seconds=30)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_time_that_took_the_place_of_another_one_waits_for_as_long_as_any(restarts) -> None:
    plan = PlannerHarness()
    plan.put("long", EVENT)
    plan.event("e")
    plan.put(
        "a",
        {"kind": "cron", "expression": "0 10 * * *"},
        constraints=[{"kind": "concurrency", "most": 1, "otherwise": "wait"}],
    )
    for _ in range(3):
        plan.pass_s(24 * HOUR)
        if restarts:
            plan.restart()
    assert plan.verdicts("a") == ["waiting", "skipped", "waiting", "skipped", "waiting"]
    plan.end()
    assert [planned(launched) for launched in plan.launched()[1:]] == ["03T10:00"]


def test_a_time_that_took_the_place_of_another_one_is_dropped_at_its_own_job_timeout() -> None:
    plan = PlannerHarness()
    plan.put("long", EVENT)
    plan.event("e")
    busy = [{"kind": "concurrency", "most": 1, "otherwise": "wait"}]
    until = "2026-03-01T02:30:00Z"
    plan.put("a", {"kind": "cron", "expression": "0 * * * *", "endAt": until}, constraints=busy, jobTimeout="90m")
    plan.pass_s(3.5 * HOUR - 1)
    assert "obsolete" not in plan.verdicts("a")
    plan.pass_s(1)
    assert plan.verdicts("a")[-1] == "obsolete"
    assert not jobs(plan)


def test_a_later_time_that_waits_in_the_place_of_an_earlier_one_expires_by_itself() -> None:
    plan = PlannerHarness()
    minute = {"kind": "cron", "expression": "* * * * *", "endAt": "2026-03-01T00:02:30Z"}
    closed = [{"kind": "time_range", "begin": "20:00", "end": "06:00", "tz": "Asia/Tokyo"}]
    assert plan.put("a", minute, constraints=closed, expires="90s")[0] == "ok"
    plan.pass_s(60)
    assert plan.verdicts() == ["waiting"]
    plan.pass_s(60)
    assert plan.verdicts()[1:] == ["skipped", "waiting"]
    plan.pass_s(89)
    assert len(plan.fires) == 3
    plan.pass_s(2)
    assert plan.verdicts()[-1] == "skipped"
    assert plan.fires[-1]["planned_us"] == plan.now - 91 * SECOND


# -- changes of what watches a table -----------------------------------------------------------------------------------

CHANGES = {
    "tags": {"tags": ["x"]},
    "owner": {"owner": "bi"},
    "handler": {"handler": "other"},
    "deadline": {"expectEvery": "1h"},
    "payload": {"payload": {"x": 1}},
    "rows": {"trigger": {**TABLE, "minRows": 5}},
    "another branch before it": {"trigger": {"kind": "any", "of": [EVENT, TABLE]}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_leaves_where_a_table_stands(change) -> None:
    plan = PlannerHarness()
    plan.put("a", TABLE)
    begun(plan)
    grow(plan, 0, 3)
    before = watch(plan)
    plan.pass_s(1)
    assert plan.ask("put", schedules=[{"name": "a", "handler": "work", "trigger": TABLE} | change])[0] == "ok"
    plan.restart()
    (wanted,) = plan.planner.watched().values()
    assert wanted.handed == Handed("id", 3, plan.now - SECOND)
    assert watch(plan) != before, "it is looked at anew"


def test_a_change_leaves_each_table_where_it_stands_whatever_the_order_of_branches() -> None:
    plan = PlannerHarness()
    one, two, three = ({"kind": "table", "table": name} for name in ("/1", "/2", "/3"))
    late = {"kind": "absent", "of": one, "within": "1h"}

    def put(*branches: object) -> dict[tuple[str, str], int | None]:
        plan.put("a", {"kind": "any", "of": list(branches)})
        plan.pass_s(1)
        leaves = plan.planner.state.entries["a"].schedule.trigger.branches
        places = sorted(plan.planner.watched().items())
        return {
            (type(leaves[place.leaf]).__name__, wanted.trigger.table): wanted.handed.version if wanted.handed else None
            for place, wanted in places
        }

    put(one, two, late)
    for version, place in enumerate(sorted(plan.planner.watched()), start=10):
        plan.planner.tables.begins(place, "id", version)
    plan.turn()
    assert put(two, one, late) == {("OnTable", "/1"): 10, ("OnTable", "/2"): 11, ("OnAbsence", "/1"): 12}
    assert put(late, three, {**two, "minRows": 9}) == {
        ("OnAbsence", "/1"): 12,
        ("OnTable", "/3"): None,
        ("OnTable", "/2"): 11,
    }
    assert put(one, EVENT) == {("OnTable", "/1"): None}, "it was not watched meanwhile"


@pytest.mark.parametrize("per", ["country", None])
def test_a_change_of_what_a_table_is_shared_by_lets_go_of_the_parts_of_before(per) -> None:
    plan = PlannerHarness()
    plan.put("a", {**TABLE, "per": "city"}, payload=PARTS)
    begun(plan)
    grow(plan, 0, 3, "x")
    grow(plan, 3, 8, "x", alone=False)
    grow(plan, 3, 9, "y", alone=False)
    plan.pass_s(1)
    plan.put("a", {**TABLE, **({"per": per} if per else {})}, payload=PARTS if per else VERSIONS)
    plan.restart()
    (wanted,) = plan.planner.watched().values()
    assert wanted.handed == Handed("id", 3, plan.now - SECOND), "up to here all partitions had been handed over"
    grow(plan, 3, 10, "x" if per else "")
    assert edges(plan)[-1] == ("x" if per else None, 3, 10)


def test_a_change_of_something_else_leaves_the_parts_of_a_table() -> None:
    plan = PlannerHarness()
    plan.put("a", {**TABLE, "per": "city"}, payload=PARTS)
    begun(plan)
    grow(plan, 0, 8, "x", alone=False)
    plan.put("a", {**TABLE, "per": "city", "minRows": 5}, payload=PARTS)
    assert plan.planner.state.entries["a"].tables[0].of_part("x")[0] == 8


def test_of_two_branches_on_one_table_each_goes_on_where_it_stood() -> None:
    plan = PlannerHarness()
    small, large = ({**TABLE, "minRows": rows} for rows in (1, 9))
    plan.put("a", {"kind": "all", "of": [small, large]})
    for version, place in enumerate(sorted(plan.planner.watched()), start=10):
        plan.planner.tables.begins(place, "id", version)
    plan.put("a", {"kind": "all", "of": [large, small]}, tags=["x"])
    assert [handed.version for _, handed in sorted(plan.planner.state.entries["a"].tables.items())] == [11, 10]


def test_a_change_that_older_readers_would_understand_otherwise_is_of_a_version_that_they_stop_before() -> None:
    plan = PlannerHarness()
    plan.put("a", TABLE)
    begun(plan)
    versions = []
    for fields in ({"note": "x"}, {"tags": ["x"]}, {"tags": ["x"], "note": "y"}):
        plan.put("a", TABLE, **fields)
        versions.append(json.loads(plan.log[-1])["v"])
    assert versions == [2, 4, 2]


def test_a_round_that_goes_with_a_job_that_waits_is_told_of_as_joined() -> None:
    plan = PlannerHarness()
    plan.put("a", BOTH, overlap="skip", constraints=LATER, payload=PAIR)
    for n in (1, 2):
        plan.event("x", n=n)
        plan.event("y", n=n)
    groups = [plan_log.decode(value) for value in plan.log]
    rows = [json.loads(row.text) for group in groups for row in plan_rows(group, 0) if row.kind == "jobs"]
    assert [(row["generation"], row["state"]) for row in rows] == [
        (1, "pending_trigger"), (1, "pending_constraint"), (2, "pending_trigger"), (1, "pending_constraint"), (2, "joined"),
    ]  # fmt: skip
