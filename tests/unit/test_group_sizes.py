"""No record of the planner's log is larger than what Kafka takes, whatever is decided; what is too large by itself stops nothing else."""

import json
import uuid
from datetime import date, timedelta

import pytest
from pydantic import ValidationError

from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state import plan_log, unwritten_changes
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Handed
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.records.fact import Fact, Unreadable
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.kafka.topics import MAX_MESSAGE_BYTES
from tests.support.planner_harness import SECOND, START, PlannerHarness, assert_same, key_of

HOURLY = {"kind": "every", "period": "1h"}
WATCHED = {"kind": "table", "table": "x", "per": "customer"}


def sizes(plan: PlannerHarness) -> list[int]:
    """Of the records that are to be written; they are written."""
    groups = plan.planner.take(plan.now)
    values = [plan_log.encode(group) for group in groups]
    for group, value in zip(groups, values, strict=True):
        plan.log.append(value)
        plan.shadow.fold(read(value))
        for change in group.changes:
            plan.look(change)
    assert_same(plan.planner.state, plan.shadow)
    assert max(map(len, values), default=0) <= plan_log.MAX_GROUP_BYTES
    return [len(value) for value in values]


def read(value: bytes) -> plan_log.Group:
    group = plan_log.decode(value)
    assert not isinstance(group, Unreadable)
    return group


def folded(values: list[bytes]) -> PlanState:
    state = PlanState()
    for value in values:
        state.fold(read(value))
    assert not state.unreadable
    return state


def snapshot_of(plan: PlannerHarness) -> list[bytes]:
    """Takes a snapshot; its records."""
    begins = len(plan.log)
    names = plan.planner.begin_snapshot(plan.now)
    while names:
        plan.planner.snapshot(names, plan.now)
    sizes(plan)
    return plan.log[begins:]


def test_what_a_record_may_hold_is_less_than_kafka_takes() -> None:
    assert plan_log.MAX_GROUP_BYTES < plan_log.MOST_RECORD_BYTES < MAX_MESSAGE_BYTES - 64 * 1024


def test_the_size_of_what_was_decided_is_counted_in_encoded_bytes() -> None:
    plan = PlannerHarness()
    empty = len(plan_log.encode(plan_log.Group(plan.planner.fence, 1, plan.now)))
    kept = unwritten_changes.Journal(PlanState())
    for text in ("é" * 100, "\x01" * 100, '"' * 100, "plain"):
        kept.conclude("answer", "r", "ok", text, "", {"key": Handed("id", 1, 2, {"mon": (3, 4)})})
    size = kept.size
    value = plan_log.encode(plan_log.Group(plan.planner.fence, 1, plan.now, changes=kept.take()))
    assert len(value) == empty + size - 1  # the last one has no comma


@pytest.mark.slow
def test_a_commit_to_many_partitions_is_written_in_records_that_grow_with_their_number() -> None:
    plan = PlannerHarness()
    plan.put("t", WATCHED)
    place = next(iter(plan.planner.watched()))
    plan.planner.looked("t", lambda tables: tables.begins(place, "id", 0), plan.now)
    plan.turn()
    for number in range(600):
        growth = Growth("id", 0, 1, rows=10, part=str(uuid.UUID(int=number * 7919)), alone=False)
        plan.planner.looked("t", lambda tables, growth=growth: tables.grew(place, growth, plan.now), plan.now)
    found = sizes(plan)
    assert len(plan.planner.state.entries["t"].tables[0].parts) == 600
    assert len(found) > 1
    assert sum(found) < 600 * 2_000


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "payload"), [(20, 150_000), (24 * 31, 2_400)])
def test_a_backfill_goes_on_where_it_was_when_the_planner_ended(runs: int, payload: int) -> None:
    plan = PlannerHarness()
    plan.put("daily", HOURLY, payload={"x": "y" * payload})
    offset = plan.planner.state.commands
    value = encode_command(
        "backfill", id="b", name="daily", begin=START - runs * 3600 * SECOND, end=START, maxRunning=3
    )  # fmt: skip
    plan.planner.command(offset, value, plan.now, plan.now)
    plan.planner.tick(plan.now)
    groups = plan.planner.take(plan.now)
    assert len(groups) == (3 if payload > 100_000 else 1)
    for group in groups[:2]:  # the rest is lost with the planner
        plan.log.append(plan_log.encode(group))
        plan.shadow.fold(group)
        for change in group.changes:
            plan.look(change)
    plan.restart(SECOND)
    plan.planner.command(offset, value, plan.now, plan.now)
    assert plan.planner.state.commands == offset + 1
    plan.pass_s(0)
    for number in range(runs):
        assert len(plan.sent) == min(number + 3, runs)
        plan.end(number)
    sizes(plan)
    planned = [one["uniquenessKey"].split("/")[1] for one in plan.sent]
    assert len(planned) == len(set(planned)) == runs
    assert plan.answers["b"][-1] == {"planned": runs, "launched": runs, "tag": "backfill:daily/1"}


