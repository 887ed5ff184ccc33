"""Files that a handler leaves behind can be had by everybody who may read its task, whatever became of the attempt."""

from __future__ import annotations

import hashlib
import json
import subprocess
import urllib.request
from urllib.parse import quote

import pytest

from scylla_spark import Queue, TaskKey, Worker
from scylla_spark.core.tasks.key import id_of
from scylla_spark.errors import ArgumentError
from tests.acceptance.place import PATIENCE, now
from tests.support.waiting import eventually


def test_files_of_each_attempt_can_be_listed_read_and_saved_also_of_one_that_died(
    deployment, scheduler, foreign, tmp_path
):
    key = TaskKey(now(), "leaves", "1")
    foreign.put(key, {}, handler="leave", retry={"maxRetries": 3, "baseMs": 200, "capMs": 200})
    foreign.flush()
    deployment.recorded([key])
    found = eventually(lambda: _all(scheduler, key), PATIENCE, "both attempts have their links")
    assert [(one.attempt, one.name) for one in found] == [
        (1, "Übersicht.txt"), (1, "large.bin"), (2, "Übersicht.txt"), (2, "large.bin"),
    ]  # fmt: skip
    assert [one.read().decode() for one in found[::2]] == ["of attempt 1", "of attempt 2"]

    address = f"{deployment.api}/v1/tasks/{id_of(key)}/attempts/1/outputs"
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        links = json.load(answer)["outputs"]
    with urllib.request.urlopen(f"{address}/{quote('large.bin')}", timeout=PATIENCE) as answer:
        assert hashlib.sha256(answer.read()).hexdigest() == links[1]["sha256"]
        assert answer.headers["Content-Disposition"].startswith("attachment")

    command = deployment.command("task", "outputs", str(key), "--save", str(tmp_path / "copies"))
    subprocess.run(command, env=deployment.environment, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "copies" / "Übersicht.txt").read_text() == "of attempt 2"

    def stored():
        rows = deployment.rows("completions")
        mine = rows.filter(rows["ordering_id"] == "leaves")
        return json.loads(mine["outputs"][0]) if len(mine) else None

    assert eventually(stored, PATIENCE, "the links are in the table") == [
        one.link._asdict() for one in found if one.attempt == 2
    ]


def test_files_of_a_leased_worker_are_kept_while_it_holds_its_lease(deployment, scheduler, tmp_path):
    scheduler.put_queue(Queue(name="leaves", mode="pull"))
    source = tmp_path / "source"
    source.write_bytes(bytes(2_000_000))
    handle = scheduler.enqueue(None, {}, queue="leaves")
    for lease in Worker(deployment.api, "leaves").leases(1, idle="60s"):
        lease.output("ü 1.bin", source)
        lease.output("note.txt", "done")
        lease.complete()
        assert lease.recorded(PATIENCE)
        with pytest.raises(ArgumentError, match="over"):
            lease.output("late", "x")
        break
    found = eventually(handle.outputs, PATIENCE, "its links are there")
    assert [(one.name, one.link.bytes, one.link.media_type) for one in found] == [
        ("ü 1.bin", 2_000_000, "application/octet-stream"), ("note.txt", 4, "text/plain"),
    ]  # fmt: skip
    assert found[1].read() == b"done"


def _all(scheduler, key):
    found = scheduler.task(key).outputs()
    return found if len(found) == 4 else None
