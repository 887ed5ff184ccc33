"""Workers on real processes: what a lease promises holds whatever dies, freezes or comes too late."""

import os
import signal
import threading
import time
from itertools import count

import pytest

from scylla_spark import Queue
from scylla_spark.testing import judge
from scylla_spark.testing.history import Fault
from tests.acceptance import worker_handlers
from tests.acceptance.http_api import Wire, api_process, joined, script, worker
from tests.acceptance.place import PATIENCE, SECOND, now
from tests.support.freezing import freeze, frozen
from tests.support.processes import alive, children
from tests.support.waiting import eventually

HANDLERS = worker_handlers.__file__
_NUMBERS = count()


@pytest.fixture
def wire(deployment):
    return Wire(deployment.process.ready()["api"])


@pytest.fixture
def queue(scheduler, wire):
    """A queue of its own that workers lease from."""
    return pull_queue(scheduler, wire)


def pull_queue(scheduler, wire, **fields):
    name = f"pull-{next(_NUMBERS)}"
    scheduler.put_queue(Queue(name=name, mode="pull", **fields))
    task = wire.put(name)
    (lease,) = eventually(lambda: wire.lease(name, wait_ms=1_000), PATIENCE, "the queue is for workers")
    assert wire.end("complete", lease) == "ok"
    wire.becomes(task, "succeeded")
    return name


@pytest.fixture
def workers(deployment, wire):
    """Starts workers; whatever becomes of the test, they end."""
    started = []

    def start(queue, *words, name=None):
        told = name or f"worker-{next(_NUMBERS)}"
        started.append(worker(deployment, wire.url, told, queue, *words, handlers=HANDLERS))
        joined(wire, started[-1])
        return started[-1]

    yield start
    for process in started:
        if process.running:
            process.signal(signal.SIGKILL)
            process.signal(signal.SIGCONT)
            process.ended()


def succeeded(place, prefix, number):
    """The ends of so many tasks, all of them good."""
    found = eventually(
        lambda: done if len(done := place.ends(prefix)) >= number else None, PATIENCE, f"{number} of {prefix}"
    )
    assert {end.outcome for end in found.values()} == {"succeeded"}
    assert len(found) == number
    return found


# -- who gets what ---------------------------------------------------------------------------------------------------------


def test_the_most_urgent_of_a_queue_is_leased_first(scheduler, wire, queue):
    other = pull_queue(scheduler, wire)
    for priority in (100, 10, 50):
        wire.put(queue, priority=priority)
    wire.put(other, priority=120)
    eventually(lambda: wire("GET", f"/v1/queues/{queue}/scale")["ready"] == 3, PATIENCE)
    assert {lease["task"]["priority"] for lease in of_all_that_is_ready(wire, queue, 2)} == {100, 50}
    for priority in (9, 127):
        wire.put(other, priority=priority)
    eventually(lambda: wire("GET", f"/v1/queues/{other}/scale")["ready"] == 3, PATIENCE)
    assert [lease["task"]["priority"] for lease in of_all_that_is_ready(wire, other, 3)] == [127, 120, 9]


def of_all_that_is_ready(wire, queue, most):
    """So many leases at once. A partition that was taken a moment ago may have to look something up, and then gives nothing yet."""
    for _ in range(3):
        leases = wire.lease(queue, most, wait_ms=10_000)
        if len(leases) == most:
            return leases
        for lease in leases:
            wire.end("yield", lease)
        eventually(lambda: wire("GET", f"/v1/queues/{queue}/scale")["ready"] == 3, PATIENCE)
    return leases


PROGRAM = """
import sys
from scylla_spark import Worker
url, queue, name = sys.argv[1:]
for lease in Worker(url, queue, name=name).leases(n=50, idle=4):
    with lease:
        lease.complete({"worker": name})
    print(lease.task.ordering_id, lease.attempt, flush=True)
    last = lease
"""


@pytest.mark.promise
def test_twenty_workers_lease_a_thousand_tasks_once_each(deployment, wire, queue):
    prefix = f"{queue}-"
    programs = [script(deployment, PROGRAM, wire.url, queue, f"{queue}-w{n}") for n in range(20)]
    wire.put_all(queue, 1_000, prefix)
    told = [program.communicate(timeout=PATIENCE) for program in programs]
    assert [program.returncode for program in programs] == [0] * 20, told
    lines = [line.split() for out, _ in told for line in out.splitlines()]
    assert len(lines) == len({lane for lane, _ in lines}) == 1_000
    assert {attempt for _, attempt in lines} == {"1"}
    ends = succeeded(deployment, prefix, 1_000)
    assert {end.attempt for end in ends.values()} == {1}


