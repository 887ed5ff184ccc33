"""Routes of queues, in front of a real planner without brokers."""

from __future__ import annotations

import pytest

from scylla_spark.core.key import TaskKey
from scylla_spark.schemas import TASKS
from tests.support.api_site import Site, kind
from tests.support.delta_tables import append, at, make, task


@pytest.fixture
def site(tmp_path):
    make(f"{tmp_path}/tables")
    append(f"{tmp_path}/tables", TASKS, [task(TaskKey(at(10), "o", str(n)), n, queue="mail") for n in range(3)])
    return Site(str(tmp_path))


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def test_a_queue_is_put_changed_paused_and_deleted(client):
    put = client.put("/v1/queues/mail", json={"concurrency": 5, "max_retries": None})
    assert (put.status_code, put.json()["source"], put.json()["definition"]["maxRetries"]) == (201, "stored", None)
    assert kind(client.put("/v1/queues/mail", json={})) == "/problems/if-match-needed"
    changed = client.request("PATCH", "/v1/queues/mail?unset=max_retries", json={"rate": 10, "concurrency": None})
    assert (
        changed.json()["fields"]["rate"],
        changed.json()["fields"]["concurrency"],
        "maxRetries" in changed.json()["definition"],
    ) == (10, None, False)
    assert (
        kind(client.put("/v1/queues/mail", json={}, headers={"If-Match": put.headers["etag"]})) == "/problems/changed"
    )
    assert client.post("/v1/queues/mail:pause").json()["fields"]["paused"] is True
    resumed = client.post("/v1/queues/mail:resume")
    assert resumed.json()["fields"]["paused"] is False
    assert (
        client.put("/v1/queues/mail", json={"rate": 1}, headers={"If-Match": resumed.headers["etag"]}).status_code
        == 200
    )
    assert [one["name"] for one in client.get("/v1/queues").json()["queues"]] == ["mail"]
    assert client.request("DELETE", "/v1/queues/mail").json() == {"name": "mail", "change": "removed"}
    assert kind(client.get("/v1/queues/mail")) == "/problems/not-found"
    assert kind(client.request("DELETE", "/v1/queues/mail")) == "/problems/not-found"


@pytest.mark.parametrize("name", ["team/mail", "a:pause", "x:y"])
def test_names_may_hold_what_paths_set_apart(client, name):
    from urllib.parse import quote

    path = f"/v1/queues/{quote(name, safe='')}"
    assert client.put(path, json={"rate": 2}).status_code == 201
    assert client.get(path).json()["name"] == name


@pytest.mark.parametrize(
    ("body", "told"),
    [({"concurrncy": 5}, "concurrency"), ({"concurrency": 0}, "concurrency"), ({"name": "b"}, "name"), ([], "body")],
)
def test_a_definition_that_is_none_is_told_with_its_field(client, body, told):
    answer = client.put("/v1/queues/mail", json=body)
    assert (kind(answer), told in answer.text) == ("/problems/invalid", True), answer.text


def test_tasks_are_counted(client):
    assert client.get("/v1/queues/mail/stats").json() == {"name": "mail", "states": {"scheduled": 3}}
