"""The demo's checks: a good history passes all, and for each check there is a bad history that it catches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import CANCELLED, FAILED, SUCCEEDED
from scylla_spark.testing.history import Run
from scylla_spark_tools.demo import check, schedules
from scylla_spark_tools.demo.evidence import Completion, History, Reject, ScheduledRun, Wait, Want, visits

MS = 1_000
START = 1_800_000_000_000_000
LANES = check.LEAST_MEASURED // 2
ON_SPARK = range(100, 100 + check.LEAST_ON_SPARK // 2)
ODD = {"colour": "blue"}
INTENDED = schedules.intended(START)


def key(lane: int, number: int) -> TaskKey:
    return TaskKey(START + number * 1_000 * MS, f"lane-{lane}", f"t{number}")


FLAKY, DOOMED, CANCELLED_KEY, ODD_KEY = key(0, 0), key(1, 0), key(2, 1), key(3, 1)
PLAIN, NEXT = key(4, 0), key(4, 1)


def ran(task: TaskKey, attempt: int = 1, *, at: int = 5 * MS, takes: int = 10 * MS, delivered: bool = True) -> Run:
    return Run(task, attempt, 0, task.time_us + at, task.time_us + at + takes, delivered, "v1")


def good_history() -> History:
    """Lanes of three tasks a second apart; one fails first, one fails for good, one is cancelled, one has unknown fields.

    The schedules ran beside them: each second, for two ranges of versions, and for a time and a range.
    """
    wanted = {
        key(lane, number): Want(START - 1, value="v1", on_spark=lane in ON_SPARK)
        for lane in range(LANES)
        for number in range(3)
    }
    history = History(wanted, INTENDED, runs=good_runs())
    history.wanted[FLAKY] = Want(START - 1, attempts=2, value="v1")
    history.wanted[DOOMED] = Want(START - 1, FAILED, attempts=2)
    history.wanted[CANCELLED_KEY] = Want(START - 1, CANCELLED, attempts=0, reported=False)
    history.wanted[ODD_KEY] = Want(START - 1, value="v1", extra=ODD)
    for task, want in history.wanted.items():
        if want.attempts == 2:
            history.visits.append(ran(task, delivered=False))
            history.visits.append(ran(task, 2, at=200 * MS, delivered=want.outcome == SUCCEEDED))
            history.waits.append(Wait(task, 1, task.time_us + 150 * MS))
        elif want.attempts == 1:
            history.visits.append(ran(task))
        history.completions.append(Completion(task, want.outcome, want.attempts, task.time_us + 250 * MS))
        history.stored.append((task, want.extra or {}))
    history.refused = {(3, 17): ("not_json", "not JSON"), (3, 18): ("too_late", "due a minute ago")}
    history.rejects = [Reject(3, 17, "not_json"), Reject(3, 18, "too_late")]
    return history


def good_runs() -> list[ScheduledRun]:
    runs = [ScheduledRun(schedules.EACH_SECOND, at) for at in INTENDED.seconds]
    grown = [ScheduledRun(schedules.GROWTH, START + n, versions=(n, n + 2 - n // 2)) for n in (0, 2)]
    either = [
        ScheduledRun(schedules.EITHER, INTENDED.moment_us),
        ScheduledRun(schedules.EITHER, START, versions=(0, 3)),
    ]
    return runs + grown + either


def without(history: History, task: TaskKey) -> None:
    history.visits = [visit for visit in history.visits if visit.key != task]


def change(history: History, task: TaskKey, **changes: object) -> None:
    """Replaces fields of the task's only visit."""
    (old,) = [visit for visit in history.visits if visit.key == task]
    without(history, task)
    history.visits.append(old._replace(**changes))


def ended(history: History, task: TaskKey, **changes: object) -> None:
    history.completions = [one._replace(**changes) if one.key == task else one for one in history.completions]


def loses_a_completion(history: History) -> None:
    history.completions = [one for one in history.completions if one.key != PLAIN]


def completes_twice(history: History) -> None:
    history.completions.append(Completion(PLAIN, SUCCEEDED, 2, START + 900 * MS))


def delivers_twice(history: History) -> None:
    history.visits.append(ran(PLAIN, 2, at=300 * MS))


def runs_one_attempt_in_two_places(history: History) -> None:
    history.visits.append(ran(PLAIN, 1, at=300 * MS))


def stores_two_rows(history: History) -> None:
    history.stored.append((PLAIN, {}))