def test_a_lease_of_no_time_is_one_delivery(wire, queue):
    task = wire.put(queue)
    (lease,) = wire.lease(queue, wait_ms=10_000, lease_ms=0)
    assert lease["lease"] == ""
    wire.becomes(task, "succeeded")
    assert wire.lease(queue) == []


def test_never_more_than_asked_for_never_before_its_time_and_each_once(wire, queue):
    wire.put_all(queue, 50, f"{queue}-future", delay="1h")
    wire.put_all(queue, 250, f"{queue}-due")
    seen = []
    while len(seen) < 250:
        leases = wire.lease(queue, 100, wait_ms=10_000)
        assert 0 < len(leases) <= 100
        seen += [lease["task"]["ordering_id"] for lease in leases]
        ended = wire("POST", "/v1/leases:complete", {"leases": [{"lease": lease["lease"]} for lease in leases]})
        assert {one["status"] for one in ended["leases"]} == {"ok"}
    assert sorted(seen) == [f"{queue}-due{n:05}" for n in range(250)]
    assert wire.lease(queue, 100) == []


def test_a_leased_task_still_counts_one_that_has_ended_does_not_and_looking_changes_nothing(wire, queue):
    def count():
        return wire("GET", f"/v1/tasks:count?filter=queue:{queue}%20state:open")["matched"]

    task = wire.put(queue, payload={"n": 1})
    eventually(lambda: count() == 1, PATIENCE)
    assert wire("GET", f"/v1/tasks/{task}")["payload"] == {"n": 1}
    (lease,) = wire.lease(queue, wait_ms=10_000, lease_ms=600_000)
    assert lease["task"]["attempt"] == 1, "looking is no attempt"
    started = "GET", f"/v1/tasks?filter=queue:{queue}%20state:running"
    eventually(lambda: wire(*started)["tasks"], PATIENCE, "the tables know of the lease")
    assert count() == 1
    assert wire.end("complete", lease) == "ok"
    eventually(lambda: count() == 0, PATIENCE)


# -- how leases end --------------------------------------------------------------------------------------------------------


def test_a_lease_without_heartbeat_is_ready_again_when_it_ends_and_history_says_so(wire, queue):
    task = wire.put(queue)
    asked_at = time.monotonic()
    (first,) = wire.lease(queue, wait_ms=10_000, lease_ms=1_000, worker="silent")
    (second,) = wire.lease(queue, wait_ms=10_000, worker="other")
    assert time.monotonic() - asked_at >= 1
    assert second["task"]["attempt"] == 2
    assert wire.end("complete", first) == "lease_lost"
    assert wire.end("complete", second) == "ok"
    timeout, _ = wire.outcomes(task, "timed_out", "succeeded")
    assert timeout["error"]["kind"] == "lease_expired"
    assert "'silent'" in timeout["error"]["message"]


def test_a_yield_at_a_tenth_is_ready_again_at_once_and_history_ends_with_it(wire, queue):
    task = wire.put(queue)
    (lease,) = wire.lease(queue, wait_ms=10_000)
    assert wire.end("extend", lease, value=0.1) == "ok"
    assert wire.end("yield", lease, checkpoint={"row": 7}) == "ok"
    wire.outcomes(task, "yielded")
    (again,) = wire.lease(queue, wait_ms=1_000)
    assert (again["task"]["checkpoint"], wire.end("complete", again)) == ({"row": 7}, "ok")


