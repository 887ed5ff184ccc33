"""Queues on real processes: what is put is obeyed by the running dispatcher within a second, and outlives kill -9."""

import json
from itertools import count

import polars as pl
import pytest

from scylla_spark import Queue, TaskFailed
from scylla_spark.core.engine.shares_of_children import most_of
from scylla_spark.defaults import MAX_CHILDREN
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from scylla_spark.testing import measures
from scylla_spark.testing.history import NEVER
from tests.acceptance.place import PATIENCE, SECOND, now
from tests.support.waiting import eventually, holds

_NUMBERS = count()


def enqueue(scheduler, queue, number=1, **payload):
    """Tasks that are due now, each in a lane of its own; the prefix of their lanes."""
    prefix = f"{queue}-{next(_NUMBERS)}-"
    for index in range(number):
        scheduler.enqueue("work", payload, queue=queue, ordering_id=f"{prefix}{index}")
    return prefix


def ended(place, prefix, number):
    """The runs of such tasks once so many have ended, by start."""

    def look():
        found = [run for run in place.history(prefix) if run.end != NEVER]
        return found if len(found) >= number else None

    return eventually(look, PATIENCE, f"{number} runs of {prefix}")


@pytest.fixture
def call(deployment):
    def run(*words, code=0):
        done = deployment.call(*words)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if "json" in words else done.stdout + done.stderr

    return run


@pytest.mark.promise
def test_the_running_dispatcher_obeys_a_definition_as_soon_as_it_is_put(deployment, scheduler):
    assert scheduler.put_queue(Queue(name="narrow", concurrency=1)) == "added"
    eventually(lambda: measures.peak(ended(deployment, enqueue(scheduler, "narrow", 5, ms=200), 5)) == 1, PATIENCE)
    assert measures.peak(ended(deployment, enqueue(scheduler, "narrow", 5, ms=200), 5)) == 1, "from then on, always"
    assert scheduler.put_queue(Queue(name="narrow", concurrency=1)) == "unchanged"
    scheduler.queue("narrow").update(concurrency=None, description="wide now")
    eventually(lambda: measures.peak(ended(deployment, enqueue(scheduler, "narrow", 4, ms=800), 4)) > 1, PATIENCE)
    scheduler.queue("narrow").delete()


