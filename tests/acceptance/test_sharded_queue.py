"""What a sharded queue promises, on real processes: unique keys, counts, statistics, and what clears it (docs/queues.md has the table)."""

import json
import threading
import urllib.error
from itertools import count

import pytest

from scylla_spark import Queue
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ConflictError
from tests.acceptance.http_api import Wire
from tests.acceptance.place import PATIENCE, now
from tests.support.waiting import eventually

_NUMBERS = count()


@pytest.fixture
def wire(deployment):
    return Wire(deployment.process.ready()["api"])


@pytest.fixture
def queue(scheduler, wire):
    """A queue of its own that workers lease from."""
    return pull_queue(scheduler, wire)


def pull_queue(scheduler, wire, **fields):
    name = f"sharded-{next(_NUMBERS)}"
    scheduler.put_queue(Queue(name=name, mode="pull", **fields))
    eventually(lambda: wire("GET", f"/v1/queues/{name}")["fields"]["mode"] == "pull", PATIENCE)
    return name


@pytest.fixture
def call(deployment):
    def run(*words, code=0):
        done = deployment.call(*words)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if "json" in words else done.stdout + done.stderr

    return run


def leased(wire, queue, number):
    """So many leases, however many calls they take."""
    found = []

    def look():
        found.extend(wire.lease(queue, number - len(found), wait_ms=2_000, lease_ms=600_000))
        return len(found) == number

    eventually(look, PATIENCE, f"{number} leases of {queue}")
    return found


def stats(wire, queue, **wanted):
    """The statistics of a queue once these are in them."""
    look = lambda: wire("GET", f"/v1/queues/{queue}/stats")  # noqa: E731
    eventually(lambda: wanted.items() <= look().items(), PATIENCE, f"{queue}: {wanted}", look)
    return look()


def test_a_hundred_that_are_sent_read_and_acknowledged_are_counted_so_and_none_as_again(wire, queue, scheduler, call):
    wire.put_all(queue, 100, f"{queue}-")
    assert stats(wire, queue, enqueued=100)["completed"] == 0
    leases = leased(wire, queue, 100)
    assert stats(wire, queue, started=100)["states"] == {"running": 100}, "what is leased still counts"
    told = wire("POST", "/v1/leases:complete", {"leases": [{"lease": one["lease"]} for one in leases]})
    assert {one["status"] for one in told["leases"]} == {"ok"}
    found = stats(wire, queue, completed=100)
    wanted = {
        "enqueued": 100,
        "states": {"succeeded": 100},
        "started": 100,
        "retries": 0,
        "expired_leases": 0,
        "completed": 100,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert sum(part["completed"] for part in found["partitions"]) == 100
    assert scheduler.queue(queue).stats().model_dump() == found, "Python says the same"
    shown = call("queue", "stats", queue, "-o", "json")
    assert {name: shown[name] for name in wanted} == wanted, "and so does the command line"
    rows = call("queue", "stats", queue, "--partitions", "-o", "json")
    assert [row["partition"] for row in rows] == ["all", *(part["partition"] for part in found["partitions"])]


def test_what_is_not_acknowledged_in_time_comes_again_and_is_counted_as_that(wire, queue):
    task = wire.put(queue)
    (first,) = wire.lease(queue, wait_ms=10_000, lease_ms=1_000)
    (second,) = wire.lease(queue, wait_ms=10_000)
    assert {first["task"]["id"], second["task"]["id"]} == {task}
    assert wire.end("complete", second) == "ok"
    found = stats(wire, queue, completed=1, retries=1, expired_leases=1)
    assert (found["enqueued"], found["started"]) == (1, 1)


def test_a_key_that_is_present_is_refused_alone_and_of_a_batch_and_free_again_once_it_has_ended(scheduler, wire):
    queue = pull_queue(scheduler, wire, key_reuse="when_done")
    mine = f"{queue}-key"
    scheduler.enqueue_unique(None, key=mine, queue=queue)
    with pytest.raises(ConflictError, match="exists") as told:
        scheduler.enqueue_unique(None, key=mine, queue=queue, delay="1h")
    assert told.value.fields["reason"] == "key_exists"
    names = [f"{queue}-{n}" for n in (1, 2, 1)]
    batch = [{"handler": None, "queue": queue, "uniqueness_key": name} for name in (mine, *names)]
    done = scheduler.enqueue_unique_many(batch)
    assert (done.sent, [(one.index, one.reason) for one in done.refused]) == (2, [(0, "key_exists"), (3, "key_exists")])
    for lease in leased(wire, queue, 3):
        assert wire.end("complete", lease) == "ok"
    eventually(lambda: unique(wire, queue, mine), PATIENCE, "the key is free again")
    assert not unique(wire, queue, mine), "and held by who took it"
    stats(wire, queue, enqueued=4)
    assert not unique(wire, queue, mine), "also as the tables say"


def unique(wire, queue, key):
    """Whether the API takes a task of this key, and says so if not."""
    body = {"queue": queue, "ordering_id": key, "uniqueness_key": key}
    try:
        wire("POST", "/v1/tasks?unique=true", body)
    except urllib.error.HTTPError as error:
        with error:
            told = error.code, json.load(error).get("reason")
    else:
        return True
    assert told == (409, "key_exists")
    return False


def test_a_key_of_a_queue_that_reuses_none_stays_held(scheduler, wire, queue):
    key = f"{queue}-once"
    assert unique(wire, queue, key)
    (lease,) = leased(wire, queue, 1)
    assert wire.end("complete", lease) == "ok"
    stats(wire, queue, completed=1)
    assert not unique(wire, queue, key)
    with pytest.raises(ConflictError):
        scheduler.enqueue_unique(None, key=key, queue=queue)


@pytest.mark.promise
def test_of_many_that_send_a_key_at_once_through_one_process_one_is_told_that_it_is_theirs(wire, queue):
    told, start = [], threading.Barrier(8)

    def send():
        start.wait()
        told.append(unique(wire, queue, f"{queue}-raced"))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False] * 7 + [True]


