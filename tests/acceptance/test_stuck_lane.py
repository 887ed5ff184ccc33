"""A lane whose head always fails holds up its own followers, and nobody else."""

import pytest

from scylla_spark import TaskKey
from scylla_spark.testing import judge
from tests.acceptance.place import SECOND, now

TOLERANCE = 1 * SECOND  # milliseconds on a quiet machine; tests share theirs


@pytest.mark.promise
def test_a_lane_whose_head_always_fails_blocks_no_other_and_goes_on_once_it_is_exhausted(deployment, foreign):
    due = now() + 2 * SECOND
    head = TaskKey(due, "stuck-head", "0")
    followers = [TaskKey(due + n, "stuck-head", "follower") for n in (1, 2, 3)]
    others = [TaskKey(due + n * 50_000, f"stuck-other-{n % 20}", str(n)) for n in range(60)]
    retry = {"maxRetries": 7, "base": "600ms", "cap": "600ms"}
    foreign.put(head, {"failures": 99}, retry=retry)
    for key in followers + others:
        foreign.put(key)
    foreign.flush()
    ended = deployment.recorded([head, *followers, *others])

    runs = deployment.history("stuck-head")
    attempts = [run for run in runs if run.key == head]
    assert [run.attempt for run in attempts] == list(range(1, 9)), "the first and seven retries"
    assert (ended[head].outcome, ended[head].attempt) == ("failed", 8)
    assert [run.key for run in runs[len(attempts) :]] == followers, "followers start after the last attempt, in order"
    assert judge.overlapping(runs) == []
    last = attempts[-1].start
    during = [run for run in deployment.history("stuck-other") if run.key.time_us < last]
    assert len(during) >= 30, "others were due while the lane was stuck"
    assert max(run.start - run.key.time_us for run in during) < TOLERANCE
