"""A defect of ours that one schedule meets, wherever in the planner, pauses that schedule, and nothing else."""

import pytest

from scylla_spark import failpoint
from scylla_spark.core.plan.commands import plan_command
from scylla_spark.core.plan.state import plan_log, plan_state
from scylla_spark.core.plan.state.unwritten_changes import StateInDoubt
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.records.fact import Fact
from tests.support.planner_harness import SECOND, PlannerHarness, key_of

EVENT = {"kind": "event", "name": "e"}
EVERY_MINUTE = {"kind": "cron", "expression": "* * * * *"}
TABLE = {"kind": "table", "table": "/t"}
ONE = [{"kind": "concurrency", "most": 1, "otherwise": "wait"}]
NAMES = ("a-fine-one", "a-poison", "z-fine")


@pytest.fixture
def plant(monkeypatch):
    def at(point: str) -> None:
        monkeypatch.setattr(failpoint, "armed", {point: (failpoint.RAISE, 1)})

    return at


def put_all(plan: PlannerHarness, trigger, **fields) -> None:
    schedules = [{"name": name, "handler": "work", "trigger": trigger, **fields} for name in NAMES]
    assert plan.ask("put", schedules=schedules)[0] == "ok"


def only_the_poison_is_aside(plan: PlannerHarness) -> None:
    entries = plan.planner.state.entries
    assert [name for name in NAMES if entries[name].paused] == ["a-poison"]
    assert entries["a-poison"].note.startswith("paused for a defect of the planner: InjectedFault: fail point plan.")
    assert entries["a-poison"].author == "planner"
    assert {one.name for one in plan.planner.take_defects()} == {"a-poison"}


def launched(plan: PlannerHarness) -> list[str]:
    return [run.split("/")[0] for run in plan.launched()]


def test_a_defect_in_deciding_a_time_sets_that_schedule_aside(plant) -> None:
    plan = PlannerHarness()
    put_all(plan, EVERY_MINUTE, overlap="allow_all")
    plant("plan.decide")
    plan.pass_s(120)
    only_the_poison_is_aside(plan)
    assert sorted(launched(plan)) == ["a-fine-one"] * 2 + ["z-fine"] * 2


def test_a_defect_in_what_a_schedule_observes_sets_it_aside(plant) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    plant("plan.happened")
    plan.event("e")
    only_the_poison_is_aside(plan)
    assert launched(plan) == ["a-fine-one", "z-fine"]


@pytest.mark.parametrize("first", ["other", "gone"])
def test_a_defect_in_judging_whether_there_is_room_sets_the_one_aside_that_waits(plant, first) -> None:
    plan = PlannerHarness()
    plan.put(first, {"kind": "event", "name": "first"})
    plan.event("first")
    put_all(plan, EVENT, constraints=ONE)
    plan.event("e")
    assert plan.verdicts()[1:] == ["waiting"] * 3
    if first == "gone":
        plan.ask("delete", names=["gone"])
    plant("plan.judge")
    plan.end(0)
    plan.end()
    only_the_poison_is_aside(plan)
    assert launched(plan)[1:] == ["a-fine-one", "z-fine"]
    if first == "other":
        assert not plan.planner.state.entries["other"].paused, "its run ended, and the defect is another's"


def test_a_defect_in_taking_over_a_schedule_of_the_log_sets_it_aside(plant) -> None:
    plan = PlannerHarness()
    put_all(plan, EVERY_MINUTE, overlap="allow_all")
    plant("plan.load")
    plan.restart()
    plan.pass_s(60)
    only_the_poison_is_aside(plan)
    assert launched(plan) == ["a-fine-one", "z-fine"]


def test_runs_of_a_schedule_that_cannot_be_taken_over_count_for_others(plant) -> None:
    plan = PlannerHarness()
    plan.put("a-poison", EVENT)
    plan.event("e")
    plan.put("other", {"kind": "event", "name": "f"}, constraints=ONE)
    plant("plan.load")
    plan.restart()
    plan.pass_s(1)
    plan.event("f")
    assert launched(plan) == ["a-poison"]
    assert plan.verdicts()[-1] == "waiting"


