"""Names in paths: each that has to be encoded there is the one that is meant, whichever operation it is sent to."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from scylla_spark.core.leases.messages import Answer
from scylla_spark.errors import UnreachableError
from tests.api.test_api_access import give, made
from tests.support.api_site import shorten_patience
from tests.support.openapi_file import FILE

ID = "2026-01-31T09:00:00Z,team%2Fa,team%2Fb"  # percent-encoded wherever it is shown
NAMES = {"key": ID} | dict.fromkeys(("worker", "queue", "name", "ordering_id", "topic"), "team%2Fa")
NUMBERS = dict.fromkeys(("attempt", "number", "partition", "offset"), "1")
PLAIN = NUMBERS | {"lease": "0." + "a" * 32, "id": "0" * 12}  # have no letter that is to be encoded
PATHS = json.loads(FILE.read_text())["paths"]


def sent_for(path: str) -> str:
    """The path with a value in place of each of its parameters."""
    values = PLAIN | NAMES | ({"name": "team%20a.txt"} if "/outputs/" in path else {})
    return re.sub(r"{(\w+)}", lambda found: values[found[1]], path)


@pytest.fixture
def site(tmp_path, monkeypatch):
    shorten_patience(monkeypatch)
    return made(tmp_path)


def faults_of(answer) -> list[str]:
    """Returns what is wrong with an answer, if it shows that a name was not read as it is meant."""
    told = answer.json() if answer.headers["content-type"] == "application/problem+json" else {}
    of_path = [one for one in told.get("errors", ()) if one["place"].startswith("path")]
    lost = told.get("type") in ("/problems/no-such-path", "/problems/no-such-method")
    raw = any(mark in answer.text.replace(ID, "") for mark in ("team%2F", "team%20"))
    return [answer.text] if of_path or lost or raw else []


def listened(site) -> list[object]:
    """Returns what dispatchers are asked from now on; none answers."""
    asked: list[object] = []

    async def nobody(*given):
        asked.extend(given)
        raise UnreachableError("down")

    for name in ("order", "leave", "scarcity", "output", "lines"):
        setattr(site.app.state.api.lease_servers, name, nobody)
    site.app.state.api.leases = SimpleNamespace(call=nobody)
    return asked


def test_an_operation_takes_names_that_are_encoded_in_its_path(site):
    asked, faults = listened(site), {}
    with site.client() as client:
        for path, method in [(path, method) for path, methods in PATHS.items() for method in methods if "{" in path]:
            place = f"{sent_for(path)}?{QUERIES.get(method + path, '')}"
            if found := faults_of(client.request(method, place, **body_of(method, path))):
                faults[f"{method} {path}"] = found
    assert faults == {}
    assert "team%" not in repr((asked, site.connection.sent, site.connection.plan.told)).replace(ID, "")
    assert repr(asked).replace(ID, "team/a").count("team/a") == 7, (
        "sync, leave, drain, stop, lease of a queue and of a task, scale"
    )


QUERIES = {"delete/v1/workers/{worker}": "session=s"}
BODIES = {"/v1/workers/{worker}/sync": {"seq": 1, "session": "s"}}


def body_of(method: str, path: str) -> dict[str, object]:
    return {"json": BODIES.get(path, {})} if "requestBody" in PATHS[path][method] else {}


def test_a_queue_with_a_slash_is_leased_from_and_scaled_by(site):
    asked = []

    async def call(wanted):
        asked.extend(want.queue for want in wanted.wants)
        return Answer(0)

    async def scarcity(queue):
        asked.append(queue)
        raise UnreachableError("down")

    site.app.state.api.leases = SimpleNamespace(call=call)
    site.app.state.api.lease_servers.scarcity = scarcity
    headers = give(site, "lease:team/a", "read", namespaces=["team/"])
    with site.client() as client:
        assert client.post("/v1/queues/team%2Fa/leases", json={}, headers=headers).status_code == 200
        assert client.get("/v1/queues/team%2fa/scale", headers=headers).status_code == 503
        assert client.get("/v1/queues/%ff/scale", headers=headers).status_code == 422
    assert asked == ["team/a", "team/a"]
