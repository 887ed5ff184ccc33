"""A lane whose head always fails holds up its own followers, and nobody else."""

import pytest

from scylla_spark import TaskKey
from scylla_spark.testing import judge
from tests.acceptance.place import PATIENCE, SECOND, now
from tests.support.waiting import eventually


@pytest.mark.promise
def test_a_lane_whose_head_always_fails_blocks_no_other_and_goes_on_once_it_is_exhausted(deployment, foreign, tmp_path):
    due = now() + 2 * SECOND
    head = TaskKey(due, "stuck-head", "0")
    followers = [TaskKey(due + n, "stuck-head", "follower") for n in (1, 2, 3)]
    others = [TaskKey(due + n * 50_000, f"stuck-other-{n % 20}", str(n)) for n in range(60)]
    go = tmp_path / "go"
    retry = {"maxRetries": 7, "base": "600ms", "cap": "600ms"}
    foreign.put(head, {"failures": 99, "until": str(go), "until_from": 8}, retry=retry)
    for key in followers + others:
        foreign.put(key)
    foreign.flush()
    eventually(lambda: len(deployment.history("stuck-head")) == 8, PATIENCE, "the last attempt has begun")
    deployment.recorded(others)
    assert [run.key for run in deployment.history("stuck-head")] == [head] * 8, "others end while the lane is stuck"
    go.touch()
    ended = deployment.recorded([head, *followers])

    runs = deployment.history("stuck-head")
    attempts = [run for run in runs if run.key == head]
    assert [run.attempt for run in attempts] == list(range(1, 9)), "the first and seven retries"
    assert (ended[head].outcome, ended[head].attempt) == ("failed", 8)
    assert [run.key for run in runs[len(attempts) :]] == followers, "followers start after the last attempt, in order"
    assert judge.overlapping(runs) == []
    assert deployment.history("stuck-other")[0].start < attempts[-1].start, "they do not wait for the last attempt"
