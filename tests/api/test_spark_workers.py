"""Spark workers as operators see them: from the desk of a dispatcher over the API to the command line and the page."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from scylla_spark.cli import one_command
from scylla_spark.config.settings import Settings
from scylla_spark.executors.interface import Shortage
from scylla_spark.services.dispatch.lease_desk import Desk
from tests.support.api_site import Site
from tests.support.delta_tables import make
from tests.support.served_site import served

ROW = {
    "worker": "3f9a0c12d4e5b677", "executor": "4", "host": "node-7.cluster", "state": "running", "tasks": 5, "running": 2,
    "memory_bytes": None, "clock_offset_ms": -86_400_012.5, "clock_error_ms": 0.2, "lacks": ["mail"], "silent_ms": 340,
}  # fmt: skip


class FakePool:
    """A pool of Spark workers."""

    def __init__(self):
        self.drained = []
        self.rows = [ROW]

    def shortage(self):
        return None if self.rows else Shortage("No Spark worker runs.", 0)

    def workers(self):
        return self.rows

    def drain(self, worker_id):
        self.drained.append(worker_id)
        return worker_id == ROW["worker"]


@pytest.fixture
def pool():
    return FakePool()


@pytest.fixture
def site(pool, tmp_path):
    """A deployment whose dispatcher has this pool."""
    make(f"{tmp_path}/tables")
    mailbox = SimpleNamespace(post=lambda message: message(0))
    engine = SimpleNamespace(sessions=(), cut_off=lambda now: None)
    desk = Desk(
        Settings(_env_file=None, data_dir=tmp_path), mailbox, engine, lambda: 1 << 62, on_workers=lambda: [pool]
    )
    desk.start()
    found = Site(str(tmp_path))
    desks = found.app.state.api.lease_servers
    desks._look = lambda: dict.fromkeys(range(desks.partitions), desk.address)
    yield found
    desk.stop()


def test_the_api_lists_spark_workers_and_drains_one(site, pool):
    with site.client() as client:
        assert client.get("/v1/spark-workers").json() == {"workers": [ROW], "missing": []}
        told = client.post(f"/v1/spark-workers/{ROW['worker']}:drain")
        assert (told.status_code, told.json()) == (200, {"worker": ROW["worker"], "order": "drain"})
        assert client.post("/v1/spark-workers/nobody:drain").status_code == 404
        pool.rows = []
        assert client.get("/v1/spark-workers").json() == {"workers": [], "missing": ["No Spark worker runs."]}
    assert pool.drained == [ROW["worker"], "nobody"]


def test_the_page_shows_spark_workers_and_why_there_is_none(site, pool):
    with site.client() as client:
        page = client.get("/ui/system").text
        assert all(text in page for text in (ROW["worker"], "node-7.cluster", "-86400012.5 ± 0.2 ms"))
        pool.rows = []
        assert "No Spark worker runs." in client.get("/ui/system").text


def test_the_command_line_lists_and_drains(site, pool, capsys):
    with served(site) as url:
        assert one_command.run(["spark-worker", "list", "--url", url]) == 0
        shown = capsys.readouterr().out
        assert all(text in shown for text in (ROW["worker"], "node-7.cluster", "running"))
        assert max(map(len, shown.splitlines())) <= 100
        assert one_command.run(["spark-worker", "drain", ROW["worker"], "--url", url, "-o", "json"]) == 0
        told = capsys.readouterr().out
        told = told[told.index("{") :]  # before it is the audit of the API, which runs in this process
        assert json.loads(told) == {"worker": ROW["worker"], "order": "drain"}
        assert one_command.run(["spark-worker", "drain", "nobody", "--url", url]) != 0
        assert "spark-worker list" in capsys.readouterr().err
