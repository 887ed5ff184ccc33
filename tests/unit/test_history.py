"""The judge of run logs: a clean history passes every check, and each check finds the one breach it is made for."""

import pytest

from scylla_spark.core.records.fact import TOO_LATE, Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import CANCELLED, EXPIRED, FAILED, STARTED, SUCCEEDED, Failure
from scylla_spark.testing import history, judge, measures
from scylla_spark.testing.history import NEVER, Cancel, Enqueue, Fault, History, Recorded, Run


def key(time_us, lane="a", unique="u"):
    return TaskKey(time_us, lane, unique)


def run(time_us, start, end=NEVER, *, lane="a", attempt=1, epoch=1, ok=True):
    return Run(key(time_us, lane), attempt, epoch, start, end, ok)


CLEAN = [
    run(100, 100, 150, attempt=1, ok=False),
    run(100, 160, 180, attempt=2),
    run(110, 180, 200),
    run(100, 105, 300, lane="b"),
]
ENDED = {key(100): 180, key(110): 200, key(100, "b"): 300}


@pytest.mark.parametrize("check", [judge.early, judge.overlapping, judge.disordered, judge.misnumbered, judge.doubled])
def test_a_clean_history_breaks_nothing(check):
    assert check(CLEAN) == []
    assert check([]) == []


def test_a_clean_history_is_complete_and_ends():
    assert judge.revived(CLEAN, ENDED) == []
    assert judge.lost(ENDED, ENDED) == []


def test_a_start_before_the_scheduled_time_is_early():
    assert len(judge.early([*CLEAN, run(900, 899, 910)])) == 1


def test_a_start_before_the_wait_between_two_attempts_is_over_is_early():
    assert judge.early(CLEAN, {(key(100), 2): 160}) == []
    assert len(judge.early(CLEAN, {(key(100), 2): 161})) == 1


def test_tasks_of_one_call_of_a_batch_handler_do_not_overlap_and_of_two_they_do():
    first = run(1, 10, 20)._replace(call="x")
    together, apart = run(2, 10, 20)._replace(call="x"), run(2, 10, 20)._replace(call="y")
    assert judge.overlapping([first, together]) == []
    assert len(judge.overlapping([first, apart])) == 1
    assert len(judge.overlapping([first, together._replace(start=11)])) == 1, (
        "a call begins for all of its tasks at once"
    )
    assert len(judge.overlapping([run(1, 10, 20), run(2, 10, 20)])) == 1


def test_what_stands_twice_is_repeated():
    assert judge.repeated([key(1), key(2)], "it stands") == []
    assert judge.repeated([key(1), key(2), key(1)], "it stands") == [judge.Breach(key(1), "it stands 2 times")]


def test_two_runs_of_a_lane_at_one_time_overlap():
    assert len(judge.overlapping([*CLEAN, run(120, 199, 220)])) == 1


def test_a_run_that_starts_within_a_long_one_overlaps_even_after_a_short_one():
    assert len(judge.overlapping([run(1, 10, 100), run(2, 20, 30), run(3, 40, 50)])) == 2


def test_a_run_that_never_ended_overlaps_with_all_that_follow():
    assert len(judge.overlapping([run(1, 10), run(2, 20, 30)])) == 1


def test_an_earlier_key_after_a_later_one_is_disorder():
    assert len(judge.disordered([*CLEAN, run(105, 210, 220)])) == 1


@pytest.mark.parametrize(
    ("attempt", "epoch", "why"),
    [(4, 1, "skips a number"), (2, 1, "the same token twice"), (1, 2, "falls back by more than the one that died")],
)
def test_attempt_numbers_must_go_on(attempt, epoch, why):
    assert len(judge.misnumbered([*CLEAN, run(100, 170, 175, attempt=attempt, epoch=epoch)])) == 1, why


def test_a_first_attempt_must_have_number_one():
    assert len(judge.misnumbered([run(1, 10, 20, attempt=2)])) == 1


