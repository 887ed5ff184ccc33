"""Equal requests of several clients that store a definition at the same time: none is refused, whatever another has just stored."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from scylla_spark.api.context import PLANNING_THREADS
from tests.support.api_site import Site
from tests.support.delta_tables import make

CLIENTS = PLANNING_THREADS  # so many are carried out at once
NIGHTLY = {"handler": "report", "cron": "0 2 * * *", "tz": "Europe/Berlin"}
RULE = {"when": ["failed"], "channel": "ops"}


@pytest.mark.parametrize(
    ("method", "path", "body", "first"),
    [
        ("PUT", "/v1/schedules/new", NIGHTLY, 201),
        ("PATCH", "/v1/schedules/stored", {"note": "x"}, 200),
        ("PUT", "/v1/queues/new", {"concurrency": 5}, 201),
        ("PATCH", "/v1/queues/stored", {"rate": 7}, 200),
        ("PUT", "/v1/notifications/rules/new", RULE, 201),
        ("PUT", "/v1/calendars/new", {"days": ["2027-01-01"]}, 200),
        ("POST", "/v1/schedules:apply", {"schedules": [NIGHTLY | {"name": "new"}]}, 200),
    ],
)
def test_equal_requests_at_the_same_time_are_all_carried_out(tmp_path, method, path, body, first):
    make(f"{tmp_path}/tables")
    site = Site(str(tmp_path))
    ask, lock, all_have_looked = site.connection.plan.ask, threading.Lock(), threading.Barrier(CLIENTS, timeout=30)

    def ask_together(kind, **fields):
        all_have_looked.wait()  # each has read what is stored before the first one is carried out
        with lock:
            return ask(kind, **fields)

    with site.client() as client, ThreadPoolExecutor(CLIENTS) as pool:
        client.put("/v1/schedules/stored", json=NIGHTLY)
        client.put("/v1/queues/stored", json={"concurrency": 5})
        site.connection.plan.ask = ask_together
        answers = list(pool.map(lambda _: client.request(method, path, json=body), range(CLIENTS)))
    codes = sorted(one.status_code for one in answers)
    assert codes == [200] * (CLIENTS - 1) + [first], [one.text for one in answers]
    assert len({one.headers.get("etag") for one in answers}) == 1