def test_jobs_of_a_schedule_that_could_only_be_paused_are_not_launched(plant, monkeypatch) -> None:
    plan = PlannerHarness()
    later = [{"kind": "delay", "delay": "60s"}]
    plan.put("a-poison", EVENT, constraints=later, overlap="allow_all")
    plan.event("e")

    def stop(*_):
        raise RuntimeError("cannot be stopped")

    monkeypatch.setattr(plan.planner._defects, "_stop", stop)
    plant("plan.happened")
    plan.event("e")
    assert plan.planner.state.entries["a-poison"].paused
    plan.pass_s(300)
    assert launched(plan) == []


def test_a_defect_in_counting_anew_by_another_calendar_sets_that_schedule_aside(plant) -> None:
    plan = PlannerHarness()
    put_all(plan, EVERY_MINUTE | {"calendar": "de"}, overlap="allow_all")
    plant("plan.begin")
    assert plan.ask("calendar", name="de", days=["2026-04-01"])[0] == "ok"
    plan.pass_s(60)
    only_the_poison_is_aside(plan)
    assert launched(plan) == ["a-fine-one", "z-fine"]


def test_a_defect_in_what_a_schedule_watches_sets_it_aside(plant) -> None:
    plan = PlannerHarness()
    put_all(plan, TABLE)
    plant("plan.watch")
    places = [*plan.planner.watched()]
    plan.turn()
    only_the_poison_is_aside(plan)
    assert [place.name for place in places] == ["a-fine-one", "z-fine"]
    for place in places:
        plan.planner.tables.begins(place, "id", 0)
        plan.planner.tables.grew(place, Growth("id", 0, 1), plan.now)
    plan.turn()
    assert launched(plan) == ["a-fine-one", "z-fine"]


def test_a_command_that_meets_a_defect_is_refused_and_others_are_obeyed(plant) -> None:
    plan = PlannerHarness()
    plant("plan.begin")
    assert plan.put("a-poison", EVERY_MINUTE)[0] == "rejected"
    (met,) = plan.planner.take_defects()
    assert met.error.startswith("scylla_spark.failpoint.InjectedFault: ")
    assert "Traceback" in met.stack
    assert plan.put("a-poison", EVERY_MINUTE)[0] == "ok"
    assert not plan.planner.take_defects()


def test_a_record_that_the_reader_of_commands_fails_at_is_a_defect_too(monkeypatch) -> None:
    plan = PlannerHarness()
    monkeypatch.setattr(plan_command, "_read", lambda _: 1 / 0)
    plan.raw(b"{}")
    assert [one[2] for one in plan.refused] == ["defect"]
    (met,) = plan.planner.take_defects()
    assert met.error == "ZeroDivisionError: division by zero"


def test_a_rule_that_is_set_aside_for_a_defect_is_told_as_one(monkeypatch) -> None:
    plan = PlannerHarness()
    rule = {"name": "mine", "when": ["failed"], "channel": "ops"}
    plan.ask("put_rule", rules=[rule])
    gathering = plan.planner._noticing._gathering
    with gathering.guarded(gathering._rules.all()["mine"], plan.now):
        raise ZeroDivisionError("division by zero")
    plan.turn()
    assert [one.error for one in plan.planner.take_defects()] == ["ZeroDivisionError: division by zero"]


