"""Stop, wait, start: nothing runs meanwhile, what is overdue runs once, what has finished stays finished, retries go on."""

import json
import os
import signal

from scylla_spark import Retry, TaskKey
from scylla_spark.testing import judge
from tests.acceptance.place import PATIENCE, SECOND, Foreign, now
from tests.support.waiting import eventually


def test_after_a_stop_overdue_tasks_run_once_and_retries_go_on_where_they_were(place):
    begun = now()
    first = place.up()
    kafka = first.ready()["kafka"]
    slow = now() - begun  # how long a start takes on this machine, now
    foreign, client = Foreign(kafka), place.client()
    done = [TaskKey(now() + n, f"stop-done-{n}", "u") for n in range(10)]
    acknowledged = [foreign.put(key) for key in done]
    place.completed(done)
    refused = place.call("table", "purge")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "Another ingest writes" in refused.stderr
    wait_s = 2 * slow / SECOND  # the stored time is that far off, or half
    retry = Retry(max_retries=5, base=wait_s, cap=wait_s)
    failing = client.enqueue("work", {"failures": 1}, ordering_id="stop-backoff", retry=retry)
    eventually(lambda: failing.status().state == "retry_wait", PATIENCE)
    stored = failing.attempts()[0].next_at
    due = now() + 2 * slow + 10 * SECOND  # later than the stop takes
    overdue = [TaskKey(due + n, f"stop-overdue-{n % 4}", f"{n:02}") for n in range(40)]
    acknowledged += [foreign.put(key) for key in overdue[:20]]
    place.ingested(acknowledged)
    for key in overdue[20:]:  # of these only the log may know when we stop
        foreign.put(key).get(timeout=PATIENCE)
    foreign.close()
    assert first.stop() == 0, first.told()[-3000:]
    stopped = now()
    assert eventually(lambda: not place.left(), 10, "nothing is left", place.left) is True

    # another partition count is refused, by the very command that would serve
    other = place.call("up", "--set", "partitions=4")
    assert (other.returncode, other.stdout) == (2, "")
    assert "'tasks' has 8 partitions; these settings need 4" in other.stderr
    tidied = place.call("-o", "json", "table", "compact")
    assert tidied.returncode == 0, tidied.stderr
    sizes = [row for row in json.loads(tidied.stdout) if row["table"] not in ("progress", "deployment")]
    assert all(row["rows_before"] == row["rows_after"] for row in sizes)
    assert all(row["files_after"] <= row["files_before"] for row in sizes)
    eventually(lambda: now() > due + SECOND, PATIENCE, "all are overdue")

    started = now()
    second = place.up()
    second.ready()
    back = now()
    ended = place.completed([*done, *overdue, failing.key])
    assert second.stop() == 0, second.told()[-3000:]

    runs = place.history()
    assert [run for run in runs if stopped <= run.start < started] == [], "nothing ran while we were stopped"
    assert {row["outcome"] for row in ended.values()} == {"succeeded"}
    assert sorted(run.key for run in runs if run.key != failing.key) == sorted(done + overdue), "each ran once"
    assert [run for run in runs if run.start > started and run.key in overdue], "too slow: none was left to be overdue"
    assert judge.disordered(runs) == []
    assert judge.early(runs) == []
    again = [run for run in runs if run.key == failing.key]
    assert [run.attempt for run in again] == [1, 2]
    planned = int(stored.timestamp() * 1_000_000)
    assert again[1].start >= planned
    assert again[1].start < max(planned, back) + 2 * SECOND, "at the stored time, or once we are back"


def test_a_signal_to_all_processes_of_a_terminal_or_a_service_drains_too(place):
    """Ctrl-C in a shell goes to the whole process group: nobody may take away from the driver what it drains with."""
    starting = place.up()
    eventually(lambda: "starting Spark" in starting.told(), PATIENCE)
    os.killpg(starting.pid, signal.SIGTERM)
    assert starting.ended() == 0, starting.told()[-3000:]
    assert eventually(lambda: not place.left(), 10, "nothing is left", place.left) is True

    running = place.up()
    running.ready()
    task = place.client().enqueue("work", {}, ordering_id="stop-group")
    place.completed([task.key])
    os.killpg(running.pid, signal.SIGINT)
    assert running.ended() == 0, running.told()[-3000:]
    assert "Traceback" not in running.told() + starting.told()