def test_a_number_may_be_skipped_if_its_attempt_was_begun_and_never_ran():
    second = run(1, 10, 20, attempt=2)
    begun = Recorded(Fact(second.key, 1, STARTED), 1)
    assert judge.misnumbered([second], [begun]) == []
    assert len(judge.misnumbered([second._replace(attempt=3)], [begun])) == 1


def test_a_number_may_be_skipped_if_its_attempt_was_lost_with_its_spark_worker():
    second = run(1, 10, 20, attempt=2)
    lost = Recorded(Fact(second.key, 1, FAILED, failure=Failure("executor_lost", "")), 1)
    assert judge.misnumbered([second], [lost]) == []


def test_an_attempt_that_died_lends_its_number_to_another_epoch():
    assert judge.misnumbered([run(1, 10, 20, epoch=1, ok=None), run(1, 30, 40, epoch=2)]) == []


def test_a_second_success_is_doubled():
    assert len(judge.doubled([*CLEAN, run(110, 400, 410, epoch=2)])) == 1


def test_a_run_after_the_completion_is_revived():
    assert len(judge.revived([*CLEAN, run(110, 400, 410, epoch=2)], ENDED)) == 1


def test_a_key_without_completion_is_lost():
    assert len(judge.lost([*ENDED, key(999)], ENDED)) == 1


def test_peak_counts_what_runs_at_one_time():
    assert measures.peak([run(1, 10, 20), run(1, 20, 30, lane="b")]) == 1
    assert measures.peak([run(1, 10, 21), run(1, 20, 30, lane="b")]) == 2


def test_lines_become_runs_and_a_death_ends_those_without_end():
    def line(event, at, pid, **more):
        return {"event": event, "key": [1, "a", "u"], "attempt": 1, "epoch": pid, "pid": pid, "at": at, **more}

    lines = [line("start", 10, 7, mark="old"), line("start", 50, 8, mark="new"), line("end", 60, 8, ok=True)]
    assert history.runs(lines, deaths=[5, 40]) == [
        Run(key(1), 1, 7, 10, 40, None, "old"),
        Run(key(1), 1, 8, 50, 60, True, "new"),
    ]
    assert history.runs(lines)[0].end == NEVER


# -- the judge of whole histories ---------------------------------------------------------------------------------------------


def sent(time_us, at=50, outcome="ok", *, lane="a", attempts=NEVER, asked=None):
    return Enqueue(key(time_us, lane), outcome, at - 10 if asked is None else asked, at, attempts)


def recorded(time_us, outcome=SUCCEEDED, attempt=1, finished=150, *, lane="a", epoch=1, next_us=None, started=100):
    return Recorded(Fact(key(time_us, lane), attempt, outcome, started, finished, next_us=next_us), epoch)


WHOLE = History(
    enqueues=[
        sent(100), sent(110), sent(120), sent(130, attempts=2), sent(140, at=60, outcome="unknown"), sent(150, outcome="failed"),
        sent(100, lane="b"),
    ],
    cancels=[Cancel(key(120), CANCELLED, 60, 70), Cancel(key(110), "too_late", 185, 190)],
    runs=[
        run(100, 100, 150, attempt=1, ok=False),
        run(100, 160, 180, attempt=2),
        run(110, 180, 200),
        run(130, 210, 220, ok=False),
        run(130, 230, 240, ok=False, attempt=2),
        run(100, 105, 300, lane="b", ok=None)._replace(driver=7),
        run(100, 400, 410, lane="b", epoch=2)._replace(driver=8),
    ],
    faults=[Fault("kill", 300, 300, driver=7)],
    recorded=[
        recorded(120, CANCELLED, 0, 69, started=0),
        recorded(100, FAILED, 1, 150, next_us=160),
        recorded(100, SUCCEEDED, 2, 180),
        recorded(110, TOO_LATE, 1, 0),
        recorded(110, SUCCEEDED, 1, 200),
        recorded(130, STARTED, 1, 0),
        recorded(130, FAILED, 1, 220, next_us=230),
        recorded(130, FAILED, 2, 240),
        recorded(100, SUCCEEDED, 1, 410, lane="b", epoch=2),
    ],
)  # fmt: skip


