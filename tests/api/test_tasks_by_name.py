"""Tasks by their names over HTTP: which task a name means, and what is answered if several tasks have it."""

from __future__ import annotations

import pytest

from scylla_spark.client.tasks import by_name
from scylla_spark.core.records.command import CANCEL
from scylla_spark.core.tasks.key import HOUR_US, Name, TaskKey, id_of, name_in
from scylla_spark.errors import ArgumentError
from scylla_spark.schemas import COMPLETIONS, TASKS
from tests.api.test_api_access import give
from tests.support.api_site import Site, kind
from tests.support.delta_tables import append, at, fact, make_filled, task


def named(number: int, unique: str, lane: str = "lane") -> TaskKey:
    return TaskKey(at(10) + number * HOUR_US, lane, unique)


ALONE = named(0, "alone", "a,b/c ü")
OWN_LANE = named(0, "poster-7", "poster-7")
ENDED = named(1, "ended")
OPEN_AGAIN = [named(number, "again") for number in range(3)]
TWICE_OPEN = [named(number, "twice") for number in range(2)]
TWICE_ENDED = [named(number, "past") for number in range(2)]
RAN, DUPLICATE = named(1, "copied"), named(2, "copied")
ONLY_DUPLICATE = named(1, "unlucky")
OTHERS = [named(number, "shared") for number in range(2)]


def filled(path: str) -> None:
    keys = [ALONE, OWN_LANE, ENDED, *OPEN_AGAIN, *TWICE_OPEN, *TWICE_ENDED, RAN, DUPLICATE, ONLY_DUPLICATE]
    rows = [task(key, 1, queue="mail") for key in keys]
    append(path, TASKS, [*rows, task(OTHERS[0], 1, queue="mail"), task(OTHERS[1], 1, queue="secret")])
    ends = dict.fromkeys([ENDED, OPEN_AGAIN[0], OPEN_AGAIN[2], *TWICE_ENDED, RAN], "failed")
    ends |= dict.fromkeys([DUPLICATE, ONLY_DUPLICATE], "duplicate")
    append(path, COMPLETIONS, [fact(key, 1, outcome, 2) for key, outcome in ends.items()])


def made(folder):
    make_filled(f"{folder}/tables", filled)
    return Site(str(folder))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("name:a%2Cb%2Fc%20%C3%BC,alone", ALONE),
        ("name%3Aa%252Cb%252Fc%2520%25C3%25BC%2Calone", ALONE),
        ("name:poster-7", OWN_LANE),
        ("name:poster-7,poster-7", OWN_LANE),
        ("name:lane,ended", ENDED),
        ("name:lane,again", OPEN_AGAIN[1]),
        ("name:lane,copied", RAN),
        ("name:lane,unlucky", ONLY_DUPLICATE),
    ],
)
def test_a_name_means_its_only_open_task_or_its_only_one_that_ran(look, name, key):
    answer = look.get(f"/v1/tasks/{name}")
    assert answer.json().get("id") == id_of(key), answer.text


@pytest.mark.parametrize(("name", "keys"), [("twice", TWICE_OPEN), ("past", TWICE_ENDED)])
@pytest.mark.parametrize("action", ["", ":cancel", ":retry"])
def test_a_name_that_several_tasks_have_is_a_conflict_with_their_list(look, looked_at, name, keys, action):
    answer = look.request("POST" if action else "GET", f"/v1/tasks/name:lane,{name}{action}")
    assert (kind(answer), answer.json()["reason"]) == ("/problems/conflict", "name_not_unique")
    assert answer.json()["tasks"] == [str(key) for key in reversed(keys)]
    assert looked_at.connection.sent == []


@pytest.mark.parametrize("name", ["name:lane,nothing", "name:ended"])
def test_a_name_that_no_task_has_is_not_found(look, name):
    assert kind(look.get(f"/v1/tasks/{name}")) == "/problems/not-found"


@pytest.mark.parametrize("name", ["name:", "name:a,", "name:,a", "name:a,b,c", f"name:{'x' * 1025}", "name:%FF"])
def test_what_is_no_name_is_refused(look, name):
    assert kind(look.get(f"/v1/tasks/{name}")) == "/problems/invalid"


def test_the_text_of_a_name_is_read_as_the_name():
    for name in (Name("lane", "key"), Name("same", "same"), Name("a,b:c", "ü %"), Name("name:x", "name:x")):
        assert name_in(str(name)) == name
    assert name_in("2099-01-02T10:00:00Z,name:a,%C3") is None
    with pytest.raises(ArgumentError, match="is not the name of a task"):
        name_in("name:a,b,c")


def test_the_newest_records_of_a_name_count_also_before_the_tables_have_them(tmp_path):
    site = made(tmp_path)
    with site.client() as client:
        body = {"handler": "h", "ordering_id": "lane", "uniqueness_key": "fresh", "delay": "1h"}
        first = client.post("/v1/tasks", json=body).json()["id"]
        site.connection.log_reader.commands = lambda partition, key: [
            one for one in site.connection.sent if one.key == key
        ]
        assert client.get("/v1/tasks/name:lane,fresh").json()["id"] == first
        assert client.post("/v1/tasks/name:lane,fresh:cancel?wait_ms=0").status_code == 202
        assert [(one.kind, id_of(one.key)) for one in site.connection.sent[1:]] == [(CANCEL, first)]
        second = client.post("/v1/tasks", json=body | {"delay": "2h"}).json()["id"]
        ids = [id_of(TaskKey.parse(one)) for one in client.get("/v1/tasks/name:lane,fresh").json()["tasks"]]
        assert ids == [second, first]
        site.connection.down = True
        assert kind(client.get("/v1/tasks/name:lane,ended")) == "/problems/unreachable"


def test_tasks_in_queues_of_others_do_not_count_for_a_bounded_token(tmp_path):
    site = made(tmp_path)
    everything, mail = give(site, "read"), give(site, "read", namespaces=["mail"])
    foreign = give(site, "read", namespaces=["other"])
    with site.client() as client:
        path = "/v1/tasks/name:lane,shared"
        assert client.get(path, headers=everything).status_code == 409
        assert client.get(path, headers=mail).json()["id"] == id_of(OTHERS[0])
        assert kind(client.get(path, headers=foreign)) == "/problems/not-found"
        assert kind(client.get("/v1/tasks/name:lane,ended", headers=foreign)) == "/problems/not-found"


def test_new_records_in_queues_of_others_are_not_even_looked_at(tmp_path, monkeypatch):
    site, seen = made(tmp_path), []
    monkeypatch.setattr(by_name, "_statuses", lambda _, keys: seen.append(set(keys)) or ())
    enqueues, mail = give(site, "tasks:write"), give(site, "read", namespaces=["mail"])
    with site.client() as client:
        for number, queue in enumerate(["secret", "secret", "mail"]):
            body = {
                "handler": "h",
                "ordering_id": "lane",
                "uniqueness_key": "flood",
                "delay": f"{number + 1}h",
                "queue": queue,
            }
            assert client.post("/v1/tasks", json=body, headers=enqueues).status_code == 202
        client.get("/v1/tasks/name:lane,flood", headers=mail)
    assert seen == [{site.connection.sent[-1].key}]
