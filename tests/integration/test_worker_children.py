"""Children of a worker, on their own: what their handlers share ends with them."""

import json
import os
import signal
from pathlib import Path

import pytest

from scylla_spark import Worker
from scylla_spark.errors import ConflictError, SetupError
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.worker import processes
from scylla_spark.worker.handlers import resolved
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.processes import ChildPlace
from tests.support import sample_handlers
from tests.support.http_script import SyncScript, lease_view


class Told:
    """A `Reporter` that keeps what it is told."""

    def __init__(self) -> None:
        self.reports = []
        self.outputs = []

    def report(self, lease, text):
        self.reports.append(json.loads(text))

    def sign(self, lease, **fields):
        pass

    def output(self, lease, output):
        if output.name == "refused":
            raise ConflictError("The lease is over.")
        self.outputs.append((output.name, output.media_type, Path(output.file).stat().st_size))

    def refuse(self):
        return None


def test_leases_of_a_child_share_what_is_set_up_and_it_is_torn_down_when_the_worker_ends(tmp_path):
    source, told = (sample_handlers.__file__,), Told()
    place = ChildPlace(source, resolved(source))
    place.open()
    for number in (1, 2):
        place.work(Lease(lease_view(number, handler="share", payload={"folder": str(tmp_path)}), told))
    assert list(tmp_path.iterdir()) == []
    place.close()
    (pid, _), (again, calls) = [report["result"] for report in told.reports]
    assert (pid, calls) == (again, 2)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(str(pid), "2")]


def test_payload_that_is_nested_too_deep_for_a_child_fails_its_task_alone():
    source, told = (sample_handlers.__file__,), Told()
    place = ChildPlace(source, resolved(source))
    place.open()
    deep: list[object] = []
    for _ in range(100_000):  # more than any limit that other tests may have set
        deep = [deep]
    for number, payload in enumerate((deep, "x")):
        place.work(Lease(lease_view(number, handler="echo", payload=payload), told))
    place.close()
    assert [report["outcome"] for report in told.reports] == ["failed", "succeeded"]
    assert told.reports[0]["error"]["code"] == "payload_invalid"


def test_files_that_a_handler_in_a_child_leaves_behind_are_sent_by_its_worker_before_it_goes_on():
    source, told = (sample_handlers.__file__,), Told()
    place = ChildPlace(source, resolved(source))
    place.open()
    steps = [["a.txt", "first"], ["large", {"zeros": 2_000_000}], ["../x", "x"]]
    place.work(Lease(lease_view(1, handler="leave_files", payload=steps), told))
    place.work(Lease(lease_view(2, handler="leave_files", payload=[["refused", "x"]]), told))
    place.close()
    assert told.outputs == [("a.txt", "text/plain", 5), ("large", "application/octet-stream", 2_000_000)]
    assert [report["result"] for report in told.reports] == ["ArgumentError", "ArgumentError"]


HALF_SAID = """
import os, socket, struct, time
from scylla_spark import handler
@handler("h")
def h(task):
    if task.payload["half"]:
        for number in map(int, os.listdir("/proc/self/fd")):
            if os.path.exists(f"/proc/self/fd/{number}") and os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                os.write(number, struct.pack("!i", 1_000) + b"half")
        time.sleep(300)
"""


def test_a_child_that_stops_in_the_middle_of_a_message_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(handler_registry, "_registered", {})
    monkeypatch.setattr(processes, "_HALF_SAID_S", 1)
    module, told = tmp_path / "half_said_handlers.py", Told()
    module.write_text(HALF_SAID)
    place = ChildPlace((str(module),), resolved((str(module),)))
    place.open()
    for half in (True, False):
        place.work(Lease(lease_view(int(half), payload={"half": half}), told))
    place.close()
    assert [report["outcome"] for report in told.reports] == ["failed", "succeeded"]
    assert told.reports[0]["error"]["code"] == "child_died"


DYING = """
import multiprocessing, os
from scylla_spark import handler
FLAG = {flag!r}
if multiprocessing.parent_process() and os.path.exists(FLAG):
    os._exit(3)
@handler("h")
def h(task):
    if task.payload.get("n") == 0:
        open(FLAG, "w").close()
        os._exit(9)
    return os.getpid()
"""


@pytest.fixture
def dying(tmp_path, monkeypatch):
    """A module of which no child becomes ready once its first task has killed the first one, and the file that says so."""
    monkeypatch.setattr(handler_registry, "_registered", {})
    flag = tmp_path / "flag"
    module = tmp_path / "dying_handlers.py"
    module.write_text(DYING.format(flag=str(flag)))
    return str(module), flag


def test_a_child_that_dies_before_it_is_ready_says_how(dying):
    module, flag = dying
    flag.touch()
    place = ChildPlace((module,), resolved((module,)))
    with pytest.raises(SetupError, match="exited with code 3 before it was ready"):
        place.open()
    place.close()


def test_no_task_fails_of_a_child_that_never_ran_it(dying):
    with SyncScript(tasks=5) as server:
        worker = Worker(server.url, "q", slots=1)
        with pytest.raises(SetupError, match="exited with code 3 before it was ready"):
            worker.run(dying[0], processes=True, grace="1s")
    failed = [one["lease"] for one in server.results if one["outcome"] == "failed"]
    assert failed == [lease_view(0)["lease"]], "the one that killed its child"
    assert {one["outcome"] for one in server.results[1:]} <= {"yielded"}
    assert server.left, "what else was leased goes back at once"


def test_a_child_that_died_with_nothing_to_do_is_replaced_before_the_next_task(dying):
    module, told = dying[0], Told()
    place = ChildPlace((module,), resolved((module,)))
    place.open()
    for number in (1, 2):
        place.work(Lease(lease_view(number, payload={"n": number}), told))
        os.kill(told.reports[-1]["result"], signal.SIGKILL)
        place._process.join(10)
    place.close()
    assert [report["outcome"] for report in told.reports] == ["succeeded", "succeeded"]
    assert len({report["result"] for report in told.reports}) == 2