def test_a_deadline_that_many_listen_to_is_told_in_several_records() -> None:
    plan = PlannerHarness()
    plan.put("s", {"kind": "every", "period": "1d"}, expectEvery="1h")
    trigger = {"kind": "event", "name": "schedule.silent"}
    for number in range(40):
        plan.put(f"l{number}", trigger, payload={"x": "y" * 60_000})
    plan.now = START + 3601 * SECOND
    plan.planner.tick(plan.now)
    assert len(sizes(plan)) > 2
    assert len(plan.sent) == 40


@pytest.mark.slow
def test_a_late_start_that_many_listen_to_is_told_once_though_the_planner_ends_in_its_midst() -> None:
    plan = PlannerHarness()
    plan.put("s", HOURLY, lateAfter="1m")
    for number in range(40):
        plan.put(f"l{number:02}", {"kind": "event", "name": "schedule.late"}, payload={"x": "y" * 60_000})
    plan.to(START + 3600 * SECOND)
    key = key_of(plan.sent[-1])
    plan.now += 30 * SECOND
    fact = Fact(key, 1, "succeeded", key.time_us + 90 * SECOND, plan.now, key.time_us, 1)
    plan.planner.outcomes(0, 1, [fact], (2, 1, "d"), plan.now)
    groups = plan.planner.take(plan.now)
    assert len(groups) > 3
    assert all(group.partly == (0, 1, 1, "") for group in groups[:-1]), "the end itself is through"
    plan.log += map(plan_log.encode, groups[:2])
    plan.shadow = folded(plan.log)
    plan.restart()
    plan.planner.outcomes(0, 1, [fact], (2, 1, "d"), plan.now)
    plan.turn()
    ends = [change for value in plan.log for change in read(value).changes if change[0] == "end"]
    assert len(ends) == 1


@pytest.mark.slow
def test_launches_that_were_never_sent_are_launched_anew_in_several_records() -> None:
    plan = PlannerHarness()
    for number in range(30):
        plan.put(f"s{number}", HOURLY, payload={"x": "y" * 80_000})
    plan.to(START + 3600 * SECOND)
    lost = list(plan.sent)
    assert len(lost) == 30
    plan.now += 3600 * SECOND
    for record in lost:
        plan.planner.anew(key_of(record), record["taskData"], plan.now)
    assert len(sizes(plan)) > 2
    assert len(plan.sent) == 60


@pytest.mark.slow
def test_the_head_of_a_snapshot_is_split() -> None:
    state = PlanState()
    for number in range(20_000):
        state.apply(["grave", f"{number:06}" + "n" * 194, 1])
    for calendar in range(50):
        days = [(date(2000, 1, 1) + timedelta(days=day)).isoformat() for day in range(3_000)]
        state.apply(["calendar", f"c{calendar}", days, {days[0]: "x" * 1_024}])
    for number in range(8):
        state.number = number + 1
        for _ in range(6):
            state.apply(["send", "x" * 120_000])
    planner = Planner(state, PlannerHarness().planner.fence, 0, START)
    planner.begin_snapshot(START)
    groups = planner.take(START)
    assert [group.begins for group in groups] == [True] + [False] * (len(groups) - 1)
    values = [plan_log.encode(group) for group in groups]
    assert max(map(len, values)) <= plan_log.MAX_GROUP_BYTES
    again = folded(values)
    assert list(again.graves.items()) == list(state.graves.items())
    assert (again.calendars, again.unsent) == (state.calendars, state.unsent)


def large_schedules() -> PlannerHarness:
    """One with many jobs that wait and hold much, one that has handed over many partitions."""
    plan = PlannerHarness()
    plan.put("down", {"kind": "after", "work": "load"}, constraints=[{"kind": "delay", "delay": "2h"}])
    for number in range(60):
        key = TaskKey(plan.now, "lane", f"u{number}")
        result = json.dumps("r" * 60_000)
        plan.ends(Fact(key, 1, "succeeded", plan.now, plan.now, plan.now, 1, result=result, queue="q", handler="load"))
    plan.put("t", WATCHED)
    place = next(iter(plan.planner.watched()))
    plan.planner.looked("t", lambda tables: tables.begins(place, "id", 0), plan.now)
    for number in range(6_000):
        part = str(uuid.UUID(int=number * 7919))
        change = (plan_log.TABLE_PART, "t", 0, part, number, plan.now)
        plan.planner._journal.note(*change)  # as a run of each would, one after the other
        plan.planner.rest(plan.now)
    sizes(plan)
    return plan