def runs_what_was_rejected(history: History) -> None:
    history.visits.append(ran(TaskKey(START, "bad", "u")))


def completes_what_was_rejected(history: History) -> None:
    history.completions.append(Completion(TaskKey(START, "bad", "u"), FAILED, 1, START))


def runs_the_second_before_the_first(history: History) -> None:
    change(history, PLAIN, start=NEXT.time_us + 50 * MS, end=NEXT.time_us + 60 * MS)


def runs_the_next_while_the_head_waits_for_its_retry(history: History) -> None:
    follower = TaskKey(FLAKY.time_us + 1, FLAKY.ordering_id, "follower")
    history.wanted[follower] = Want(START - 1, value="v1")
    history.completions.append(Completion(follower, SUCCEEDED, 1, follower.time_us + 200 * MS))
    history.stored.append((follower, {}))
    history.visits.append(ran(follower, at=100 * MS))


def begins_before_the_other_has_ended(history: History) -> None:
    change(history, PLAIN, end=NEXT.time_us + 6 * MS)


def leaves_a_killed_attempt_running(history: History) -> None:
    first, second = (visit for visit in history.visits if visit.key == FLAKY)
    without(history, FLAKY)
    history.visits += [first._replace(end=second.end + MS), second]


def overlaps_with_one_before_the_last(history: History) -> None:
    change(history, key(4, 0), end=key(4, 2).time_us + 6 * MS)


def starts_a_microsecond_early(history: History) -> None:
    change(history, PLAIN, start=PLAIN.time_us - 1)


def retries_before_the_wait_is_over(history: History) -> None:
    history.waits = [wait._replace(next_us=wait.key.time_us + 201 * MS) for wait in history.waits]


def fails_what_should_succeed(history: History) -> None:
    ended(history, PLAIN, outcome=FAILED)
    change(history, PLAIN, ok=False)


def gives_up_after_one_attempt(history: History) -> None:
    ended(history, DOOMED, attempt=1)
    history.visits = [visit for visit in history.visits if (visit.key, visit.attempt) != (DOOMED, 2)]


def hides_an_attempt(history: History) -> None:
    history.visits.append(ran(DOOMED, 3, at=400 * MS, delivered=False))


def claims_success_without_delivery(history: History) -> None:
    change(history, PLAIN, ok=False)


def says_failed_though_it_delivered(history: History) -> None:
    history.visits = [
        visit._replace(ok=visit.attempt == 2) if visit.key == DOOMED else visit for visit in history.visits
    ]


def delivers_the_old_payload(history: History) -> None:
    change(history, PLAIN, mark="v0")


def runs_a_cancelled_task(history: History) -> None:
    history.visits.append(ran(CANCELLED_KEY, delivered=False))


def accepts_a_bad_record(history: History) -> None:
    history.rejects.pop()


def refuses_for_the_wrong_reason(history: History) -> None:
    history.rejects[0] = Reject(3, 17, "too_late")


def refuses_a_good_record(history: History) -> None:
    history.rejects.append(Reject(1, 4, "not_json"))


def writes_a_reject_twice(history: History) -> None:
    history.rejects.append(history.rejects[0])


def drops_unknown_fields(history: History) -> None:
    history.stored = [(task, {}) for task, _ in history.stored]


def never_stores_a_task(history: History) -> None:
    history.stored = [(task, extra) for task, extra in history.stored if task != PLAIN]


