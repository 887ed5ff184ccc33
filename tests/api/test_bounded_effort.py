"""No request about schedules computes for minutes, whatever their definitions are: looks at their rules are counted."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest
from anyio import to_thread
from starlette.requests import ClientDisconnect

from scylla_spark.api import problems
from scylla_spark.api.access.required_scopes import NEEDS, About
from scylla_spark.api.http import effort
from scylla_spark.api.http.effort import bounded_effort
from scylla_spark.api.problems import Problem
from scylla_spark.core.plan.times import fire_times
from tests.support.api_site import Site, kind
from tests.support.delta_tables import make

MOST_EVALUATIONS, LONG_EVALUATIONS = 6_000, 2_000
CRONS = [f"{number % 60} {number // 60} * * *" for number in range(500)]
HOSTILE = {
    "handler": "report",
    "trigger": {"kind": "cron", "expression": CRONS, "tz": "Europe/Berlin", "calendar": "de", "gap": "skip"},
}
MINE = "/v1/schedules/mine"
NEXT_MONTH = {"begin": "2027-01-01T00:00:00Z", "end": "2027-01-03T00:00:00Z", "dry_run": True}
REQUESTS = {
    "list_schedules": ("GET", "/v1/schedules?state=active", None),
    "get_schedule": ("GET", MINE, None),
    "list_next_times": ("GET", f"{MINE}:next?count=10000", None),
    "list_previous_times": ("GET", f"{MINE}:previous?count=10000", None),
    "explain_schedule": ("GET", f"{MINE}:explain?at=2027-01-01T00:00:00Z", None),
    "backfill_schedule": ("POST", f"{MINE}:backfill", NEXT_MONTH),
    "put_schedule": ("PUT", "/v1/schedules/other", HOSTILE),
    "apply_schedules": ("POST", "/v1/schedules:apply", {"schedules": [HOSTILE | {"name": "other"}]}),
    "resume_schedule": ("POST", f"{MINE}:resume", None),
    "put_calendar": ("PUT", "/v1/calendars/de", {"days": ["2027-01-01"]}),
}


@pytest.fixture(autouse=True)
def less(monkeypatch):
    """Requests may look less often, so that tests take less time."""
    monkeypatch.setattr(effort, "MOST_EVALUATIONS", MOST_EVALUATIONS)
    assert effort.LONG_EVALUATIONS == LONG_EVALUATIONS


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("effort")
    make(f"{folder}/tables")
    made = Site(str(folder))
    days = [f"{year}-{month:02}-{day:02}" for year in (2026, 2027) for month in range(1, 13) for day in range(1, 29, 2)]
    made.connection.plan.ask("calendar", name="de", days=days)
    made.connection.plan.ask("put", schedules=[HOSTILE | {"name": "mine"}])
    return made


@pytest.fixture
def looks(monkeypatch):
    """Counts looks at rules of requests."""
    counted = [0]

    def counts(self):
        counted[0] += 1
        spend(self)

    spend = effort._Effort.spend
    monkeypatch.setattr(effort._Effort, "spend", counts)
    return counted


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_request_about_a_schedule_of_500_expressions_and_a_calendar_ends(site, looks, operation):
    method, path, body = REQUESTS[operation]
    with site.client() as client:
        answer = client.request(method, path, json=body)
    assert answer.status_code in (200, 201, 409) or kind(answer) == "/problems/invalid"
    assert looks[0] <= MOST_EVALUATIONS


def test_each_operation_that_reads_the_times_of_a_schedule_is_tried():
    about = {name for name, need in NEEDS.items() if need.about is About.PATH_SCHEDULE}
    without_times = {
        "list_schedule_fires", "list_backfills", "delete_schedule", "pause_schedule",
        "run_schedule", "pause_backfill", "resume_backfill", "cancel_backfill",
    }  # fmt: skip
    assert about - without_times <= REQUESTS.keys()


def test_the_next_times_of_a_schedule_of_500_expressions_and_a_calendar_take_a_few_looks(site, looks):
    with site.client() as client:
        answer = client.get(f"{MINE}:next")
    assert sum(row["fires"] for row in answer.json()["times"]) == 5
    assert looks[0] < LONG_EVALUATIONS


def test_a_list_of_hostile_schedules_comes_whole_and_the_next_one_costs_nothing(site, looks):
    many = [HOSTILE | {"name": f"many-{number:03}"} for number in range(20)]
    site.connection.plan.ask("put", schedules=many)
    looks[0] = 0
    with site.client() as client:
        found = client.get("/v1/schedules").json()["schedules"]
        first = looks[0]
        assert len(found) > len(many)
        assert all(one["next_at"] for one in found)
        assert found[0]["next_at"] == client.get(f"{MINE}:next?count=1").json()["times"][-1]["planned_at"]
        assert first <= MOST_EVALUATIONS + len(many), "once it is too much, rules are not looked at"
        looks[0] = 0
        assert client.get("/v1/schedules?limit=10").status_code == 200
        assert looks[0] == 0, "they are kept until they have come"


def spent_in_a_thread(looks: int, *, gone: bool = False) -> None:
    """Takes so many looks in a thread, for a client that has gone or not."""

    async def is_gone() -> bool:
        return gone

    async def serve() -> None:
        with bounded_effort(SimpleNamespace(is_disconnected=is_gone)):
            await to_thread.run_sync(lambda: [fire_times.spend() for _ in range(looks)])

    anyio.run(serve)


def test_what_is_too_much_is_refused_and_the_next_request_is_served():
    with pytest.raises(Problem) as refused:
        spent_in_a_thread(MOST_EVALUATIONS)
    assert refused.value.kind is problems.INVALID
    spent_in_a_thread(MOST_EVALUATIONS - 1)
    fire_times.spend()  # where there is no request, nothing is counted


def test_work_ends_with_the_client():
    spent_in_a_thread(LONG_EVALUATIONS - 1, gone=True)
    with pytest.raises(ClientDisconnect):
        spent_in_a_thread(LONG_EVALUATIONS, gone=True)


def test_long_lists_of_times_are_computed_one_at_a_time():
    with effort._turn:
        with pytest.raises(Problem) as refused:
            spent_in_a_thread(LONG_EVALUATIONS)
        assert refused.value.kind is problems.BUSY
        spent_in_a_thread(LONG_EVALUATIONS - 1)
    spent_in_a_thread(LONG_EVALUATIONS)
