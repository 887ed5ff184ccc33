"""Routes of queues, in front of a real planner without brokers."""

from __future__ import annotations

import pytest

from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from tests.support.api_site import Site, kind
from tests.support.delta_tables import PARTITIONS, append, at, fact, make_filled, task


@pytest.fixture
def site(tmp_path):
    make_filled(f"{tmp_path}/tables", filled)
    return Site(str(tmp_path))


def filled(path: str) -> None:
    append(path, TASKS, [task(TaskKey(at(10), "o", str(n)), n, queue="mail") for n in range(3)])


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
    assert client.request("DELETE", "/v1/queues/mail").json() == {"name": "mail", "change": "removed", "warning": None}
    client.put("/v1/queues/gpu", json={"mode": "pull"})
    assert "run by dispatchers" in client.request("DELETE", "/v1/queues/gpu").json()["warning"]
    assert kind(client.get("/v1/queues/mail")) == "/problems/not-found"
    assert kind(client.request("DELETE", "/v1/queues/mail")) == "/problems/not-found"


def test_a_put_that_is_repeated_changes_nothing(client):
    put = client.put("/v1/queues/mail", json={"concurrency": 5})
    again = client.put("/v1/queues/mail", json={"concurrency": 5})
    assert (again.status_code, again.headers["etag"]) == (200, put.headers["etag"])
    assert kind(client.put("/v1/queues/mail", json={"concurrency": 6})) == "/problems/if-match-needed"


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


NONE = {"enqueued": 3, "states": {"scheduled": 3}, "started": 0, "retries": 0, "expired_leases": 0, "completed": 0}


def test_tasks_are_counted_in_total_and_by_partition(client):
    found = client.get("/v1/queues/mail/stats").json()
    (part,) = found.pop("partitions")
    assert found == {"name": "mail"} | NONE
    assert part == {"partition": partition_of("o", PARTITIONS)} | NONE


def test_what_was_handed_out_came_again_and_has_ended_is_counted(client, site):
    first, second, third = (TaskKey(at(10), "o", str(n)) for n in range(3))
    expired = fact(first, 1, "timed_out", 1, error_class="lease_expired")
    append(
        site.connection.settings.tables_path,
        ATTEMPTS,
        [expired, expired, fact(second, 1, "failed", 2, error_class="KeyError")],
    )
    ends = [fact(first, 2, "succeeded", 3), fact(second, 2, "failed", 4), fact(third, 0, "cancelled", 5)]
    append(site.connection.settings.tables_path, COMPLETIONS, ends)
    found = client.get("/v1/queues/mail/stats").json()
    assert found["states"] == {"cancelled": 1, "failed": 1, "succeeded": 1}
    assert [found[name] for name in ("enqueued", "started", "retries", "expired_leases", "completed")] == [
        3,
        2,
        2,
        1,
        2,
    ]


def test_of_a_queue_without_tasks_everything_is_none(client):
    found = client.get("/v1/queues/nobody/stats").json()
    assert (found["enqueued"], found["states"], found["partitions"]) == (0, {}, [])


def test_a_queue_is_cleared_after_a_count(client, site):
    assert client.post("/v1/queues/mail:clear?dry_run=true").json() == {"matched": 3, "sent": 0, "dry_run": True}
    assert site.connection.sender.records == []
    assert client.post("/v1/queues/mail:clear").json() == {"matched": 3, "sent": 3, "dry_run": False}
    assert client.post("/v1/queues/other:clear?running=true").json() == {"matched": 0, "sent": 0, "dry_run": False}