def test_a_defect_in_what_comes_after_an_end_sets_the_schedule_of_the_run_aside(monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    plan.put("next", {"kind": "after", "work": "z-fine", "on": ["succeeded"]}, handler="other")
    plan.event("e")
    told = plan.planner._ended._tell

    def tell(at, name, *more):
        return told(at, name, *more) if name != "a-poison" else 1 / 0

    monkeypatch.setattr(plan.planner._ended, "_tell", tell)
    for number in range(3):
        plan.end(number)
    assert [name for name, entry in plan.planner.state.entries.items() if entry.paused] == ["a-poison"]
    assert launched(plan)[3:] == ["next"]
    assert not plan.planner.state.entries["a-poison"].runs, "its run has ended all the same"


def test_a_schedule_that_cannot_even_be_stopped_is_paused(plant, monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    monkeypatch.setattr(plan.planner._launching, "drop_jobs", lambda *_: 1 / 0)
    plant("plan.happened")
    plan.event("e")
    only_the_poison_is_aside(plan)
    assert launched(plan) == ["a-fine-one", "z-fine"]
    plan.restart()
    assert plan.planner.state.entries["a-poison"].paused


def test_a_defect_in_a_rule_sets_no_schedule_of_its_name_aside(monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    rule = {"name": "z-fine", "when": ["absent"], "channel": "ops", "within": "60s", "schedules": ["a*"]}
    plan.ask("put_rule", rules=[rule])
    monkeypatch.setattr(plan.planner._noticing, "timer", lambda *_: 1 / 0)
    plan.pass_s(3_600)
    assert not any(entry.paused for entry in plan.planner.state.entries.values())


def test_the_reason_stands_in_the_note_with_where_it_was(plant) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    plant("plan.happened")
    plan.event("e")
    note = plan.planner.state.entries["a-poison"].note
    assert "telling.py" in note
    assert len(note) <= 2_000
    (met,) = plan.planner.take_defects()
    assert "InjectedFault" in met.stack
    assert not plan.planner.take_defects()


def test_what_was_set_aside_goes_on_when_it_is_resumed(plant) -> None:
    plan = PlannerHarness()
    put_all(plan, EVERY_MINUTE, overlap="allow_all")
    plant("plan.decide")
    plan.pass_s(60)
    plan.ask("resume", names=["a-poison"])
    plan.to(plan.now + 60 * SECOND)
    assert launched(plan).count("a-poison") == 1


# -- changes that belong together ----------------------------------------------------------------------------------------


def fails_at(kind: str):
    """A watcher that fails at the first change of a kind that is of `a-poison`."""
    left = [kind]

    def watch(change):
        if left and change[0] == kind and change[1] == "a-poison":
            raise RuntimeError(f"at {left.pop()}")

    return watch


def test_a_watcher_that_fails_at_a_launch_leaves_no_run_whose_task_is_not_sent() -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    plan.planner._journal.watchers.insert(0, fails_at("fire"))
    plan.event("e")
    assert launched(plan) == ["a-fine-one", "a-poison", "z-fine"]
    assert [name for name in NAMES if plan.planner.state.entries[name].paused] == ["a-poison"]


def test_a_watcher_that_fails_at_the_row_that_closes_a_launch_leaves_no_run_that_never_ends() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    plan.put("a-poison", EVERY_MINUTE)
    plan.pass_s(51)
    plan.put("a-poison", {"kind": "cron", "expression": "0 * * * *"})
    plan.planner._journal.watchers.insert(0, fails_at("fire"))
    plan.unrun()
    assert not plan.planner.state.entries["a-poison"].runs
    assert plan.verdicts() == ["launched", "obsolete"]


def test_a_watcher_that_fails_keeps_no_other_from_knowing_of_the_change() -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    plan.put("other", {"kind": "event", "name": "f"}, constraints=ONE)
    plan.planner._journal.watchers.insert(0, fails_at("fire"))
    plan.event("e")
    for number in (0, 2):
        plan.end(number)
    plan.event("f")
    assert plan.verdicts("other") == ["waiting"], "the run of a-poison counts for its handler"


@pytest.mark.parametrize("what", ["time", "command"])
def test_a_change_that_is_made_by_halves_ends_the_planner_and_the_next_one_goes_on_from_the_log(
    monkeypatch, what
) -> None:
    plan = PlannerHarness()
    put_all(plan, EVERY_MINUTE)
    plan.pass_s(50)
    monkeypatch.setitem(plan_state._WHOLE, "send", lambda state, change: 1 / 0)
    with pytest.raises(StateInDoubt):
        plan.ask("run", name="z-fine") if what == "command" else plan.pass_s(20)
    monkeypatch.undo()
    plan.restart()
    plan.pass_s(20)
    assert launched(plan) == [*NAMES]
    assert not any(entry.paused for entry in plan.planner.state.entries.values())


# -- what brings the state in doubt each time ------------------------------------------------------------------------------


def goes_on(plan: PlannerHarness, step, most: int = 9) -> list[float]:
    """Takes a step as the service does: after a doubt another planner begins from the log, and takes it again; how long each waited, s."""
    waits: list[float] = []
    while len(waits) < most:
        try:
            step()
            return waits
        except StateInDoubt as doubt:
            waits.append(plan.doubts.note(doubt))
        while len(waits) < most:
            try:
                plan.restart(after_us=SECOND)
                break
            except StateInDoubt as doubt:
                waits.append(plan.doubts.note(doubt))
    return waits


def breaks(monkeypatch, kind: str, concerns) -> None:
    """Changes of a kind that are of somebody cannot be made, whoever makes them and however often."""
    for changes in (plan_state._WHOLE, plan_state._OF_ENTRY):
        if kind in changes:
            made = changes[kind]

            def fails(*args, made=made):
                return 1 / 0 if concerns(args[-1]) else made(*args)

            monkeypatch.setitem(changes, kind, fails)


def is_launch_of(name: str):
    return lambda change: change[1] == name and change[2]["verdict"] == "launched"


def paused(plan: PlannerHarness) -> list[str]:
    return [name for name, entry in plan.planner.state.entries.items() if entry.paused]


def test_a_schedule_whose_step_brings_the_state_in_doubt_is_paused_and_all_others_go_on(monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVERY_MINUTE, overlap="allow_all")
    breaks(monkeypatch, "fire", is_launch_of("a-poison"))
    assert goes_on(plan, lambda: plan.pass_s(70)) == [1]
    assert goes_on(plan, lambda: plan.pass_s(120)) == []
    assert paused(plan) == ["a-poison"]
    note = plan.planner.state.entries["a-poison"].note
    assert note.startswith("paused for a defect of the planner: ZeroDivisionError: division by zero\n")
    assert launched(plan).count("z-fine") == launched(plan).count("a-fine-one") >= 3


def test_a_schedule_that_is_told_of_an_event_is_set_aside_and_the_event_is_told_to_others(monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    breaks(monkeypatch, "fire", is_launch_of("a-poison"))
    assert goes_on(plan, lambda: plan.event("e")) == [1]
    assert paused(plan) == ["a-poison"]
    assert launched(plan) == ["a-fine-one", "z-fine"]
    assert not plan.refused


def test_a_command_that_brings_the_state_in_doubt_is_refused_as_a_defect(monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVERY_MINUTE)
    breaks(monkeypatch, "put", lambda change: change[1] == "b-poison")
    assert goes_on(plan, lambda: plan.put("b-poison", EVERY_MINUTE)) == [1]
    code, message, *_ = list(plan.answers.values())[-1]
    assert (code, "Traceback" in message, "defect" in message) == ("rejected", False, True)
    assert [one[2] for one in plan.refused] == ["defect"]
    assert "ZeroDivisionError" in plan.refused[0][3]
    assert plan.put("other", EVERY_MINUTE)[0] == "ok"
    assert not paused(plan)
    plan.restart()
    assert not plan.doubts.inputs, "the log is past it"


@pytest.mark.slow
def test_a_command_that_was_half_done_says_that_what_was_done_stands(monkeypatch) -> None:
    plan = PlannerHarness()
    names = [f"s{number:03}" for number in range(900)]
    plan.ask("put", schedules=[{"name": name, "handler": "work", "trigger": EVENT} for name in names])
    breaks(monkeypatch, "set", lambda change: change[1] == "s899")

    def pause() -> None:
        try:
            plan.ask("pause", names=names, note="n" * 400)
        except StateInDoubt:
            for group in plan.planner._groups._groups:
                plan.log.append(plan_log.encode(group))
                plan.shadow.fold(plan_log.decode(plan.log[-1]))
            raise

    assert goes_on(plan, pause) == [1]
    assert 0 < len(paused(plan)) < 900
    assert list(plan.answers.values())[-1][2] == "What was done of it before that stands."


@pytest.mark.parametrize("only", [False, True])
def test_a_fact_that_brings_the_state_in_doubt_stops_no_other(monkeypatch, only) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT, lateAfter="1s", constraints=ONE)
    for name in NAMES[:2]:
        plan.ask("run", name=name)
    plan.event("e")
    breaks(monkeypatch, "fire", lambda change: change[1] == "a-poison" and change[2]["verdict"] == "late")
    if only:
        breaks(monkeypatch, "end", lambda change: change[1] == "a-poison")
    late = [Fact(key_of(one), 1, "succeeded", plan.now + 5 * SECOND, plan.now + 6 * SECOND) for one in plan.sent]

    def ends() -> None:
        facts = plan._facts
        try:
            plan.ends(*late)
        except StateInDoubt:
            plan._facts = facts
            raise

    assert goes_on(plan, ends) == ([1, 1, 1] if only else [1, 1])
    assert paused(plan) == ["a-poison"]
    entries = plan.planner.state.entries
    assert bool(entries["a-poison"].runs) is only
    assert plan.verdicts("a-fine-one")[-1] in ("late", "launched")


def test_a_timer_of_a_paused_schedule_that_brings_the_state_in_doubt_is_passed_over(monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT, endWithin="60s")
    plan.event("e")
    breaks(monkeypatch, "fire", lambda change: change[1] == "a-poison" and change[2]["verdict"] == "overdue")
    assert goes_on(plan, lambda: plan.pass_s(70)) == [1, 1]
    assert paused(plan) == ["a-poison"]
    assert [one["name"] for one in plan.fires if one["verdict"] == "overdue"] == ["a-fine-one", "z-fine"]


def test_a_schedule_that_cannot_be_stopped_without_a_doubt_is_only_paused(monkeypatch) -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    put_all(plan, {"kind": "every", "period": "6s"}, overlap="allow_all")
    breaks(monkeypatch, "cancelled", lambda change: change[1] == "a-poison")
    breaks(
        monkeypatch,
        "fire",
        lambda change: is_launch_of("a-poison")(change) and change[2]["planned_us"] > plan.now + 9 * SECOND,
    )
    assert goes_on(plan, lambda: plan.pass_s(10)) == [1, 1]
    assert paused(plan) == ["a-poison"]
    assert not plan.cancelled
    assert goes_on(plan, lambda: plan.pass_s(20)) == []


def test_what_cannot_be_set_aside_is_tried_again_ever_later(monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVERY_MINUTE)
    breaks(monkeypatch, "fire", is_launch_of("a-poison"))
    breaks(monkeypatch, "set", lambda change: change[1] == "a-poison")
    assert goes_on(plan, lambda: plan.pass_s(70), most=11) == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    monkeypatch.undo()
    assert goes_on(plan, lambda: plan.pass_s(70)) == []
    plan.restart()


def test_a_schedule_that_is_resumed_and_brings_the_state_in_doubt_again_is_paused_again(monkeypatch) -> None:
    plan = PlannerHarness()
    put_all(plan, EVENT)
    breaks(monkeypatch, "fire", is_launch_of("a-poison"))
    for _ in range(3):
        assert goes_on(plan, lambda: plan.event("e")) == [1]
        assert paused(plan) == ["a-poison"]
        plan.ask("resume", names=["a-poison"])
