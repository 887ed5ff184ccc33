"""Children of a worker, on their own: what their handlers share ends with them."""

import json
from pathlib import Path

import pytest

from scylla_spark.errors import ConflictError
from scylla_spark.worker.handlers import resolved
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.processes import ChildPlace
from tests.support import sample_handlers
from tests.support.http_script import lease_view

pytestmark = pytest.mark.integration


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
    for number, payload in enumerate((json.loads("[" * 700 + "]" * 700), "x")):
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
