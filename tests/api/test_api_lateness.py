"""The route of lateness, over small tables of our own."""

from __future__ import annotations

import pytest

from scylla_spark.clock import from_us, iso, now_us
from scylla_spark.core.tasks.key import HOUR_US, TaskKey
from scylla_spark.io.delta.lateness import STEP_US
from scylla_spark.schemas import COMPLETIONS, TASKS
from tests.support.api_site import Site, kind
from tests.support.delta_tables import append, fact, make, task


@pytest.fixture
def due():
    return (now_us() - HOUR_US) // STEP_US * STEP_US


@pytest.fixture
def client(tmp_path, due):
    make(f"{tmp_path}/tables")
    ran, waits = TaskKey(due, "a", "k"), TaskKey(due + 1, "b", "k")
    append(f"{tmp_path}/tables", TASKS, [task(ran, 1), task(waits, 2, queue="mail")])
    append(f"{tmp_path}/tables", COMPLETIONS, [fact(ran, 1, "succeeded", 3, started_at=from_us(due + 1_500))])
    with Site(str(tmp_path)).client() as client:
        yield client


def test_the_last_day_is_told_by_queue(client, due):
    found = client.get("/v1/lateness").json()
    ran, waits = found["cells"]
    assert ran == {
        "queue": "default", "at": iso(due), "started": 1, "p50_ms": 1.5, "p99_ms": 1.5, "worst_ms": 1.5, "open": 0, "open_ms": None,
    }  # fmt: skip
    assert (waits["queue"], waits["started"], waits["p50_ms"], waits["open"]) == ("mail", 0, None, 1)
    assert 3_600_000 <= waits["open_ms"] < 2 * 3_600_000
    assert found["step_ms"] == 300_000


def test_a_queue_and_a_window_can_be_asked_for(client, due):
    assert [one["queue"] for one in client.get("/v1/lateness?queue=mail").json()["cells"]] == ["mail"]
    assert client.get("/v1/lateness?queue=other").json()["cells"] == []
    later = {"from": iso(due + STEP_US)}
    assert client.get("/v1/lateness", params=later).json()["cells"] == []


@pytest.mark.parametrize(
    "window", [{"from": "2099-01-01T00:00:00Z"}, {"from": "2020-01-01T00:00:00Z"}, {"from": "then"}]
)
def test_windows_that_are_empty_wide_or_unreadable_are_refused(client, window):
    assert kind(client.get("/v1/lateness", params=window)) == "/problems/invalid"


def test_of_many_queues_the_latest_are_told_of(client):
    found = client.get("/v1/lateness?most_queues=1").json()
    assert (found["queues"], [one["queue"] for one in found["cells"]]) == (2, ["mail"])
