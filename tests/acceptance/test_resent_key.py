"""A key that is sent again: it overwrites from the next attempt on, and never brings back what has completed."""

from itertools import count

import pytest

from scylla_spark import Settings, TaskKey
from scylla_spark.core.tasks.key import partition_of
from tests.acceptance.place import PATIENCE, SECOND, now
from tests.support.waiting import eventually


def runs(deployment, lane):
    return [(run.key.uniqueness_key, run.attempt, run.mark) for run in deployment.history(lane)]


def test_while_it_waits_the_new_payload_is_the_one_that_runs(deployment, foreign):
    key = TaskKey(now() + 2 * SECOND, "resent-waiting", "u")
    for mark in ("old", "new"):
        foreign.put(key, {"mark": mark}).get(timeout=PATIENCE)
    deployment.recorded([key])
    assert runs(deployment, "resent-waiting") == [("u", 1, "new")]


def test_while_it_runs_that_run_goes_on_and_no_other_follows(deployment, foreign):
    key = TaskKey(now(), "resent-running", "u")
    after = key._replace(time_us=key.time_us + 1, uniqueness_key="after")
    gate = deployment.folder / "resent-gate"
    foreign.put(key, {"mark": "old", "until": str(gate)}).get(timeout=PATIENCE)
    eventually(lambda: deployment.history("resent-running"), PATIENCE)
    foreign.put(key, {"mark": "new"}).get(timeout=PATIENCE)
    foreign.put(after).get(timeout=PATIENCE)
    partitions = Settings().partitions
    same = (f"resent-beside-{n}" for n in count())
    lane = next(lane for lane in same if partition_of(lane, partitions) == partition_of("resent-running", partitions))
    beside = TaskKey(now(), lane, "u")
    foreign.put(beside).get(timeout=PATIENCE)
    deployment.recorded([beside])  # it stands behind the others, so the dispatcher has read them
    gate.touch()
    ended = deployment.recorded([key, after])
    assert runs(deployment, "resent-running") == [("u", 1, "old"), ("after", 1, "")]
    assert ended[key].result == '{"mark":"old"}'


@pytest.mark.promise
def test_in_back_off_the_new_payload_counts_from_the_next_attempt_on(deployment, foreign):
    key = TaskKey(now(), "resent-backoff", "u")
    retry = {"maxRetries": 5, "base": "4s", "cap": "4s"}
    foreign.put(key, {"mark": "old", "failures": 9}, retry=retry).get(timeout=PATIENCE)
    eventually(lambda: [run for run in deployment.history("resent-backoff") if run.ok is False], PATIENCE)
    foreign.put(key, {"mark": "new"}, retry=retry).get(timeout=PATIENCE)
    ended = deployment.recorded([key])
    assert runs(deployment, "resent-backoff") == [("u", 1, "old"), ("u", 2, "new")]
    assert (ended[key].outcome, ended[key].attempt) == ("succeeded", 2)


@pytest.mark.promise
def test_once_done_it_never_runs_again(deployment, foreign):
    key = TaskKey(now(), "resent-done", "u")
    foreign.put(key, {"mark": "old"}).get(timeout=PATIENCE)
    deployment.recorded([key])
    after = TaskKey(now(), "resent-done", "after")
    deployment.ingested([foreign.put(key, {"mark": "new"}), foreign.put(after)])
    deployment.completed([after])
    assert runs(deployment, "resent-done") == [("u", 1, "old"), ("after", 1, "")]
    assert deployment.completions("resent-done")[key]["result"] == '{"mark":"old"}'
