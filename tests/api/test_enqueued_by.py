"""Who enqueued a task over HTTP: the name of the token, signed; anything else is shown as what it is, a claim."""

from __future__ import annotations

import json

import pytest

from scylla_spark.clock import now_us
from scylla_spark.core.records.command import Command, validate
from scylla_spark.core.records.enqueued_by import is_proven
from scylla_spark.core.tasks.key import HOUR_US, TaskKey, id_of
from scylla_spark.schemas import COMPLETIONS, TASKS
from tests.api.test_api_access import give
from tests.support.api_site import Site, kind
from tests.support.delta_tables import append, fact, make_filled, task

ENDED = TaskKey(now_us() - HOUR_US, "lane", "ended")
OPEN = TaskKey(now_us() + HOUR_US, "lane", "open")
CLAIM = {"name": "Backup", "description": "nightly", "enqueued_by": "root", "proof": "0" * 32}


def filled(path: str) -> None:
    append(path, TASKS, [task(ENDED, 1, about=CLAIM), task(OPEN, 2, about=CLAIM)])
    append(path, COMPLETIONS, [fact(ENDED, 1, "failed", 2)])


@pytest.fixture
def site(tmp_path):
    make_filled(f"{tmp_path}/tables", filled)
    return Site(str(tmp_path))


def sent(site: Site) -> list[Command]:
    """The tasks that were sent, as their records say."""
    rules = site.connection.rules
    records = site.connection.sender.judged
    return [validate(one.partition, 0, now_us(), one.key, one.value, rules) for one in records]


def test_a_task_bears_the_name_of_the_token_whichever_way_it_is_sent(site):
    ann = give(site, "admin", name="ann\n")
    body = {"handler": "h", "payload": {"a": 1.0}}
    with site.client() as client:
        client.headers = ann

        def asked(method, path, **more):
            answer = client.request(method, path, headers=ann | more.pop("headers", {}), **more)
            assert answer.status_code < 300, answer.text

        asked("POST", "/v1/tasks", json=body | {"name": "Invoices", "description": "of May"})
        asked("PUT", f"/v1/tasks/{OPEN._replace(uniqueness_key='new')}", json=body)
        asked("POST", "/v1/tasks:bulk", content=json.dumps(body), headers={"content-type": "application/x-ndjson"})
        asked("POST", f"/v1/tasks/{ENDED}:retry")
        asked("POST", "/v1/tasks:retry?filter=key:ended")
    found = sent(site)
    assert len(found) == 5
    assert [one.about.enqueued_by for one in found] == ["ann"] * 5
    assert all(is_proven(one, site.connection.known_secret) for one in found)
    assert [one.about.name for one in found] == ["Invoices", None, None, "Backup", "Backup"]


def test_without_tokens_nobody_is_known(site):
    with site.client() as client:
        assert client.post("/v1/tasks", json={"handler": "h"}).status_code == 202
        assert client.post("/v1/tasks", json={"handler": "h", "name": "a"}).status_code == 202
    assert [one.about and one.about.enqueued_by for one in sent(site)] == [None, None]


@pytest.mark.parametrize("field", ["enqueued_by", "about"])
def test_no_body_can_say_who_enqueues_it(site, field):
    with site.client() as client:
        assert kind(client.post("/v1/tasks", json={"handler": "h", field: "root"})) == "/problems/invalid"


@pytest.mark.parametrize("more", [{"name": ""}, {"name": "x" * 201}, {"description": "x" * 2_001}])
def test_what_is_too_long_or_empty_is_refused(site, more):
    with site.client() as client:
        assert kind(client.post("/v1/tasks", json={"handler": "h"} | more)) == "/problems/invalid"


def test_a_claim_of_a_record_is_shown_as_unverified_and_the_word_of_a_token_as_verified(site):
    ann = give(site, "admin", name="ann")
    with site.client() as client:
        claimed = client.get(f"/v1/tasks/{OPEN}", headers=ann).json()
        assert client.post("/v1/tasks", json={"handler": "h"}, headers=ann).status_code == 202
        (one,) = sent(site)
        site.connection.log_reader.commands = lambda partition, key: [one]
        proven = client.get(f"/v1/tasks/{one.key}", headers=ann).json()
        listed = client.get("/v1/tasks?filter=enqueued_by:root name:Backup", headers=ann).json()["tasks"]
    names = ("name", "description", "enqueued_by", "enqueued_by_verified")
    assert [claimed[name] for name in names] == ["Backup", "nightly", "root", False]
    assert [proven[name] for name in names] == [None, None, "ann", True]
    assert [(row["name"], row["enqueued_by"]) for row in listed] == [("Backup", "root")] * 2


def test_the_page_of_a_task_shows_its_texts_and_that_a_claim_is_unverified(site):
    with site.client() as client:
        page = client.get(f"/ui/tasks/{id_of(OPEN)}").text
    assert "Backup" in page
    assert "nightly" in page
    assert "root</bdi></a> (unverified)" in page
