"""Whatever user code does, only its own task fails, and the reason is recorded."""

import pytest

from scylla_spark import TaskKey
from tests.acceptance.place import SECOND, now

DEEDS = {
    "exit": ("failed", "child_died", "exited with code 7"),
    "segfault": ("failed", "child_died", "SIGSEGV"),
    "ignore SIGTERM": ("failed", "timed_out", "not ended after 1 s"),
    "print 20 MB": ("succeeded", None, None),
    "raise BaseException": ("failed", "BaseException", "not even an Exception"),
    "return an object": ("failed", "result_not_serialisable", "not JSON serializable"),
}


@pytest.mark.promise
def test_misbehaving_user_code_fails_its_own_task_with_a_reason_and_no_other(deployment, foreign):
    due = now() + SECOND
    keys = {how: TaskKey(due, f"deed-{how}", how) for how in DEEDS}
    for how, key in keys.items():
        foreign.put(
            key, {"how": how}, handler="misbehave", timeout="1s" if "SIGTERM" in how else "30s", retry={"maxRetries": 0}
        )
    followers = [key._replace(time_us=due + 1, uniqueness_key="follower") for key in keys.values()]
    neighbours = [TaskKey(due + n * 50_000, f"deed-neighbour-{n % 8}", str(n)) for n in range(80)]
    for key in followers + neighbours:
        foreign.put(key)
    foreign.flush()
    ended = deployment.recorded([*keys.values(), *followers, *neighbours])

    for how, (outcome, kind, message) in DEEDS.items():
        end = ended[keys[how]]
        assert (end.outcome, end.failure and end.failure.kind, end.attempt) == (outcome, kind, 1), how
        assert message is None or message in end.failure.message, how
    assert {ended[key].outcome for key in followers + neighbours} == {"succeeded"}
    starts = sorted(run.key for run in deployment.history("deed-"))
    assert starts == sorted([*keys.values(), *followers, *neighbours]), "each ran once"