def test_a_paused_queue_starts_nothing_and_goes_on_within_a_second(deployment, scheduler):
    queue = scheduler.queue("still")
    queue.update(paused=False)
    ended(deployment, enqueue(scheduler, "still"), 1)
    queue.pause()
    eventually(
        lambda: "is paused" in scheduler.enqueue("work", {}, queue="still").explain()["why"],
        PATIENCE,
        "the dispatcher obeys",
    )
    waiting = enqueue(scheduler, "still", 3)
    assert not holds(lambda: deployment.history(waiting), 2)
    assert queue.get().fields["paused"] is True
    queue.resume()
    resumed_at = now()
    runs = ended(deployment, waiting, 3)
    print("started after the resume was answered, in ms:", [(run.start - resumed_at) // 1000 for run in runs])
    assert runs[0].start - resumed_at < 10 * SECOND, "and not only with the next scan, or the next start"
    queue.delete()
    with pytest.raises(NotFoundError):
        queue.delete()


def test_long_tasks_of_one_queue_leave_children_of_the_pool_to_other_queues(deployment, scheduler):
    tasks = [
        scheduler.enqueue("until_cancelled", {}, queue="long", ordering_id=f"long-{number}")
        for number in range(MAX_CHILDREN + 2)
    ]
    most = most_of(MAX_CHILDREN)
    eventually(lambda: len(deployment.history("long-")) >= most, PATIENCE, f"{most} children run")
    ended(deployment, enqueue(scheduler, "others"), 1)
    begun = {run.key for run in deployment.history("long-")}
    assert len(begun) == most, "the last fifth is left to other queues"
    waiting = next(one for one in tasks if one.key not in begun)
    assert "other queues" in waiting.explain()["why"]
    for one in tasks:
        assert one.cancel(running=True, grace="10s") == "cancelled"


def test_each_change_is_a_row_and_can_be_asked_for(deployment, scheduler):
    scheduler.put_queue(Queue(name="rows", rate=5, weights={"gold": 10}), author="me")
    first = scheduler.queue("rows").get()
    assert (first.source, first.author, first.fields["weights"]) == ("stored", "me", {"gold": 10})
    with pytest.raises(ConflictError, match="revision"):
        scheduler.queue("rows").update(rate=1, expect=first.revision - 1)
    with pytest.raises(ArgumentError, match="Did you mean rate"):
        scheduler.queue("rows").update(rates=1)
    assert scheduler.queue("rows").update(rate=6, unset=("weights",), expect=first.revision) > first.revision
    scheduler.queue("rows").delete()

    def look():
        rows = deployment.rows("queues").filter(pl.col("name") == "rows").sort("revision").to_dicts()
        return rows if len(rows) == 3 else None

    rows = eventually(look, PATIENCE)
    assert [(row["rate"], row["deleted"]) for row in rows] == [(5.0, False), (6.0, False), (None, True)]
    assert json.loads(rows[1]["definition"]) == {"name": "rows", "rate": 6}


def ends_at_once(task):
    """Whether the first failure of a task is its end, as its queue demands; a task that is tried again is cancelled."""
    eventually(lambda: task.status().state in ("failed", "retry_wait", "succeeded"), PATIENCE)
    task.cancel()
    return task.status().state == "failed"


def test_a_queue_says_what_becomes_of_exceptions_of_false_and_of_tasks_without_a_handler(deployment, scheduler):
    careful = Queue(name="careful", on_exception="fail", on_false="redeliver", lease="500ms", default_handler="says")
    scheduler.put_queue(careful)
    eventually(lambda: ends_at_once(scheduler.enqueue("work", {"failures": 1}, queue="careful")), PATIENCE)
    fails = scheduler.enqueue("work", {"failures": 1}, queue="careful")
    again = scheduler.enqueue(None, {"says": [False, False, True]}, queue="careful", ordering_id="careful-again")
    with pytest.raises(TaskFailed, match="fails as asked"):
        fails.result(timeout=PATIENCE)
    assert again.result(timeout=PATIENCE) is True
    first, second, third = deployment.history("careful-again")
    assert min(second.start - first.end, third.start - second.end) >= SECOND // 2
    scheduler.queue("careful").delete()


def test_the_command_line_puts_shows_pauses_and_deletes(call, deployment):
    (row,) = call("queue", "put", "cli", "--concurrency", "5", "--rate", "10", "--weight", "gold=3", "-o", "json")
    assert (row["concurrency"], row["rate"], row["weights"], row["source"]) == (5, 10, {"gold": 3}, "stored")
    call("queue", "put", "cli", "--rate", "none", "--max-retries", "forever")
    shown = call("queue", "show", "cli", "-o", "json")
    assert (shown["concurrency"], shown["rate"], shown["max_retries"], shown["lease"]) == (5, None, None, "10s")
    call("queue", "pause", "cli")
    assert [row["state"] for row in call("queue", "list", "-o", "json") if row["name"] == "cli"] == ["paused"]
    call("queue", "resume", "cli")
    assert "Did you mean" in call("queue", "put", "cli", "--unset", "rates", code=2)
    assert "concurrency: Input should be a valid integer" in call(
        "queue", "put", "cli", "--concurrency", "many", code=2
    )
    assert "revision" in call("queue", "put", "cli", "--rate", "1", "--expect", "0", code=4)
    file = deployment.folder / "queues.toml"
    file.write_text("[queues.cli]\ngroup_concurrency = 2\n\n[queues.other]\nlease = '30s'\nmax_retries = 'forever'\n")
    rows = call("queue", "put", "--file", str(file), "-o", "json")
    assert [(row["name"], row["done"]) for row in rows] == [("cli", "changed"), ("other", "added")]
    assert call("queue", "show", "cli", "-o", "json")["concurrency"] is None, "the file replaces the whole"
    assert "--yes" in call("queue", "delete", "cli", "other", code=2)
    call("queue", "delete", "cli", "other", "--yes")
    call("queue", "show", "cli", code=3)
    call("queue", "delete", "cli", "--yes", code=3)