def test_cancel_and_complete_race_and_both_are_told_who_won(wire, queue):
    tasks = [wire.put(queue) for _ in range(20)]
    leases = {}
    while len(leases) < len(tasks):
        leases |= {lease["task"]["id"]: lease for lease in wire.lease(queue, 20, wait_ms=10_000)}
    told = {task: {} for task in tasks}

    def race(task, start):
        def cancel():
            start.wait()
            told[task]["cancel"] = wire.cancel(task)

        def complete():
            start.wait()
            told[task]["complete"] = wire.end("complete", leases[task])

        threads = [threading.Thread(target=one) for one in (cancel, complete)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for task in tasks:
        race(task, threading.Barrier(2))
    fair = {"ok": ("too late", "succeeded"), "task_cancelled": ("cancelled", "cancelled")}
    for task in tasks:
        cancel, state = fair[told[task]["complete"]]
        assert told[task]["cancel"] == cancel
        wire.becomes(task, state)
    print("won by complete:", sum(said["complete"] == "ok" for said in told.values()), "of", len(tasks))


# -- what becomes of workers -----------------------------------------------------------------------------------------------


@pytest.mark.promise
def test_a_frozen_worker_that_wakes_up_cannot_complete_and_its_task_is_done_once(
    deployment, wire, queue, workers, tmp_path
):
    go = tmp_path / "go"
    frozen = workers(queue, "--lease", "2s", "--slots", "1")
    prefix = f"{queue}-"
    wire.put_all(queue, 1, prefix, handler="work", payload={"until": str(go)})
    eventually(lambda: deployment.history(prefix), PATIENCE, "it has begun")
    begun = now()
    freeze(frozen.pid)
    workers(queue, "--lease", "2s", "--slots", "1")
    eventually(lambda: len(deployment.history(prefix)) == 2, PATIENCE, "the other has begun it")
    go.touch()
    ends = succeeded(deployment, prefix, 1)
    frozen.signal(signal.SIGCONT)
    thaw = now()
    eventually(lambda: sum(run.ok is True for run in deployment.history(prefix)) == 2, PATIENCE, "it has gone on")
    assert frozen.stop() == 0
    assert [end.attempt for end in ends.values()] == [2]
    assert len(deployment.ends(prefix)) == 1
    runs = deployment.history(prefix)
    assert judge.misnumbered(runs) == judge.overlapping(runs, [Fault("freeze", begun, thaw)]) == []


def test_the_api_is_killed_and_workers_go_on(deployment, scheduler, wire, workers):
    queue = pull_queue(scheduler, wire, lease="60s")
    for _ in range(2):
        workers(queue, "--slots", "4")
    prefix = f"{queue}-"
    wire.put_all(queue, 300, prefix, handler="work", payload={"ms": 50})
    eventually(lambda: len(deployment.history(prefix)) > 40, PATIENCE, "some have run")
    os.kill(api_process(deployment.process.pid), signal.SIGKILL)
    succeeded(deployment, prefix, 300)
    runs = deployment.history(prefix)
    # a lease whose answer died with the API was never heard of: the attempt after it is the first that runs
    assert judge.doubled(runs) == judge.overlapping(runs) == judge.misnumbered(runs, deployment.begun(prefix)) == []
    assert len(runs) == 300, "no lease that a worker had was lost"


def test_an_api_that_stands_still_longer_than_leases_last_costs_no_work(deployment, scheduler, wire, workers):
    queue = pull_queue(scheduler, wire, lease="2s")
    workers(queue, "--slots", "4")
    prefix = f"{queue}-"
    wire.put_all(queue, 200, prefix, handler="work", payload={"ms": 50})
    eventually(lambda: len(deployment.history(prefix)) > 20, PATIENCE, "some have run")
    api = api_process(deployment.process.pid)
    with frozen(api):
        thaw = now() + 4 * SECOND
        eventually(lambda: now() > thaw, PATIENCE, "leases are over")
    succeeded(deployment, prefix, 200)
    runs = deployment.history(prefix)
    assert len(runs) == 200
    assert judge.doubled(runs) == judge.overlapping(runs) == []


def test_told_to_stop_a_worker_lets_what_runs_end_within_a_grace_and_gives_the_rest_back(
    deployment, wire, queue, workers, tmp_path
):
    go = tmp_path / "go"
    first = workers(queue, "--slots", "2", "--grace", "15s")
    prefix = f"{queue}-"
    wire.put_all(queue, 1, prefix + "short", handler="work", payload={"until": str(go)})
    wire.put_all(queue, 1, prefix + "long", handler="work", payload={"until": str(tmp_path / "never")})
    wire.put_all(queue, 3, prefix + "next", handler="work")
    eventually(lambda: len(deployment.history(prefix)) == 2, PATIENCE, "two have begun")
    first.signal(signal.SIGTERM)
    go.touch()
    assert first.ended() == 0, first.told()
    (short,) = [run for run in deployment.history(prefix) if run.key.ordering_id.startswith(prefix + "short")]
    assert short.ok
    found = []

    def given_back():
        found.extend(wire.lease(queue, 9, wait_ms=1_000))
        return [one for one in found if "long" in one["task"]["ordering_id"]]

    (again,) = eventually(given_back, PATIENCE, "the long task was given back")
    wire.outcomes(again["task"]["id"], "yielded", "started")
    assert again["task"]["attempt"] == 2
    assert wire.end("complete", again) == "ok"


def test_an_operator_drains_one_worker_and_stops_another(deployment, wire, queue, workers, tmp_path):
    go = tmp_path / "go"
    drained = workers(queue, "--slots", "1", name="drained")
    prefix = f"{queue}-"
    wire.put_all(queue, 1, prefix + "short", handler="work", payload={"until": str(go)})
    eventually(lambda: len(deployment.history(prefix)) == 1, PATIENCE, "it has begun")
    assert wire("POST", "/v1/workers/drained:drain") == {"worker": "drained", "order": "drain"}
    go.touch()
    assert drained.ended() == 0, drained.told()
    (short,) = deployment.history(prefix)
    assert short.ok, "what it held has ended"
    stopped = workers(queue, "--slots", "1", name="stopped")
    wire.put_all(queue, 1, prefix + "long", handler="work", payload={"until": str(tmp_path / "never")})
    eventually(lambda: len(deployment.history(prefix)) == 2, PATIENCE, "it has begun")
    assert wire("POST", "/v1/workers/stopped:stop")["order"] == "stop"
    (again,) = eventually(lambda: wire.lease(queue, wait_ms=1_000), PATIENCE, "the long task was given back")
    assert again["task"]["attempt"] == 2
    assert stopped.ended() == 0, stopped.told()
    assert wire.end("complete", again) == "ok"


def test_the_same_request_gets_the_same_leases_and_no_others(wire, queue):
    for _ in range(3):
        wire.put(queue)
    eventually(lambda: wire("GET", f"/v1/queues/{queue}/scale")["ready"] == 3, PATIENCE, "three wait")
    first = wire.lease(queue, 2, worker="w", request_id="r1")
    assert [one["lease"] for one in wire.lease(queue, 2, worker="w", request_id="r1")] == [
        one["lease"] for one in first
    ]
    (other,) = wire.lease(queue, 2, worker="w", request_id="r2")
    assert [wire.end("complete", one) for one in (*first, other)] == ["ok"] * 3


@pytest.mark.parametrize("how", ["exit", "segfault"])
def test_a_child_that_dies_fails_its_own_task_and_no_other(deployment, wire, queue, workers, how):
    workers(queue, "--slots", "3", "--processes")
    prefix = f"{queue}-"
    bad = wire.put(queue, handler="misbehave", payload={"how": how}, retry={"max_retries": 0})
    wire.put_all(queue, 30, prefix, handler="work", payload={"ms": 20})
    succeeded(deployment, prefix, 30)
    (only,) = wire.outcomes(bad, "failed")
    assert only["error"]["kind"] == "child_died"


def test_a_killed_worker_leaves_no_children_and_its_tasks_go_to_others(deployment, wire, queue, workers, tmp_path):
    go = tmp_path / "go"
    victim = workers(queue, "--slots", "2", "--processes", "--lease", "2s")
    prefix = f"{queue}-"
    wire.put_all(queue, 2, prefix, handler="work", payload={"until": str(go)})
    eventually(lambda: len(deployment.history(prefix)) == 2, PATIENCE, "both have begun")
    theirs = children(victim.pid)
    assert len(theirs) >= 2
    deployment.kill(victim)
    eventually(
        lambda: not any(map(alive, theirs)), 10, "no child is left", lambda: [pid for pid in theirs if alive(pid)]
    )
    go.touch()
    workers(queue, "--slots", "2", "--lease", "2s")
    ends = succeeded(deployment, prefix, 2)
    assert {end.attempt for end in ends.values()} == {2}


def test_who_takes_the_name_of_a_worker_ends_it_with_a_clear_error(wire, queue, workers):
    first = workers(queue, name=f"{queue}-twin")
    second = workers(queue, name=f"{queue}-twin")
    assert first.ended() == 4
    assert "Another process has joined as worker" in first.told()
    assert second.stop() == 0, second.told()
