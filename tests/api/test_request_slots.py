"""Requests that wait keep nobody from being answered, and what keeps leases is let in however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from scylla_spark.api.http.request_slots import RequestSlots, waiting
from scylla_spark.api.problems import Problem
from scylla_spark.core.leases.messages import Answer, Call
from tests.support.api_site import Client, Site, kind
from tests.support.delta_tables import make
from tests.support.waiting import holds

MOST = 2
WANTS = {"seq": 1, "want": [{"queue": "gpu"}], "wait_ms": 20_000}
TOKEN = {"lease": "0." + "a" * 32}


class NoWork:
    """Dispatchers that have no work: who waits for some waits until the test ends."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.waiting = 0
        self.ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def call(self, call: Call) -> Answer:
        self.calls.append(call)
        if call.until_us > 1_000_000:
            end = asyncio.Event()
            self.ends.append((asyncio.get_running_loop(), end))
            self.waiting += 1
            await end.wait()
        return Answer(0, tuple("ok" for _ in (*call.reports, *call.signs)))

    def end(self) -> None:
        for loop, event in self.ends:
            loop.call_soon_threadsafe(event.set)


@pytest.fixture
def work() -> NoWork:
    return NoWork()


@pytest.fixture
def client(tmp_path, work: NoWork) -> Iterator[Client]:
    make(f"{tmp_path}/tables")
    site = Site(str(tmp_path), max_requests=MOST, max_waiting=MOST)
    site.app.state.api.leases = work
    with site.client() as client:
        yield client


@pytest.fixture
def crowded(client: Client, work: NoWork) -> Iterator[Client]:
    """As many workers wait as may."""
    with ThreadPoolExecutor(MOST) as threads:
        idle = [threads.submit(sync, client, f"idle-{number}") for number in range(MOST)]
        assert holds(lambda: work.waiting == MOST)
        yield client
        work.end()
        assert [one.result(30).status_code for one in idle] == [200] * MOST


def sync(client: Client, worker: str, **more):
    return client.post(f"/v1/workers/{worker}/sync", json=WANTS | {"session": worker} | more)


def test_idle_workers_keep_nobody_from_being_answered(crowded: Client) -> None:
    assert crowded.get("/healthz").status_code == 200
    assert crowded.get("/v1/tasks").status_code == 200
    assert crowded.post("/v1/tasks", json={"handler": "h"}).status_code == 202


def test_who_only_waits_is_told_to_come_again_where_too_many_do(crowded: Client) -> None:
    answers = [sync(crowded, "one-more"), crowded.post("/v1/queues/gpu/leases", json={"wait_ms": 20_000})]
    assert [kind(answer) for answer in answers] == ["/problems/busy"] * 2
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
    assert crowded.post("/v1/queues/gpu/leases", json={}).status_code == 200, "it does not wait"


@pytest.mark.parametrize("path", ["/v1/queues/gpu/leases", f"/v1/tasks/{quote('2026-01-31T09:00:00Z,a,b')}:lease"])
def test_a_request_that_is_told_apart_by_its_name_needs_the_name_of_its_worker(crowded: Client, path: str) -> None:
    refused = crowded.post(path, json={"request_id": "1"})
    assert kind(refused) == "/problems/invalid"
    assert "worker" in refused.text
    assert crowded.post(path, json={"request_id": "1", "worker": "http"}).status_code != 422


TEN_YEARS_MS = 10 * 365 * 24 * 3_600_000


@pytest.mark.parametrize(
    ("body", "place"),
    [({"lease_ms": TEN_YEARS_MS}, "lease_ms"), ({"lease_ms": -1}, "lease_ms"), ({"wait_ms": TEN_YEARS_MS}, "wait_ms"),
     ({"max": -1}, "max"), ({"max": 0}, "max"), ({"max": 1_001}, "max"), ({"max": 2**63}, "max"), ({"max": 1.5}, "max")],
)  # fmt: skip
def test_a_lease_of_ten_years_or_of_less_than_one_task_is_refused(client: Client, work: NoWork, body, place) -> None:
    refused = client.post("/v1/queues/gpu/leases", json=body)
    assert kind(refused) == "/problems/invalid"
    assert [one["place"] for one in refused.json()["errors"]] == [f"body.{place}"]
    if place != "wait_ms" and body != {"max": 0}:  # a session wants nothing while it has no room
        wanted = {"want": [{"queue": "gpu"} | body]}
        assert kind(sync(client, "w", wait_ms=0, **wanted)) == "/problems/invalid"
    assert work.calls == []


@pytest.mark.parametrize(
    "more", [{"held": {"count": 1}}, {"results": [TOKEN | {"outcome": "succeeded"}]}, {"progress": [TOKEN]}]
)
def test_what_keeps_leases_is_let_in_where_too_many_wait(crowded: Client, work: NoWork, more) -> None:
    assert sync(crowded, "one-more", **more).status_code == 200
    assert work.calls[-1].until_us == 1_000_000, "it waits for a moment, so that nobody asks without a pause"
    assert crowded.post("/v1/leases:extend", json={"leases": [TOKEN]}).status_code == 200


def test_a_place_is_free_while_its_request_waits_and_taken_again_afterwards() -> None:
    places = RequestSlots(1)
    with places.taken():
        with waiting(), places.taken(), pytest.raises(Problem), places.taken():
            pass
        with pytest.raises(Problem), places.taken():
            pass
    with places.taken():
        pass


def test_parts_of_a_request_that_wait_together_give_one_place_away() -> None:
    places = RequestSlots(2)
    with places.taken():
        with waiting(), waiting(), places.taken(), places.taken(), pytest.raises(Problem), places.taken():
            pass
        with places.taken(), pytest.raises(Problem), places.taken():
            pass


def test_a_wait_that_outlives_its_request_gives_no_place_away() -> None:
    places = RequestSlots(1)
    with places.taken():
        late = waiting()
        late.__enter__()
    late.__exit__(None, None, None)
    with places.taken(), pytest.raises(Problem), places.taken():
        pass
    with places.taken():
        pass
