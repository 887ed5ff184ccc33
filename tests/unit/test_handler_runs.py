"""Runs of a handler or a tag are counted without a look at each, and the count is that of a look at each."""

import random

from scylla_spark.core.plan.handler_runs import BACKFILL, HandlerRuns, of_handler, of_tag
from scylla_spark.core.plan.state.plan_log import RUN_ENDED, RUNS_OF
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.tasks.key import TaskKey


def looked_at_each(keys: set[TaskKey], now: int) -> int:
    due = [key.ordering_id for key in keys if key.time_us <= now]
    lanes = [lane for lane in due if lane.startswith(BACKFILL)]
    return len(due) - len(lanes) + len(set(lanes))


def test_the_count_is_that_of_a_look_at_each_whatever_begins_and_ends() -> None:
    chance = random.Random(1)
    journal = Journal(PlanState(entries={"a": Entry("a", "{}", keys=("tag:t",), handler="h")}))
    runs, open_keys, number = HandlerRuns(journal), set(), 0
    for now in range(2_000):
        if chance.random() < 0.6:
            number += 1
            lane = chance.choice(("", f"{BACKFILL}a/1/0", f"{BACKFILL}a/1/1"))
            key = TaskKey(now + chance.randrange(-5, 20), lane, f"a/x/{number}")
            fire = {"verdict": "launched", "generation": number, "planned_us": now, "at_us": now, "key": key}
            journal.note("fire", "a", {"revision": 1, "why": "", **fire})
            open_keys.add(key)
        elif open_keys:
            key = chance.choice(sorted(open_keys))
            open_keys.discard(key)
            journal.note("end", "a", int(key.uniqueness_key.split("/")[2]), "succeeded", 0, now, key)
            assert journal.state.successes.get("h", 0) == now
        if chance.random() < 0.5:
            for group in (of_handler("h"), of_tag("t")):
                assert runs.active(group, now) == looked_at_each(open_keys, now)
    assert runs.active(of_handler("other"), 2_000) == 0


def test_runs_that_nobody_counts_are_let_go_of_when_they_end() -> None:
    journal = Journal(PlanState(entries={"a": Entry("a", "{}", keys=("tag:t",), handler="h")}))
    runs = HandlerRuns(journal)
    for number in range(2_000):
        key = TaskKey(number, "", f"a/x/{number}")
        fire = {"verdict": "launched", "generation": number, "planned_us": number, "at_us": number, "key": key}
        journal.note("fire", "a", {"revision": 1, "why": "", **fire})
        if number >= 5:
            journal.note("end", "a", number - 5, "succeeded", 0, number, TaskKey(number - 5, "", f"a/x/{number - 5}"))
    assert len(runs._active[of_handler("h")]._ahead) < 200
    assert runs.active(of_handler("h"), 2_000) == 5


def test_a_run_that_outlives_its_schedule_counts_until_it_ends() -> None:
    key = TaskKey(5, "", "a/x/1")
    state = PlanState()
    state.apply((RUNS_OF, "h", [key], ["t"]))
    journal = Journal(state)
    runs = HandlerRuns(journal)
    for group in (of_handler("h"), of_tag("t")):
        assert [runs.active(group, now) for now in (4, 5)] == [0, 1]
    journal.conclude(RUN_ENDED, key)
    assert [runs.active(group, 6) for group in (of_handler("h"), of_tag("t"))] == [0, 0]


def test_timers_that_are_the_same_go_off_once() -> None:
    timers = Timers()
    for _ in range(3):
        timers.add(Timer(5, "a", "again", 1))
    timers.add(Timer(5, "a", "again", 2))
    found = [timers.pop_due(5) for _ in range(3)]
    assert [one.number if one else None for one in found] == [1, 2, None]
    timers.add(Timer(5, "a", "again", 1))
    assert timers.next_us == 5
