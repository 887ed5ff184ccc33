"""Unique names: of two processes that send the same names at the same moment each name has one task that runs."""

import json
import subprocess
import sys
import time

import pytest

from scylla_spark import TaskFailed
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ConflictError, ExitCode
from tests.acceptance.http_api import Wire
from tests.acceptance.place import PATIENCE
from tests.support.waiting import eventually

NAMES = 60
SENDER = """
import json, sys, time
from datetime import datetime, timezone
from scylla_spark import Scheduler
from scylla_spark.config.settings import Settings

data, order = sys.argv[1], int(sys.argv[2])
with Scheduler.connect(Settings(data_dir=data)) as scheduler:
    scheduler.connection.sender
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    names = [f"race-{number}" for number in range(%d)][::order]
    at = datetime.fromtimestamp(begin + order / 10, timezone.utc)
    tasks = [{"handler": "work", "payload": {"ms": 0}, "uniqueness_key": name, "at": at, "unique": "open"} for name in names]
    result = scheduler.enqueue_many(tasks)
    print(json.dumps({"sent": result.sent, "at": int(at.timestamp() * 1e6)}), flush=True)
"""


def sender(place, order):
    script = [sys.executable, "-c", SENDER % NAMES, str(place.data), str(order)]
    return subprocess.Popen(script, env=place.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.promise
def test_of_two_processes_that_send_the_same_names_at_once_one_task_of_each_name_runs(deployment, scheduler):
    senders = [sender(deployment, order) for order in (1, -1)]
    for one in senders:
        assert one.stdout.readline() == "ready\n"
    begin = int(time.time()) + 5
    for one in senders:
        one.stdin.write(f"{begin}\n")
        one.stdin.flush()
    told = [json.loads(one.communicate(timeout=PATIENCE)[0]) for one in senders]
    assert [one["sent"] for one in told] == [NAMES, NAMES]
    times = sorted(one["at"] for one in told)
    names = [f"race-{number}" for number in range(NAMES)]
    pairs = [[TaskKey(at, name, name) for at in times] for name in names]
    keys = [key for pair in pairs for key in pair]

    def states():
        return {key: scheduler.task(key).status().state for key in keys}

    eventually(lambda: set(states().values()) <= {"succeeded", "duplicate"}, PATIENCE, "all have ended")
    found = states()
    assert [sorted(found[key] for key in pair) for pair in pairs] == [["duplicate", "succeeded"]] * NAMES
    ran = [run.key for run in deployment.history("race-")]
    assert sorted(ran) == sorted(key for key in keys if found[key] == "succeeded")


def test_a_duplicate_says_who_has_its_name_and_the_name_is_free_after_a_cancel(deployment, scheduler):
    options = {"ordering_id": "names", "uniqueness_key": "poster", "unique": "open"}
    far = scheduler.enqueue("work", {"ms": 0}, delay="30d", **options)
    second = scheduler.enqueue("work", {"ms": 0}, **options)
    with pytest.raises(TaskFailed, match="duplicate") as refused:
        second.result(timeout=PATIENCE)
    assert str(far.key) in str(refused.value)
    assert (second.status().state, second.status().attempts) == ("duplicate", 0)
    assert far.cancel(timeout="60s")
    third = scheduler.enqueue("work", {"ms": 0}, **options)
    third.result(timeout=PATIENCE)
    assert [run.key for run in deployment.history("names")] == [third.key]


def test_http_bulks_and_the_command_line_ask_for_unique_names_alike(deployment, scheduler):
    wire = Wire(deployment.process.ready()["api"])
    holder = scheduler.enqueue("work", {"ms": 0}, delay="30d", ordering_id="faces", uniqueness_key="poster")
    task = {"handler": "work", "payload": {"ms": 0}, "ordering_id": "faces", "uniqueness_key": "poster"}
    posted = wire("POST", "/v1/tasks?unique=open", task)["id"]
    bulk, counts = wire("POST", "/v1/tasks:bulk", lines=[task | {"unique": "open", "delay": "1s"}])
    assert counts == {"accepted": 1, "refused": 0}
    words = ["work", "--ordering-id", "faces", "--uniqueness-key", "poster", "--unique", "--delay", "2s"]
    called = deployment.call("task", "enqueue", *words)
    assert called.returncode == 0, called.stderr
    (key,) = called.stdout.split()
    for name in (posted, bulk["id"]):
        wire.becomes(name, "duplicate")
    waited = deployment.call("task", "wait", key, "--timeout", "2m")
    assert "duplicate" in waited.stderr, waited.stdout
    chosen = "/v1/tasks:count?filter=state:duplicate%20lane:faces"
    eventually(lambda: wire("GET", chosen)["matched"] == 3, PATIENCE, "the tables show all three")
    assert holder.cancel(timeout="60s")
    assert deployment.history("faces") == []


def test_a_task_is_shown_cancelled_and_retried_by_its_name_in_all_faces(deployment, scheduler):
    wire = Wire(deployment.process.ready()["api"])
    options = {"ordering_id": "by-name", "uniqueness_key": "poster/1", "unique": "open"}
    first = scheduler.enqueue("work", {"ms": 0}, delay="30d", **options)
    assert scheduler.named_task("poster/1", ordering_id="by-name").key == first.key
    assert TaskKey.parse(wire("GET", "/v1/tasks/name:by-name,poster%2F1")["id"]) == first.key
    cancelled = deployment.call("task", "cancel", "name:by-name,poster%2F1")
    assert (cancelled.returncode, first.status().state) == (0, "cancelled"), cancelled.stderr
    copy = TaskKey.parse(wire("POST", "/v1/tasks/name:by-name,poster%2F1:retry")["id"])
    scheduler.task(copy).result(timeout=PATIENCE)
    second = scheduler.enqueue("work", {"ms": 0}, delay="30d", **options)
    assert scheduler.named_task("poster/1", ordering_id="by-name").key == second.key, "the only open one"
    assert scheduler.named_task("poster/1", ordering_id="by-name").cancel(timeout="60s") == "cancelled"
    shown = deployment.call("task", "show", "name:by-name,poster%2F1")
    assert (shown.returncode, str(second.key) in shown.stderr) == (ExitCode.CONFLICT, True), shown.stderr
    with pytest.raises(ConflictError, match="Several tasks have the name") as refused:
        scheduler.named_task("poster/1", ordering_id="by-name")
    assert refused.value.fields["tasks"] == [str(second.key), str(first.key)]
