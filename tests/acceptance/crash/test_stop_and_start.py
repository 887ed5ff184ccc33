"""Stop, wait, start: nothing runs meanwhile, what is overdue runs once, what has finished stays finished, retries go on."""

import json
import re

import pytest

from scylla_spark import Retry, TaskKey
from scylla_spark.testing import judge
from tests.acceptance.crash.crash_site import across
from tests.acceptance.place import PATIENCE, SECOND, Foreign, now
from tests.support.waiting import eventually


@pytest.mark.promise
@across("killed", turn=1)
def test_after_a_kill_overdue_tasks_run_once_and_retries_go_on_where_they_were(site):
    yield from _overdue_and_retried(site, "killed")


@across("stopped")
def test_after_a_stop_overdue_tasks_run_once_and_retries_go_on_where_they_were(site):
    refused = site.call("table", "purge")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "Another ingest writes" in refused.stderr
    site.while_down(lambda: _refuses_another_partition_count(site))
    yield from _overdue_and_retried(site, "stopped")


def _overdue_and_retried(site, name):
    """Prepares tasks that have ended, wait for a retry or will be overdue; checks them when the deployment is back."""
    foreign, client = Foreign.of(site.data), site.client()
    done = [TaskKey(now() + n, f"{name}-done-{n}", "u") for n in range(10)]
    begun = now()
    acknowledged = [foreign.put(key) for key in done]
    site.completed(done)
    table_us = now() - begun  # how long a task takes into the tables on this machine, now
    # The stored time is that far off, or half of it: in any case after the event, since a kill may repeat what ran just before it.
    wait_s = 5 * (site.start_us + table_us) / SECOND
    retry = Retry(max_retries=5, base=wait_s, cap=wait_s)
    failing = client.enqueue("work", {"failures": 1}, ordering_id=f"{name}-backoff", retry=retry)
    eventually(lambda: failing.status().state == "retry_wait", PATIENCE)
    stored = failing.attempts()[0].next_at
    due = now() + 2 * (site.start_us + table_us)  # later than the event comes
    site.not_before = due + SECOND
    overdue = [TaskKey(due + n, f"{name}-overdue-{n % 4}", f"{n:02}") for n in range(40)]
    acknowledged += [foreign.put(key) for key in overdue[:20]]
    site.ingested(acknowledged)
    for key in overdue[20:]:  # of these only the log may know when the deployment goes down
        foreign.put(key).get(timeout=PATIENCE)
    foreign.close()
    yield
    ended = site.completed([*done, *overdue, failing.key], within=PATIENCE + wait_s)
    runs = site.history(f"{name}-")
    assert site.down_at < due, "too slow: some were due before"
    assert {row["outcome"] for row in ended.values()} == {"succeeded"}
    assert sorted(run.key for run in runs if run.key != failing.key) == sorted(done + overdue), "each ran once"
    assert all(run.start > site.down_at for run in runs if run.key in overdue), "nothing ran before its time"
    assert judge.disordered(runs) == []
    assert judge.early(runs) == []
    again = [run for run in runs if run.key == failing.key]
    assert [run.attempt for run in again] == [1, 2]
    planned = int(stored.timestamp() * 1_000_000)
    assert again[1].start >= planned
    assert again[1].start < max(planned, site.back_at) + 2 * SECOND, "at the stored time, or once it is back"


def _refuses_another_partition_count(site):
    """By the very command that would serve."""
    other = site.call("up", "--set", "partitions=4")
    assert (other.returncode, other.stdout) == (7, "")
    assert "'tasks' has 8 partitions; these settings need 4" in other.stderr


@across("stopped")
def test_a_command_compacts_the_tables_of_a_stopped_deployment_without_loss(site):
    tidied = []
    site.while_down(lambda: tidied.append(site.call("-o", "json", "table", "compact")))
    yield
    assert tidied[0].returncode == 0, tidied[0].stderr
    sizes = [row for row in json.loads(tidied[0].stdout) if row["table"] not in ("progress", "deployment")]
    assert all(row["rows_before"] == row["rows_after"] for row in sizes)
    assert all(row["files_after"] <= row["files_before"] for row in sizes)
    task = site.client().enqueue("errand", {}, ordering_id="after-compact")
    site.completed([task.key])


def test_a_signal_to_all_processes_of_a_terminal_or_a_service_drains_too(crash_site):
    """Ctrl-C in a shell goes to the whole process group: it must not end what the driver drains with, such as a MERGE under way."""
    running = crash_site.running()
    task = crash_site.client().enqueue("errand", {}, ordering_id="stop-group")
    crash_site.completed([task.key])
    later = now() + 1_800 * SECOND
    foreign = Foreign.of(crash_site.data)
    for number in range(1_000):
        foreign.put(TaskKey(later + number, f"stop-{number % 50}", f"{number:04}"))
    foreign.flush()
    foreign.close()
    eventually(lambda: _is_merging(crash_site.data / "checkpoints" / "ingest-tasks"), PATIENCE, every=0.005)
    assert crash_site.interrupt(running) == 0, running.told()[-3000:]
    assert "\tat " not in running.told(), "no stack of Java, whatever the stop has cut off"
    starting = crash_site.begin()
    eventually(lambda: "starting Spark" in starting.told(), PATIENCE)
    assert crash_site.terminate(starting) == 0, starting.told()[-3000:]
    assert eventually(lambda: not crash_site.left(), 10, "nothing is left", crash_site.left) is True
    assert "Traceback" not in _without_cut_off_workers(running.told()) + starting.told()


def _without_cut_off_workers(text):
    """Without the traces of Spark's own Python workers, whose JVM ended in the midst of a batch."""
    return re.sub(r"Traceback [^\n]*\n  File [^\n]*pyspark/daemon\.py[^\n]*\n(?: [^\n]*\n)*EOFError\n", "", text)


def _is_merging(checkpoint):
    """Whether a batch of a streaming query is under way: its offsets are written before it, its commit behind it."""
    begun, done = ({int(one.name) for one in (checkpoint / kind).glob("[0-9]*")} for kind in ("offsets", "commits"))
    return max(begun) > max(done, default=-1)
