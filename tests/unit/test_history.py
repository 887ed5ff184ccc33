"""The judge of run logs: a clean history passes every check, and each check finds the one breach it is made for."""

import pytest

from scylla_spark.core.key import TaskKey
from tests import history
from tests.history import NEVER, Run


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


@pytest.mark.parametrize(
    "check", [history.early, history.overlapping, history.disordered, history.misnumbered, history.doubled]
)
def test_a_clean_history_breaks_nothing(check):
    assert check(CLEAN) == []
    assert check([]) == []


def test_a_clean_history_is_complete_and_ends():
    assert history.revived(CLEAN, ENDED) == []
    assert history.lost(ENDED, ENDED) == []


def test_a_start_before_the_scheduled_time_is_early():
    assert len(history.early([*CLEAN, run(900, 899, 910)])) == 1


def test_two_runs_of_a_lane_at_one_time_overlap():
    assert len(history.overlapping([*CLEAN, run(120, 199, 220)])) == 1


def test_a_run_that_starts_within_a_long_one_overlaps_even_after_a_short_one():
    assert len(history.overlapping([run(1, 10, 100), run(2, 20, 30), run(3, 40, 50)])) == 2


def test_a_run_that_never_ended_overlaps_with_all_that_follow():
    assert len(history.overlapping([run(1, 10), run(2, 20, 30)])) == 1


def test_an_earlier_key_after_a_later_one_is_disorder():
    assert len(history.disordered([*CLEAN, run(105, 210, 220)])) == 1


@pytest.mark.parametrize(
    ("attempt", "epoch", "why"),
    [(4, 1, "skips a number"), (2, 1, "the same token twice"), (1, 2, "falls back by more than the one that died")],
)
def test_attempt_numbers_must_go_on(attempt, epoch, why):
    assert len(history.misnumbered([*CLEAN, run(100, 170, 175, attempt=attempt, epoch=epoch)])) == 1, why


def test_a_first_attempt_must_have_number_one():
    assert len(history.misnumbered([run(1, 10, 20, attempt=2)])) == 1


def test_an_attempt_that_died_lends_its_number_to_another_epoch():
    assert history.misnumbered([run(1, 10, 20, epoch=1, ok=None), run(1, 30, 40, epoch=2)]) == []


def test_a_second_success_is_doubled():
    assert len(history.doubled([*CLEAN, run(110, 400, 410, epoch=2)])) == 1


def test_a_run_after_the_completion_is_revived():
    assert len(history.revived([*CLEAN, run(110, 400, 410, epoch=2)], ENDED)) == 1


def test_a_key_without_completion_is_lost():
    assert len(history.lost([*ENDED, key(999)], ENDED)) == 1


def test_peak_counts_what_runs_at_one_time():
    assert history.peak([run(1, 10, 20), run(1, 20, 30, lane="b")]) == 1
    assert history.peak([run(1, 10, 21), run(1, 20, 30, lane="b")]) == 2


def test_lines_become_runs_and_a_death_ends_those_without_end():
    def line(event, at, pid, **more):
        return {"event": event, "key": [1, "a", "u"], "attempt": 1, "epoch": pid, "pid": pid, "at": at, **more}

    lines = [line("start", 10, 7, mark="old"), line("start", 50, 8, mark="new"), line("end", 60, 8, ok=True)]
    assert history.runs(lines, deaths=[5, 40]) == [
        Run(key(1), 1, 7, 10, 40, None, "old"),
        Run(key(1), 1, 8, 50, 60, True, "new"),
    ]
    assert history.runs(lines)[0].end == NEVER
