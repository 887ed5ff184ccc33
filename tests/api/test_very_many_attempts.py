"""A task that is tried for ever: its attempts come in pages, and how it stands is told without reading them all."""

from __future__ import annotations

import pytest

from scylla_spark.clock import from_us
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.core.tasks.status import DETAILS
from scylla_spark.schemas import ATTEMPTS, TASKS
from tests.support.api_site import Site
from tests.support.delta_tables import append, at, fact, make_filled, task

KEY = TaskKey(at(10), "o", "u")
MANY = 230


@pytest.fixture
def site(tmp_path):
    make_filled(f"{tmp_path}/tables", filled)
    return Site(str(tmp_path))


def filled(path: str) -> None:
    more = {"error_class": "E", "error_stack": "line\n" * 100, "next_at": from_us(at(11))}
    append(path, TASKS, [task(KEY, 1)])
    append(path, ATTEMPTS, [fact(KEY, n, "failed", n, error_message=f"m{n}", **more) for n in range(1, MANY + 1)])


@pytest.fixture
def read(site, monkeypatch):
    """How many facts of attempts are read from the tables at a time."""
    told, ours = [], site.connection.readers.attempts

    def attempts(*given):
        told.append(len(found := ours(*given)))
        return found

    monkeypatch.setattr(site.connection.readers, "attempts", attempts)
    return told


def test_how_it_stands_is_told_by_its_newest_attempts(site, read):
    with site.client() as client:
        told = client.get(f"/v1/tasks/{id_of(KEY)}").json()
        assert client.get(f"/v1/tasks/{id_of(KEY)}/explain").status_code == 200
    assert (told["attempts"], told["error"]["message"], told["state"]) == (MANY, f"m{MANY}", "retry_wait")
    assert max(read) == DETAILS


def test_its_attempts_come_in_pages_the_newest_first(site, read):
    pages, before = [], None
    with site.client() as client:
        while not pages or before is not None:
            more = {} if before is None else {"before": before}
            told = client.get(f"/v1/tasks/{id_of(KEY)}/attempts", params=more).json()
            pages.append([one["attempt"] for one in told["attempts"]])
            before = told["next"]
        few = client.get(f"/v1/tasks/{id_of(KEY)}/attempts?limit=2").json()
        assert client.get(f"/v1/tasks/{id_of(KEY)}/attempts?limit=101").status_code == 422
    assert pages == [list(range(131, 231)), list(range(31, 131)), list(range(1, 31))]
    assert ([one["attempt"] for one in few["attempts"]], few["next"]) == ([229, 230], 229)
    assert max(read) == 101


def test_its_page_shows_the_newest_and_says_how_many_there_are(site, read):
    with site.client() as client:
        page = client.get(f"/ui/tasks/{id_of(KEY)}").text
    assert "Attempts: the newest 100 of 230" in page
    assert ("m131" in page, "m130" in page) == (True, False)
    assert max(read) == 101


def test_the_outputs_of_one_attempt_are_found_by_that_attempt_alone(site, read):
    with site.client() as client:
        assert client.get(f"/v1/tasks/{id_of(KEY)}/attempts/7/outputs").json() == {"outputs": []}
        assert client.get(f"/v1/tasks/{id_of(KEY)}/attempts/{MANY + 1}/outputs").status_code == 404
    assert max(read) <= DETAILS