@pytest.mark.slow
def test_a_schedule_that_holds_much_is_told_in_several_records_of_a_snapshot() -> None:
    plan = large_schedules()
    records = snapshot_of(plan)
    again = folded(records)
    assert again.entries == plan.planner.state.entries
    for leaf, handed in again.entries["t"].tables.items():
        assert list(handed.parts) == list(plan.planner.state.entries["t"].tables[leaf].parts)


@pytest.mark.slow
def test_who_begins_before_a_snapshot_knows_everything_at_every_record_of_it() -> None:
    plan = large_schedules()
    before, whole = list(plan.log), plan.planner.state.entries
    state = folded(before)
    for value in snapshot_of(plan):
        state.fold(read(value))
        assert state.entries == whole


@pytest.mark.slow
def test_only_records_that_need_it_are_of_the_new_version() -> None:
    plan = large_schedules()
    snapshot_of(plan)
    new = {plan_log.ENTRY_PART, plan_log.ENTRY_JOB, plan_log.TABLE_PART}
    for value in plan.log:
        version = 3 if {change[0] for change in read(value).changes} & new else 2
        assert value.startswith(f'{{"v":{version},"kind":"plan",'.encode())
        assert plan_log.is_plan(value)


# -- what is too large by itself ------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that hold little."""
    monkeypatch.setattr(unwritten_changes, "MAX_GROUP_BYTES", 40_000)


@pytest.mark.promise
def test_a_schedule_whose_launch_no_record_holds_is_paused_with_the_reason_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = PlannerHarness()
    plan.put("small", HOURLY)
    assert plan.put("large", HOURLY, payload={"x": "y" * 40_000})[0] == "ok"
    monkeypatch.setattr(unwritten_changes, "MAX_GROUP_BYTES", 40_000)
    plan.pass_s(3_600)
    entry = plan.planner.state.entries["large"]
    assert entry.paused
    assert "one record holds" in entry.note
    assert not entry.runs, "no run is recorded whose task is not sent"
    assert [one["uniquenessKey"].split("/")[0] for one in plan.sent] == ["small"]
    plan.restart()
    plan.end(0)
    plan.pass_s(3_600)
    assert len(plan.sent) == 2


@pytest.mark.usefixtures("narrow")
def test_a_command_that_no_record_holds_is_refused_and_is_not_met_again() -> None:
    plan = PlannerHarness()
    answer = plan.put("large", HOURLY, payload={"x": "y" * 50_000})
    assert answer[0] == "rejected"
    assert "one record holds" in answer[1]
    assert plan.refused[-1][2] == "too_large"
    assert not plan.planner.state.entries
    plan.restart()
    assert plan.planner.state.commands == 1
    assert plan.put("small", HOURLY)[0] == "ok"


def test_an_answer_about_very_many_is_given_without_what_became_of_each() -> None:
    plan = PlannerHarness()
    plan.planner._answers.answer("r", "ok", "", "", {f"{number:06}" + "n" * 190: "removed" for number in range(10_000)})
    sizes(plan)
    assert plan.answers["r"][0] == "ok"
    assert plan.answers["r"][-1] == {}


HEAD = b'{"v":2,"kind":"plan","epoch":1,"nonce":"n","number":1,"at_us":1,"sent":0,"snapshot":-1,"changes":'


def test_a_record_that_begins_like_a_group_and_is_larger_than_any_is_not_read():
    filled = HEAD + b"[" + b" " * (plan_log.MAX_READ_BYTES - len(HEAD) - 3) + b"]}"
    assert not isinstance(plan_log.decode(filled), Unreadable)
    assert plan_log.decode(filled + b" ") == Unreadable(
        "too_large", f"The record has {plan_log.MAX_READ_BYTES + 1} bytes; {plan_log.MAX_READ_BYTES} are read."
    )


def test_of_many_wrong_changes_only_the_first_is_an_error():
    with pytest.raises(ValidationError) as refused:
        plan_log._read(HEAD + b"[" + b",".join([b"1"] * 1_000) + b"]}")
    assert refused.value.error_count() == 1