def is_late_now_and_then(history: History) -> None:
    slow = {key(lane, 0) for lane in range(10, 10 + LANES // 20)}
    history.visits = [
        visit._replace(start=visit.start + 300 * MS, end=visit.end + 300 * MS) if visit.key in slow else visit
        for visit in history.visits
    ]


def measures_nothing(history: History) -> None:
    late = START + 3_600_000 * MS
    history.wanted = {task: want._replace(acked_us=late) for task, want in history.wanted.items()}


def leaves_a_second_out(history: History) -> None:
    del history.runs[4]


def runs_a_second_twice(history: History) -> None:
    history.runs.append(history.runs[4])


def runs_a_second_too_many(history: History) -> None:
    history.runs.append(ScheduledRun(schedules.EACH_SECOND, INTENDED.seconds[-1] + 1_000 * MS))


def forgets_the_schedule_of_each_second(history: History) -> None:
    history.runs = [run for run in history.runs if run.schedule != schedules.EACH_SECOND]


def own(history: History, schedule: str, *ranges: tuple[int, int]) -> None:
    """Replaces the runs of a schedule that own versions."""
    history.runs = [run for run in history.runs if run.schedule != schedule or run.versions is None]
    history.runs += [ScheduledRun(schedule, START + n, versions=versions) for n, versions in enumerate(ranges)]


def leaves_a_version_between_two_runs(history: History) -> None:
    own(history, schedules.GROWTH, (0, 1), (2, 3))


def hands_a_version_to_two_runs(history: History) -> None:
    own(history, schedules.GROWTH, (0, 2), (1, 3))


def hands_a_range_to_two_runs(history: History) -> None:
    own(history, schedules.GROWTH, (0, 3), (0, 3))


def leaves_the_last_version_out(history: History) -> None:
    own(history, schedules.GROWTH, (0, 2))


def never_runs_for_the_table(history: History) -> None:
    own(history, schedules.GROWTH)


def owns_nothing_in_a_run(history: History) -> None:
    own(history, schedules.GROWTH, (0, 3), (3, 3))


def waits_for_the_table_alone(history: History) -> None:
    own(history, schedules.EITHER, (0, 3))
    history.runs.remove(ScheduledRun(schedules.EITHER, INTENDED.moment_us))


def waits_for_the_time_alone(history: History) -> None:
    own(history, schedules.EITHER)


def runs_for_the_time_twice(history: History) -> None:
    history.runs.append(ScheduledRun(schedules.EITHER, INTENDED.moment_us))


def fails_in_a_run_of_a_schedule(history: History) -> None:
    history.runs[4] = history.runs[4]._replace(outcome=FAILED)


BAD: list[tuple[Callable[[History], None], str]] = [
    (loses_a_completion, "lost"),
    (completes_twice, "doubled"),
    (delivers_twice, "doubled"),
    (runs_one_attempt_in_two_places, "doubled"),
    (stores_two_rows, "doubled"),
    (runs_what_was_rejected, "unknown"),
    (completes_what_was_rejected, "unknown"),
    (runs_the_second_before_the_first, "order"),
    (runs_the_next_while_the_head_waits_for_its_retry, "order"),
    (begins_before_the_other_has_ended, "overlap"),
    (leaves_a_killed_attempt_running, "overlap"),
    (overlaps_with_one_before_the_last, "overlap"),
    (starts_a_microsecond_early, "early"),
    (retries_before_the_wait_is_over, "early"),
    (fails_what_should_succeed, "outcome"),
    (gives_up_after_one_attempt, "outcome"),
    (hides_an_attempt, "outcome"),
    (claims_success_without_delivery, "outcome"),
    (says_failed_though_it_delivered, "outcome"),
    (delivers_the_old_payload, "payload"),
    (runs_a_cancelled_task, "cancelled"),
    (accepts_a_bad_record, "rejected"),
    (refuses_for_the_wrong_reason, "rejected"),
    (refuses_a_good_record, "rejected"),
    (writes_a_reject_twice, "rejected"),
    (drops_unknown_fields, "kept"),
    (never_stores_a_task, "kept"),
    (leaves_a_second_out, "seconds"),
    (runs_a_second_twice, "seconds"),
    (runs_a_second_too_many, "seconds"),
    (forgets_the_schedule_of_each_second, "seconds"),
    (leaves_a_version_between_two_runs, "versions"),
    (hands_a_version_to_two_runs, "versions"),
    (hands_a_range_to_two_runs, "versions"),
    (leaves_the_last_version_out, "versions"),
    (never_runs_for_the_table, "versions"),
    (owns_nothing_in_a_run, "versions"),
    (waits_for_the_table_alone, "either"),
    (waits_for_the_time_alone, "either"),
    (runs_for_the_time_twice, "either"),
    (fails_in_a_run_of_a_schedule, "schedules"),
    (is_late_now_and_then, "late"),
    (measures_nothing, "late"),
]


def findings(history: History) -> list[check.Finding]:
    return [finding for judge in check.CHECKS.values() for finding in judge(history)]


def test_a_good_history_has_no_findings() -> None:
    assert findings(good_history()) == []


@pytest.mark.parametrize(("spoil", "name"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
@pytest.mark.slow
def test_a_system_that(spoil: Callable[[History], None], name: str) -> None:
    history = good_history()
    spoil(history)

    assert name in {finding.check for finding in findings(history)}


@pytest.mark.slow
def test_every_check_has_a_history_that_only_it_need_catch() -> None:
    caught = set()
    for spoil, name in BAD:
        history = good_history()
        spoil(history)
        caught |= {judge for judge in check.CHECKS.values() if any(one.check == name for one in judge(history))}

    assert caught == set(check.CHECKS.values())


def test_findings_name_the_key_and_the_reason() -> None:
    history = good_history()
    starts_a_microsecond_early(history)

    assert findings(history) == [check.Finding("early", str(PLAIN), "attempt 1 started 0.001 ms early")]


def test_order_is_free_where_the_smaller_key_was_enqueued_after_it_was_due() -> None:
    history = good_history()
    runs_the_second_before_the_first(history)
    history.wanted[PLAIN] = history.wanted[PLAIN]._replace(acked_us=PLAIN.time_us + 1)

    assert list(check.order(history)) == []


def test_tasks_behind_a_busy_head_do_not_count_as_late() -> None:
    history = good_history()
    busy = key(7, 0)
    change(history, busy, end=key(7, 1).time_us + 700 * MS)
    change(history, key(7, 1), start=key(7, 1).time_us + 701 * MS)

    late = check.lateness(history)

    assert busy in late
    assert key(7, 1) not in late


def test_lateness_on_spark_is_judged_apart() -> None:
    history = good_history()
    change(history, key(ON_SPARK[0], 0), start=key(ON_SPARK[0], 0).time_us + 600 * MS)

    assert key(ON_SPARK[0], 0) not in check.lateness(history)
    assert len(check.lateness(history, on_spark=True)) == 3 * len(ON_SPARK)
    assert [one.why.split(",")[0] for one in findings(history)] == ["p99 on Spark is 600.0 ms"]


def test_percentiles_are_by_nearest_rank() -> None:
    assert check.percentiles(range(1_000, 101_000, 1_000)) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert check.percentiles([7_000]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0, "max": 7.0}
    assert check.percentiles([]) == {}


def test_the_summary_counts_every_accepted_key_once() -> None:
    history = good_history()

    numbers = check.summary(history, [], 12.34)

    assert numbers["ok"] is True
    assert numbers["accepted"] == len(history.wanted)
    assert numbers["completed"] + numbers["failed"] + numbers["cancelled"] == numbers["accepted"]
    assert (numbers["failed"], numbers["cancelled"], numbers["rejected"]) == (1, 1, 2)
    assert numbers["schedule_runs"] == len(history.runs)
    assert numbers["lateness_ms"] == {"p50": 5.0, "p95": 5.0, "p99": 5.0, "max": 5.0}
    assert numbers["seconds"] == 12.3


def test_the_summary_of_a_bad_history_is_not_ok_and_counts_by_kind() -> None:
    history = good_history()
    loses_a_completion(history)
    delivers_twice(history)
    leaves_a_killed_attempt_running(history)

    numbers = check.summary(history, findings(history), 1.0)

    assert numbers["ok"] is False
    assert (numbers["lost"], numbers["doubled"]) == (1, 1)
    assert numbers["overlaps"] == 1


def test_events_of_one_attempt_make_one_visit_and_two_runs_of_it_stay_apart() -> None:
    def event(started: int, arrived: int, state: str, attempt: int = 1) -> dict[str, object]:
        return {
            "key": list(PLAIN), "attempt": attempt, "started_us": started, "arrived_us": arrived, "state": state, "value": "v1",
        }  # fmt: skip

    seen = visits([event(10, 11, "alive"), event(10, 15, "alive"), event(20, 21, "done"), event(30, 31, "done", 2)])

    assert seen == [
        Run(PLAIN, 1, 0, 10, 15, False, "v1"),
        Run(PLAIN, 1, 0, 20, 21, True, "v1"),
        Run(PLAIN, 2, 0, 30, 31, True, "v1"),
    ]


def test_tasks_of_a_lane_in_one_call_do_not_overlap_and_in_two_calls_they_do() -> None:
    def event(task: TaskKey, started: int, pid: int) -> dict[str, object]:
        return {
            "key": list(task), "attempt": 1, "started_us": started, "arrived_us": 90, "state": "done", "value": "v1", "pid": pid,
        }  # fmt: skip

    first, second = key(1, 0), key(1, 1)
    for others, found in (((50, 7), 0), ((50, 8), 1), ((51, 7), 1)):
        history = good_history()
        history.visits = visits([event(first, 50, 7), event(second, *others)])
        assert len(list(check.overlaps(history))) == found