def test_a_queue_is_cleared_after_its_count_was_shown_and_what_comes_later_stays(scheduler, wire, queue, call):
    wire.put_all(queue, 20, f"{queue}-", delay="1h")
    wire.put(queue)
    (lease,) = leased(wire, queue, 1)
    stats(wire, queue, enqueued=21, started=1)
    assert "cancel 21 open tasks" in call("queue", "clear", queue, code=2), "nobody can be asked here"
    assert call("queue", "clear", queue, "--dry-run", "-o", "json") == {"matched": 21, "sent": 0}
    assert call("queue", "clear", queue, "--yes", "-o", "json") == {"matched": 21, "sent": 21}
    stats(wire, queue, states={"cancelled": 21})
    assert wire.end("complete", lease) == "task_cancelled"
    later = wire.put(queue, delay="1h")
    assert wire.state(later) == "scheduled"
    stats(wire, queue, enqueued=22)
    assert scheduler.queue(queue).clear(dry_run=True) == (1, 0)
    assert wire("POST", f"/v1/queues/{queue}:clear") == {"matched": 1, "sent": 1, "dry_run": False}
    wire.becomes(later, "cancelled")


def test_an_undecodable_item_is_removed_and_its_neighbours_are_delivered(wire, queue, foreign, deployment):
    lanes = [f"{queue}-{n}" for n in range(3)]
    before, after = (TaskKey(now(), lane, "u") for lane in (lanes[0], lanes[2]))
    foreign.put(before, handler=None, queue=queue)
    bad = foreign.raw(lanes[1].encode(), b'{"orderingId": \xff')
    foreign.put(after, handler=None, queue=queue)
    foreign.flush()
    leases = leased(wire, queue, 2)
    assert {lease["task"]["ordering_id"] for lease in leases} == {lanes[0], lanes[2]}
    deployment.ingested([bad])
    rows = deployment.rows("rejected").filter(key=lanes[1].encode()).to_dicts()
    assert [(row["reason"], row["value"]) for row in rows] == [("not_json", b'{"orderingId": \xff')]