def breached(whole):
    """Which promises a history breaks."""
    return {name for name, breaches in judge.judge(whole).items() if breaches}


def with_run(*more):
    return WHOLE._replace(runs=[*WHOLE.runs, *more])


def with_facts(*more):
    return WHOLE._replace(recorded=[*WHOLE.recorded, *more])


def test_a_history_with_a_kill_a_cancel_a_retry_and_an_exhausted_task_breaks_nothing():
    assert breached(WHOLE) == set()
    assert [first.end for first, _ in judge.reruns(WHOLE.runs)] == [300], "the killed run was repeated"
    assert breached(History()) == set()


@pytest.mark.parametrize(
    ("bad", "promise"),
    [
        (WHOLE._replace(enqueues=[*WHOLE.enqueues, sent(160)]), {"lost", "unrecorded"}),
        (WHOLE._replace(runs=[r for r in WHOLE.runs if r.key != key(110)]), {"lost", "verdicts"}),
        (WHOLE._replace(recorded=WHOLE.recorded[:-1]), {"unrecorded"}),
        (with_run(run(150, 500, 510)), {"unasked"}),
        (WHOLE._replace(enqueues=[e for e in WHOLE.enqueues if e.key != key(110)]), {"unasked"}),
        (WHOLE._replace(enqueues=[*WHOLE.enqueues, sent(900)], runs=[*WHOLE.runs, run(900, 899, 910)],
                        recorded=[*WHOLE.recorded, recorded(900, finished=910)]), {"early"}),
        (WHOLE._replace(recorded=[*WHOLE.recorded[:6], recorded(130, FAILED, 1, 220, next_us=231), *WHOLE.recorded[7:]]), {"early"}),
        (with_run(run(110, 500, 510, epoch=2)), {"after completion", "unexplained reruns"}),
        (with_run(run(120, 500, 510)), {"after completion", "after cancel"}),
        (with_run(run(140, 195, 199)), {"overlap"}),
        (with_facts(recorded(140, started=0)), {"verdicts"}),
        (with_facts(recorded(140, CANCELLED, 0, 70, started=0)), {"verdicts"}),
        (with_facts(recorded(140, FAILED, 1, 70)), {"verdicts"}),
        (WHOLE._replace(faults=[]), {"unexplained reruns"}),
        (WHOLE._replace(faults=[Fault("kill", 300, 300, driver=8)]), {"unexplained reruns"}),
        (WHOLE._replace(faults=[Fault("kill", 401, 401, driver=7)]), {"unexplained reruns"}),
        (with_facts(recorded(110, FAILED, 2, 300, next_us=310)), {"facts"}),
        (with_facts(recorded(140, FAILED, 1, 70, next_us=80), recorded(140, FAILED, 1, 90, next_us=99)), {"facts"}),
        (with_facts(recorded(140, STARTED, 2, 70), recorded(140, STARTED, 1, 90)), {"facts"}),
        (WHOLE._replace(cancels=[Cancel(key(110), CANCELLED, 205, 210), *WHOLE.cancels]), {"after cancel"}),
    ],
)  # fmt: skip
def test_a_bad_history_breaks_just_the_promise_it_is_made_for(bad, promise):
    assert breached(bad) == promise


def test_an_unknown_enqueue_may_run_or_not():
    ran = with_run(run(140, 250, 260))._replace(recorded=[*WHOLE.recorded, recorded(140, finished=260)])
    assert breached(ran) == set()


def test_a_key_that_was_acknowledged_before_a_later_one_was_sent_must_not_run_after_it():
    later, earlier = run(20, 30, 40), run(10, 50, 60)
    in_order = [sent(10, at=5), sent(20, at=8, asked=6)]
    assert len(judge.overtaken([later, earlier], in_order)) == 1
    assert judge.overtaken([later, earlier], [sent(10, at=7), sent(20, at=8, asked=6)]) == [], "sent at one time"
    assert judge.overtaken([later, earlier], [*in_order, sent(10, at=45)]) == [], "sent twice: no place in the order"
    assert judge.overtaken([later, earlier], [sent(10, at=5, outcome="unknown"), in_order[1]]) == []
    between = run(15, 42, 45)
    assert len(judge.overtaken([later, between, earlier], in_order)) == 1, "also when they are not neighbours"


