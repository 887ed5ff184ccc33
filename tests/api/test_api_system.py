"""Routes about the deployment, over small tables of our own and without brokers."""

from __future__ import annotations

import pytest

from scylla_spark.core.access.token_text import digest_of, new_token
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.delta.newest_commits import newest_commits
from scylla_spark.schemas import PROGRESS, TASKS
from tests.support.api_site import Site, kind
from tests.support.delta_tables import PARTITIONS, append, at, make_filled, task

MERGE = {
    "timestamp": 1_795_390_464_006, "operation": "MERGE", "version": 4,
    "operationMetrics": {
        "numSourceRows": "1312", "numOutputRows": "1397", "numTargetFilesAdded": "3", "numTargetFilesRemoved": "2",
        "executionTimeMs": "12010", "materializeSourceTimeMs": "579", "scanTimeMs": "8267", "rewriteTimeMs": "3135",
    },
}  # fmt: skip


@pytest.fixture
def site(tmp_path):
    make_filled(f"{tmp_path}/tables", filled)
    return Site(str(tmp_path))


def filled(path: str) -> None:
    append(path, TASKS, [task(TaskKey(at(10), "a", "k"), 1)])


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def test_partitions_are_listed_also_while_kafka_does_not_answer(client, site, tmp_path):
    mark = {"topic": "tasks", "partition_id": 1, "next_offset": 7, "closed_hour": 3, "open_hours": [1, 2]}
    append(f"{tmp_path}/tables", PROGRESS, [mark])
    found = client.get("/v1/system/partitions").json()
    assert [one["partition"] for one in found["partitions"]] == list(range(PARTITIONS))
    one = found["partitions"][1]
    assert (one["tasks_behind"], one["owner"], one["open_hours"]) == (None, None, 2)
    assert one["closed_until"] == "1970-01-01T03:00:00Z"
    assert "did not answer" in found["unreachable"]


def test_tables_are_listed_with_their_sizes(client):
    found = {one["table"]: one for one in client.get("/v1/system/tables").json()["tables"]}
    assert found["tasks"]["rows"] == 1
    assert found["completions"]["rows"] == 0


def test_the_newest_commits_come_first(client):
    found = client.get("/v1/system/commits?limit=3").json()["commits"]
    assert len(found) == 3
    assert (found[0]["table"], found[0]["operation"], found[0]["rows"], found[0]["files_added"]) == (
        "tasks",
        "WRITE",
        1,
        1,
    )
    assert found == sorted(found, key=lambda one: one["at"], reverse=True)


def test_a_merge_tells_its_phases(site):
    reader = site.connection.readers
    reader.history = lambda table, limit: [MERGE] if table is TASKS else []
    (found,) = newest_commits(reader, 5)
    assert found == {
        "table": "tasks", "version": 4, "at_us": 1_795_390_464_006_000, "operation": "MERGE", "rows": 1312, "files_added": 3,
        "files_removed": 2, "ms": 12010, "phases": {"materialize": 579, "scan": 8267, "rewrite": 3135},
    }  # fmt: skip


@pytest.mark.parametrize(
    "said", [{}, {"operationMetrics": None}, {"operationMetrics": {"numOutputRows": "many"}, "timestamp": "?"}]
)
def test_a_commit_that_says_nothing_is_listed_all_the_same(site, said):
    reader = site.connection.readers
    reader.history = lambda table, limit: [said] if table is TASKS else []
    (found,) = newest_commits(reader, 5)
    assert (found["operation"], found["rows"], found["at_us"], found["phases"]) == ("unknown", None, 0, {})


def test_tokens_are_listed_without_secrets_to_those_who_may_all(client, site):
    token = new_token()
    fields = {"id": token.id, "digest": digest_of(token), "name": "ci", "scopes": ["read"]}
    site.connection.plan.ask("put_token", tokens=[fields])
    headers = {"Authorization": f"Bearer {token.text}"}
    assert kind(client.get("/v1/tokens", headers=headers)) == "/problems/forbidden"
    boss = new_token()
    site.connection.plan.ask(
        "put_token", tokens=[{"id": boss.id, "digest": digest_of(boss), "name": "boss", "scopes": ["admin"]}]
    )
    answer = client.get("/v1/tokens", headers={"Authorization": f"Bearer {boss.text}"})
    listed = {one["name"]: one for one in answer.json()["tokens"]}
    assert (listed["ci"]["id"], listed["ci"]["state"], listed["ci"]["scopes"]) == (token.id, "active", ["read"])
    assert token.text.split("_")[2] not in answer.text
