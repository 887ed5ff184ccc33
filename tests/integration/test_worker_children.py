"""Children of a worker, on their own: what their handlers share ends with them."""

import json

import pytest

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

    def report(self, lease, text):
        self.reports.append(json.loads(text))

    def sign(self, lease, **fields):
        pass

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
