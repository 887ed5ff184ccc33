"""The HTTP API of a running deployment: whole lives of tasks and schedules by nothing but HTTP, and clients that harm nobody else."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.acceptance.place import PATIENCE
from tests.support.waiting import eventually


class Api:
    """Asks by HTTP."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, method, path, body=None, *, raw=None, **headers):
        data = raw if raw is not None or body is None else json.dumps(body).encode()
        named = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        request = urllib.request.Request(self.address + path, data, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, _value(answer), answer.headers
        except urllib.error.HTTPError as answer:
            with answer:
                return answer.code, _problem(answer), answer.headers

    @property
    def port(self) -> int:
        return urlsplit(self.address).port


def _problem(answer):
    assert answer.headers["Content-Type"] == "application/problem+json"
    return json.loads(answer.read())


def _value(answer):
    text = answer.read()
    return json.loads(text) if answer.headers["Content-Type"] == "application/json" else text.decode()


@pytest.fixture
def api(deployment):
    return Api(deployment.api)


def later(**span) -> str:
    return (datetime.now(UTC) + timedelta(**span)).isoformat()


def path(key: str, *parts: str) -> str:
    return f"/v1/tasks/{','.join([quote(key, safe=':')] + [quote(part, safe='') for part in parts])}"


def test_the_life_of_a_task(api):
    where = path(later(seconds=-1), "http/life", "a,b%☃")
    status, put, _ = api(
        "PUT", where, {"handler": "work", "payload": {"mark": "life", "failures": 1}, "retry": {"base": "100ms"}}
    )
    assert (status, put["uniqueness_key"], put["receipt"]["offset"].isdigit()) == (202, "a,b%☃", True)
    status, ended, _ = api("GET", f"/v1/tasks/{put['id']}/result?wait_ms=60000")
    assert (status, ended["state"], ended["result"]) == (200, "succeeded", {"mark": "life"})
    status, found, _ = api("GET", where)
    assert (status, found["id"], found["attempts"], found["fresh"]) == (200, put["id"], 2, True)
    _, listed, _ = api("GET", f"{where}/attempts")
    assert [one["outcome"] for one in listed["attempts"]] == ["failed", "succeeded"]
    assert api("GET", f"{where}/explain")[1]["why"] == "It has ended: succeeded."
    status, again, _ = api("PUT", where, {"handler": "says", "payload": {"says": "something else"}})
    assert (status, again["repeated"], again["receipt"]) == (200, True, None)
    before, found = found, api("GET", where)[1]
    assert [found[name] for name in ("payload", "handler", "enqueued_at")] == [
        before[name] for name in ("payload", "handler", "enqueued_at")
    ]
    assert api("POST", f"{where}:cancel")[1]["type"] == "/problems/conflict"
    status, copy, _ = api("POST", f"{where}:retry")
    assert (status, copy["instead_of"]) == (201, put["id"])
    told = api("GET", f"/v1/tasks/{copy['id']}/result?wait_ms=60000")
    assert told[1].get("ended"), told
    assert told[1]["result"] == {"mark": "life"}, "the retry runs what had run"


def test_a_task_that_waits_is_moved_run_now_and_cancelled(api):
    _, put, _ = api("POST", "/v1/tasks", {"handler": "work", "delay": "1h", "ordering_id": "http/waits"})
    status, result, _ = api("GET", f"/v1/tasks/{put['id']}/result?wait_ms=50")
    assert (status, result["ended"], result["state"]) == (202, False, "scheduled")
    status, moved, _ = api("POST", f"/v1/tasks/{put['id']}:reschedule?wait_ms=30000", {"delay": "2h"})
    assert status == 201
    assert api("GET", f"/v1/tasks/{put['id']}")[1]["state"] == "cancelled"
    status, now, _ = api("POST", f"/v1/tasks/{moved['id']}:run_now?wait_ms=30000")
    assert api("GET", f"/v1/tasks/{now['id']}/result?wait_ms=60000")[1]["state"] == "succeeded"
    _, other, _ = api("POST", "/v1/tasks", {"handler": "work", "delay": "1h"})
    status, answer, _ = api("POST", f"/v1/tasks/{other['id']}:cancel?wait_ms=30000")
    assert (status, answer["answer"]) == (200, "cancelled")


def test_an_answer_waits_for_the_end_or_for_the_tables(api):
    status, done, _ = api("POST", "/v1/tasks?wait=done&wait_ms=60000", {"handler": "work", "payload": {"mark": "w"}})
    assert (status, done["result"]) == (200, {"mark": "w"})
    status, failed, _ = api(
        "POST",
        "/v1/tasks?wait=done&wait_ms=60000",
        {"handler": "misbehave", "payload": {"how": "exit"}, "retry": {"max_retries": 0}},
    )
    assert (status, failed["state"], failed["ended"]) == (200, "failed", True)
    task = {"handler": "work", "scheduled_time": later(hours=1), "ordering_id": "http/visible", "uniqueness_key": "1"}

    def look():
        status, told, _ = api("POST", "/v1/tasks?wait=visible&wait_ms=60000", task)
        assert status in (200, 202)
        return told if status == 200 else None

    seen = eventually(look, PATIENCE, "a busy machine may need several waits until the tables hold it")
    assert [one["id"] for one in api("GET", "/v1/tasks?filter=lane:http/visible")[1]["tasks"]] == [seen["id"]]


def test_a_bulk_is_listed_counted_and_cancelled_by_a_filter(api):
    lines = [json.dumps({"handler": "work", "delay": "1h", "ordering_id": f"http/bulk/{n % 3}"}) for n in range(300)]
    _, text, _ = api(
        "POST", "/v1/tasks:bulk", raw="\n".join([*lines, "nonsense"]).encode(), Content_Type="application/x-ndjson"
    )
    *told, counts = map(json.loads, text.splitlines())
    assert counts == {"accepted": 300, "refused": 1}
    assert told[300]["problem"]["type"] == "/problems/invalid"
    chosen = "filter=lane:http/bulk/0,http/bulk/1"
    eventually(lambda: api("GET", f"/v1/tasks:count?{chosen}")[1]["matched"] == 200, 120, "the tables show the bulk")
    found, cursor = [], ""
    while cursor is not None:
        _, page, _ = api("GET", f"/v1/tasks?{chosen}&limit=70{cursor}")
        found += [one["id"] for one in page["tasks"]]
        cursor = f"&cursor={page['next']}" if page["next"] else None
    assert len(found) == len(set(found)) == 200
    assert set(found) < {one.get("id") for one in told}
    tried = api("POST", f"/v1/tasks:cancel?{chosen}&dry_run=true")[1]
    assert tried == {"matched": 200, "sent": 0, "dry_run": True, "undo": None}
    done = api("POST", f"/v1/tasks:cancel?{chosen}")[1]
    assert done | {"undo": ...} == {"matched": 200, "sent": 200, "dry_run": False, "undo": ...}
    assert eventually(lambda: api("GET", f"/v1/tasks/{found[0]}")[1]["state"] == "cancelled", 60, "the cancel counts")
    eventually(
        lambda: api("GET", f"/v1/tasks:count?{chosen}%20state:cancelled")[1]["matched"] == 200, 120, "all are cancelled"
    )
    undone = api("POST", f"/v1/tasks:restore?filter={quote(done['undo'])}")[1]
    assert (undone["matched"], undone["sent"]) == (200, 200)
    eventually(
        lambda: api("GET", f"/v1/tasks:count?{chosen}%20state:scheduled")[1]["matched"] == 200, 120, "all wait again"
    )


def test_what_has_run_is_played_again_under_other_limits(api):
    for n in range(3):
        body = {"handler": "work", "queue": "http-past", "payload": {"mark": "p"}, "uniqueness_key": f"{n}"}
        assert api("POST", "/v1/tasks?wait=done&wait_ms=60000", body)[0] == 200

    def queue(fields):
        rows = api("POST", "/v1/queues/http-past:simulate", fields)[1].get("rows", ())
        return next((row for row in rows if (row["scope"], row["name"]) == ("queue", "http-past")), {"count": 0})

    eventually(lambda: queue({})["count"] == 3, 120, "the tables show what has run")
    assert queue({"paused": True})["never_started"] == 3
    assert queue({"rate": 0.1})["predicted_max_ms"] > 5_000


def test_the_head_of_a_lane_is_skipped(api):
    first = api(
        "POST", "/v1/tasks", {"handler": "work", "delay": "100s", "ordering_id": "http/lane", "uniqueness_key": "1"}
    )[1]
    second = api(
        "POST", "/v1/tasks", {"handler": "work", "delay": "101s", "ordering_id": "http/lane", "uniqueness_key": "2"}
    )[1]
    keys = lambda: [one["id"] for one in api("GET", "/v1/lanes/http%2Flane")[1].get("tasks", ())]  # noqa: E731
    eventually(lambda: keys() == [first["id"], second["id"]], 60, "the lane is loaded")
    assert api("POST", f"/v1/lanes/http%2Flane:skip_head?wait_ms=30000&head={first['id']}")[1]["answer"] == "cancelled"
    eventually(lambda: keys() == [second["id"]], 60, "the next is its head")


def test_the_life_of_a_schedule(api):
    where = "/v1/schedules/http%2Flife"
    status, made, headers = api("PUT", where, {"handler": "work", "every": "1s", "payload": {"mark": "s"}})
    assert (status, made["name"], made["etag"]) == (201, "http/life", headers["ETag"])
    eventually(lambda: api("GET", where)[1]["last_success_at"], 60, "it has run")
    assert api("PUT", where, {"handler": "work", "every": "2s"})[0] == 428
    assert api("PUT", where, {"handler": "work", "every": "2s"}, If_Match='"0.0"')[0] == 412
    assert api("PUT", where, {"handler": "work", "every": "2s"}, If_Match=headers["ETag"])[0] == 200
    status, changed, _ = api("PATCH", where, {"note": "slower", "every": "1h"})
    assert (changed["note"], changed["definition"]["handler"]) == ("slower", "work")
    assert api("POST", f"{where}:pause", {"note": "closing"})[1]["done"] == "paused"
    assert "closing" in " ".join(api("GET", f"{where}:explain")[1]["said"])
    assert api("POST", f"{where}:resume")[1]["done"] == "resumed"
    status, run, _ = api("POST", f"{where}:run", {"payload": {"mark": "by hand"}})
    assert api("GET", f"/v1/tasks/{run['id']}/result?wait_ms=60000")[1]["result"] == {"mark": "by hand"}
    assert "launched" in {one["verdict"] for one in api("GET", f"{where}/fires")[1]["fires"]}
    assert api("DELETE", where)[1]["change"] == "removed"
    assert api("GET", where)[1]["type"] == "/problems/not-found"


def test_an_event_fires_a_schedule(api):
    assert (
        api("PUT", "/v1/schedules/http-event", {"handler": "work", "event": "http-stock", "overlap": "allow_all"})[0]
        == 201
    )
    assert api("POST", "/v1/events", {"name": "http-stock"})[0] == 202
    eventually(lambda: api("GET", "/v1/schedules/http-event")[1]["last_success_at"], 60, "the event was heard")
    api("DELETE", "/v1/schedules/http-event")


@contextlib.contextmanager
def stream(api, last=None):
    """The events of the stream, one after the other: pairs of id and data."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/stream", headers={"Last-Event-ID": last} if last else {})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (200, "text/event-stream")
        assert answer.readline() == b": welcome\n"
        yield pairs(answer)


def pairs(answer):
    name = ""
    while line := answer.readline().decode():
        name = line[4:].strip() if line.startswith("id: ") else name
        if line.startswith("data: "):
            yield name, json.loads(line[6:])


def ends(found, marks):
    """The first events of these lanes, as many as there are lanes."""
    return list(islice((one for one in found if one[1]["ordering_id"] in marks), len(marks)))


def test_the_stream_tells_what_happens_and_goes_on_where_it_broke_off(api):
    marks = [f"http/stream/{n}" for n in range(6)]
    with stream(api) as found:
        for mark in marks:
            assert api("POST", "/v1/tasks?wait=done&wait_ms=60000", {"handler": "work", "ordering_id": mark})[0] == 200
        told = ends(found, marks)
    assert sorted(data["ordering_id"] for _, data in told) == marks
    assert {data["outcome"] for _, data in told} == {"succeeded"}
    left = [data["ordering_id"] for _, data in told[3:]]
    with stream(api, told[2][0]) as found:
        assert {data["ordering_id"] for _, data in ends(found, left)} == set(left)
    begin = ",".join(f"{number}:0.0" for number in range(8))
    with stream(api, begin) as found:
        assert len(ends(found, marks)) == 6, "what memory has let go of comes from the log"
    assert api("GET", "/v1/stream", Last_Event_ID="nonsense")[0] == 422


def test_openapi_and_metrics_are_served(api):
    assert api("GET", "/openapi.json")[1]["openapi"].startswith("3.1")
    assert api("GET", "/readyz")[1] == {"status": "ok"}
    assert "scyllaspark_api_requests_total" in api("GET", "/metrics")[1]


def test_a_deployment_with_all_roles_is_healthy_and_ready_at_its_metrics_port(deployment):
    for path in ("/healthz", "/readyz"):
        eventually(lambda path=path: Api(deployment.metrics)("GET", path)[1] == {"status": "ok"}, 60, path)


# -- clients that harm nobody else ------------------------------------------------------------------------------------------


def quick(api) -> float:
    """Returns how long somebody else waits for an enqueue and a look, in seconds."""
    begun = time.monotonic()
    _, put, _ = api("POST", "/v1/tasks", {"handler": "work", "delay": "1h"})
    assert api("GET", f"/v1/tasks/{put['id']}")[0] == 200
    return time.monotonic() - begun


def test_idle_and_half_said_connections_slow_nobody(api):
    with contextlib.ExitStack() as stack:
        for number in range(300):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", api.port), timeout=10))
            if number % 3:
                line.sendall(
                    b"POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
                    + b"\r\n{" * (number % 3 - 1)
                )
        assert quick(api) < 30


def test_requests_that_wait_slow_nobody(api):
    _, task, _ = api("POST", "/v1/tasks", {"handler": "work", "delay": "1h"})
    waited_for = [path(later(hours=1), "http/nobody", str(n)) for n in range(5)] + [f"/v1/tasks/{task['id']}"] * 60
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", api.port), timeout=10)) for _ in waited_for]
        for line, where in zip(lines, waited_for, strict=True):
            line.sendall(f"GET {where}/result?wait_ms=60000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert quick(api) < 30
        assert select.select(lines[5:], [], [], 0)[0] == [], "it was served while all waited whose task exists"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [(b"{", "not-json"), (b'{"handler": "work", "payload": ' + b"[" * 1_000 + b"]" * 1_000 + b"}", "not-json"),
     (b"x" * 10_000_000, "too-large"),
     (b'{"handler": NaN}', "not-json"), (b'{"handler": "\\ud800"}', "not-json"), (b'{"handler": "work", "nope": 1}', "invalid")],
)  # fmt: skip
def test_bad_bodies_are_problems(api, raw, problem):
    assert api("POST", "/v1/tasks", raw=raw)[1]["type"] == f"/problems/{problem}"


# -- its process --------------------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """Processes that serve an API for a process."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and b"scylla_spark.api" in (entry / "cmdline").read_bytes():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found += [int(entry.name)] if parent == pid else []
    return found


def test_an_api_that_dies_is_started_again_at_its_address_and_the_rest_goes_on(api, deployment):
    (old,) = children(deployment.process.pid)
    os.kill(old, signal.SIGKILL)
    assert quick(api) < 60, "who asks meanwhile waits"
    (new,) = children(deployment.process.pid)
    assert new != old
    assert deployment.process.running


def test_an_api_runs_alone_beside_a_deployment(deployment):
    from tests.acceptance.place import Process

    alone = Process("api", deployment.command("run", "api", "-o", "json"), deployment.folder, deployment.environment)
    try:
        facts = alone.ready()
        assert facts["roles"] == ["api"]
        assert facts["api"] != deployment.api
        assert Api(facts["api"])("POST", "/v1/tasks?wait=done&wait_ms=60000", {"handler": "work"})[0] == 200
    finally:
        assert alone.stop() == 0