def test_tasks_that_were_both_acknowledged_before_they_were_due_run_in_order_where_nothing_fails():
    later, earlier = run(20, 30, 40), run(10, 50, 60)
    at_once = [sent(10, at=7), sent(20, at=8, asked=6)]
    assert judge.overtaken([later, earlier], at_once) == []
    assert len(judge.overtaken([later, earlier], at_once, in_time=True)) == 1
    assert judge.overtaken([later, earlier], [sent(10, at=11), at_once[1]], in_time=True) == [], "it came too late"


def test_what_a_frozen_owner_had_begun_may_overlap_with_the_new_owners_run_and_nothing_more():
    old, new = run(10, 100, 900, ok=None)._replace(driver=7), run(10, 500, 600, epoch=2)._replace(driver=8)
    whole = History(
        enqueues=[sent(10)],
        runs=[old, new],
        recorded=[recorded(10, finished=600, epoch=2)],
        faults=[Fault("freeze", 200, 1_500, driver=7)],
    )
    assert breached(whole) == set()
    assert breached(whole._replace(faults=[Fault("freeze", 200, 1_500, driver=9)])) == {"overlap", "unexplained reruns"}
    assert breached(whole._replace(faults=[Fault("freeze", 501, 1_500, driver=7)])) == {"overlap", "unexplained reruns"}
    begun = old._replace(start=700)
    assert "after completion" in breached(whole._replace(runs=[new, begun])), "a frozen owner starts nothing"


def test_lines_become_enqueues_and_cancels():
    lines = [
        {"event": "enqueue", "key": [1, "a", "u"], "outcome": "ok", "asked": 2, "at": 3, "attempts": 4},
        {"event": "cancel", "key": [1, "a", "u"], "answer": "cancelled", "asked": 5, "at": 6},
    ]
    assert history.enqueues(lines) == [Enqueue(key(1), "ok", 2, 3, 4)]
    assert history.cancels(lines) == [Cancel(key(1), CANCELLED, 5, 6)]


def test_a_run_that_a_process_repeats_under_the_same_number_is_seen():
    line = {"key": [1, "a", "u"], "attempt": 1, "epoch": 1, "pid": 7}
    twice = [line | {"event": event, "at": at, "ok": True} for at, event in enumerate(["start", "end"] * 2)]
    assert len(judge.misnumbered(history.runs(twice))) == 1


def test_only_the_killed_driver_ends_its_runs():
    line = {"event": "start", "key": [1, "a", "u"], "attempt": 1, "epoch": 1}
    lines = [line | {"pid": 7, "driver": 7, "at": 10}, line | {"pid": 8, "driver": 8, "at": 11}]
    assert [r.end for r in history.runs(lines, killed={7: 20})] == [20, NEVER]


def test_lateness_counts_from_the_time_or_the_acknowledgement():
    whole = History(enqueues=[sent(100, at=50), sent(110, at=130)], runs=[run(100, 107), run(110, 132)])
    assert measures.lateness(whole) == [2, 7]


def test_a_task_may_expire_once_it_should_and_does_not_begin_after_that():
    expiring = Enqueue(key(100), "ok", 10, 20, NEVER, 140)
    late = Run(key(100), 1, 1, 150, 160, True)
    ended = recorded(100, EXPIRED, 0, 140, started=0)

    def breaches(*runs, facts):
        return [name for name, found in judge.judge(History([expiring], (), runs, (), facts)).items() if found]

    assert breaches(facts=[ended]) == []
    assert breaches(facts=[recorded(100, EXPIRED, 0, 139, started=0)]) == ["verdicts"]
    assert breaches(late, facts=[recorded(100, SUCCEEDED, 1, 160)]) == ["expired"]
    assert breaches(late._replace(start=139), facts=[recorded(100, SUCCEEDED, 1, 160)]) == []
