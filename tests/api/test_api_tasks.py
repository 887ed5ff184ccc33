"""Routes of tasks over real tables and no brokers: what is sent, what is answered, and which problem bad input is."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import anyio.to_thread
import pyarrow as pa
import pytest

from scylla_spark.api.context import SLOW_THREADS
from scylla_spark.clock import from_us, iso, now_us
from scylla_spark.core.leases.messages import Answer
from scylla_spark.core.records.command import CANCEL, ENQUEUE
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, REJECTED, TASKS
from scylla_spark.services.dispatch.describe import describe_lane
from tests.support.api_site import Site, kind
from tests.support.delta_tables import append, at, fact, make, make_filled, rejected, task
from tests.support.engine_harness import Harness
from tests.support.waiting import holds
from tests.unit.test_forged_owner_address import answering, saying

KEY = TaskKey(at(10), "cust/9 ä", "inv,17%")
LATER = TaskKey(at(11), "cust-1", "x")
LINES = "application/x-ndjson"


def made(folder):
    make_filled(f"{folder}/tables", filled)
    return Site(str(folder))


@pytest.fixture
def site(tmp_path):
    return made(tmp_path)


def filled(path: str) -> None:
    append(path, TASKS, [task(KEY, 1, payload='{"a": 9007199254740993}'), task(LATER, 2, queue="mail")])
    append(
        path,
        COMPLETIONS,
        [fact(KEY, 2, "failed", 3, error_class="TimeoutError", error_message="too slow", result=None)],
    )
    append(path, ATTEMPTS, [fact(KEY, 1, "failed", 2, error_class="KeyError", next_at=from_us(at(10, 1)))])


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def soon() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


# -- one task -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [id_of, str])
def test_a_task_is_found_by_either_form_of_its_key(look, name):
    found = look.get(f"/v1/tasks/{name(KEY)}").json()
    assert (found["id"], found["ordering_id"], found["uniqueness_key"]) == (id_of(KEY), "cust/9 ä", "inv,17%")
    assert (found["state"], found["attempts"], found["error"]["kind"]) == ("failed", 2, "TimeoutError")
    assert found["payload"] == {"a": 9007199254740993}
    assert found["fresh"] is True


def test_while_no_broker_answers_the_tables_tell_and_what_they_do_not_hold_is_not_said_to_be_missing(client, site):
    unknown = str(KEY._replace(ordering_id="nobody"))
    assert kind(client.get(f"/v1/tasks/{unknown}")) == "/problems/not-found"
    site.connection.down = True
    found = client.get(f"/v1/tasks/{KEY}").json()
    assert (found["state"], found["fresh"]) == ("failed", False)
    assert kind(client.get(f"/v1/tasks/{unknown}")) == "/problems/unreachable", "it may stand in the log"


def test_a_run_tells_its_schedule_and_the_time_it_was_planned_for(client, site, tmp_path):
    run = LATER._replace(uniqueness_key="night ly/2026-01-01T08:00:00Z/3")
    append(f"{tmp_path}/tables", TASKS, [task(run, 9)])
    told = [client.get(f"/v1/tasks/{id_of(run)}").json(), *_of(client, 'schedule:"night ly"')]
    assert [(one["id"], one["schedule"], one["planned_at"]) for one in told] == [
        (id_of(run), "night ly", "2026-01-01T08:00:00Z")
    ] * 2
    other = client.get(f"/v1/tasks/{id_of(LATER)}").json()
    assert (other["schedule"], other["planned_at"]) == (None, None)


def test_a_list_by_urgency_goes_on_where_it_ended(client, tmp_path):
    urgent = [LATER._replace(uniqueness_key=f"p{number}") for number in range(3)]
    append(f"{tmp_path}/tables", TASKS, [task(one, 9, priority=number) for number, one in enumerate(urgent)])
    found, cursor = [], None
    for _ in range(6):
        asked = {"order": "urgency", "limit": 2, "filter": "key:p0,p1,p2"} | ({"cursor": cursor} if cursor else {})
        told = client.get("/v1/tasks", params=asked).json()
        found += [one["uniqueness_key"] for one in told["tasks"]]
        if (cursor := told["next"]) is None:
            break
    assert found == ["p2", "p1", "p0"]
    for wrong in ("x", "1.2", "1.x.a", id_of(LATER), "9" * 40 + ".1." + id_of(LATER)):
        answer = client.get("/v1/tasks", params={"order": "urgency", "cursor": wrong})
        assert (answer.status_code, kind(answer)) == (422, "/problems/invalid"), wrong


def _of(client, text: str) -> list[dict]:
    return client.get("/v1/tasks", params={"filter": text}).json()["tasks"]


def test_attempts_are_listed_in_order(look):
    found = look.get(f"/v1/tasks/{id_of(KEY)}/attempts").json()["attempts"]
    assert [(one["attempt"], one["outcome"]) for one in found] == [(1, "failed"), (2, "failed")]
    assert found[0]["next_at"] == iso(at(10, 1))


def test_the_result_says_whether_the_task_has_ended(look):
    ended, waits = look.get(f"/v1/tasks/{id_of(KEY)}/result"), look.get(f"/v1/tasks/{id_of(LATER)}/result")
    assert (ended.status_code, ended.json()["ended"], ended.json()["state"]) == (200, True, "failed")
    assert (waits.status_code, waits.json()["ended"], waits.json()["state"]) == (202, False, "scheduled")


def test_a_put_sends_the_task_of_the_path(client, site):
    answer = client.put(
        f"/v1/tasks/{LATER}",
        json={"handler": "h", "payload": {"a": 1}, "retry": {"max_retries": None}, "timeout": "30s"},
    )
    assert answer.status_code == 202
    told = answer.json()
    assert told["id"] == id_of(LATER)
    assert told["receipt"]["offset"] == str(2**60 + 1), "offsets are text, since they grow beyond 2^53"
    (sent,) = site.connection.sent
    assert (sent.key, sent.handler, sent.payload, sent.timeout_ms) == (LATER, "h", '{"a":1}', 30_000)
    assert sent.retry.max_retries is None


@pytest.mark.promise
def test_a_put_of_a_task_that_has_ended_changes_nothing_and_says_so(client, site):
    key = TaskKey(now_us() - 3_600_000_000, "cust-2", "u")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(key, 5)])
    append(f"{site.settings.data_dir}/tables", COMPLETIONS, [fact(key, 1, "succeeded", 9, result="7")])
    before = client.get(f"/v1/tasks/{id_of(key)}").json()
    body = {"handler": "other", "queue": "mail", "payload": {"b": 1}}
    whole = {"scheduled_time": iso(key.time_us), "ordering_id": key.ordering_id, "uniqueness_key": key.uniqueness_key}
    for told in (client.put(f"/v1/tasks/{id_of(key)}", json=body), client.post("/v1/tasks", json=body | whole)):
        assert (told.status_code, told.json()["id"], told.json()["repeated"]) == (200, id_of(key), True)
        assert "has ended (succeeded)" in told.json()["warning"]
    done = client.put(f"/v1/tasks/{id_of(key)}?wait=done", json=body).json()
    assert (done["ended"], done["state"], done["result"]) == (True, "succeeded", 7)
    assert site.connection.sent == []
    assert client.get(f"/v1/tasks/{id_of(key)}").json() == before


def test_a_put_of_a_task_that_is_open_is_repeated_after_the_grace_and_not_overwritten(client, site):
    key = TaskKey(now_us() - 3_600_000_000, "cust-2", "open")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(key, 5, payload='{"a": 1}', tags=["t"])])
    body = {"handler": "h", "payload": {"a": 1}, "tags": ["t"]}
    again = client.put(f"/v1/tasks/{id_of(key)}", json=body)
    assert (again.status_code, again.json()["repeated"], again.json()["id"]) == (202, True, id_of(key))
    other = client.put(f"/v1/tasks/{id_of(key)}", json=body | {"tags": []})
    assert (kind(other), other.json()["reason"]) == ("/problems/invalid", "too_late")
    assert site.connection.sent == []


def test_a_post_makes_up_what_is_not_given(client, site):
    first, second = (client.post("/v1/tasks", json={"handler": "h"}).json() for _ in range(2))
    assert first["uniqueness_key"] < second["uniqueness_key"]
    assert first["ordering_id"] == first["uniqueness_key"]
    assert abs(site.connection.sent[0].key.time_us - now_us()) < 60_000_000


@pytest.mark.slow
def test_an_idempotency_key_needs_the_time_and_is_the_uniqueness_key(client, site):
    body = {"handler": "h", "scheduled_time": soon()}
    again = [client.post("/v1/tasks", json=body, headers={"Idempotency-Key": "k1"}).json()["id"] for _ in range(2)]
    assert again[0] == again[1]
    assert (
        kind(client.post("/v1/tasks", json={"handler": "h"}, headers={"Idempotency-Key": "k1"})) == "/problems/invalid"
    )
    both = body | {"uniqueness_key": "u"}
    assert kind(client.post("/v1/tasks", json=both, headers={"Idempotency-Key": "k1"})) == "/problems/invalid"


def test_an_idempotency_key_that_was_used_for_another_task_is_refused(client, site):
    stored = TaskKey(at(12), "idempotency-key:k", "idempotency-key:k")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(stored, 5, payload='{"a": 1}')])
    body = {"handler": "h", "payload": {"a": 1}, "scheduled_time": iso(at(12))}
    same = client.post("/v1/tasks", json=body, headers={"Idempotency-Key": "k"})
    assert (same.status_code, same.json()["repeated"], site.connection.sent) == (202, True, [])
    for more in ({"payload": {"a": 2}}, {"timeout": "3s"}, {"tags": ["t"]}, {"retry": {"max_retries": 1}}):
        other = client.post("/v1/tasks", json=body | more, headers={"Idempotency-Key": "k"})
        assert kind(other) == "/problems/idempotency-key-reused"


@pytest.mark.parametrize("due", [at(12), now_us() + 3_600_000_000], ids=["past", "future"])
def test_a_post_with_the_idempotency_key_of_an_ended_task_is_answered_like_a_put(client, site, due):
    stored = TaskKey(due, "idempotency-key:k", "idempotency-key:k")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(stored, 5, payload='{"a": 1}')])
    append(f"{site.settings.data_dir}/tables", COMPLETIONS, [fact(stored, 1, "succeeded", 9, result="7")])
    body = {"handler": "h", "payload": {"a": 1}, "scheduled_time": iso(due)}
    told = client.post("/v1/tasks", json=body, headers={"Idempotency-Key": "k"})
    assert (told.status_code, told.json()["repeated"]) == (200, True)
    assert "has ended (succeeded)" in told.json()["warning"]
    done = client.post("/v1/tasks?wait=done", json=body, headers={"Idempotency-Key": "k"})
    assert (done.status_code, done.json()["state"], done.json()["result"]) == (200, "succeeded", 7)
    other = client.post("/v1/tasks", json=body | {"payload": {"a": 2}}, headers={"Idempotency-Key": "k"})
    assert (kind(other), site.connection.sent) == ("/problems/idempotency-key-reused", [])


@pytest.mark.parametrize(("visible", "status"), [(True, 200), (False, 202)])
def test_a_repeat_that_waits_for_the_tables_waits_for_the_record_that_stands(client, site, visible, status):
    stored = TaskKey(at(12), "idempotency-key:k", "idempotency-key:k")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(stored, 5)])
    asked = []

    async def look(partition, offset, timeout_s):
        asked.append((partition, offset, timeout_s))
        return visible

    site.app.state.api.waits = SimpleNamespace(visible=look)
    body = {"handler": "h", "scheduled_time": iso(at(12))}
    told = client.post("/v1/tasks?wait=visible&wait_ms=500", json=body, headers={"Idempotency-Key": "k"})
    assert (told.status_code, told.json()["repeated"]) == (status, True)
    assert [place[1:] for place in asked] == [(5, 0.5)]


@pytest.mark.parametrize("act", [":reschedule", ":run_now"])
def test_a_task_that_has_ended_is_not_moved_and_the_answer_says_how_it_ended(look, act):
    told = look.post(f"/v1/tasks/{id_of(KEY)}{act}", **({"json": {"delay": 5}} if act == ":reschedule" else {}))
    assert (kind(told), told.json()["state"], told.json()["detail"]) == (
        "/problems/conflict", "failed", "The task has ended: failed.",
    )  # fmt: skip
    assert ":retry" in told.json()["hint"]


def test_a_task_that_is_open_is_not_retried_and_the_answer_says_how_it_stands(look):
    told = look.post(f"/v1/tasks/{id_of(LATER)}:retry")
    assert (kind(told), told.json()["state"]) == ("/problems/conflict", "scheduled")


@pytest.mark.parametrize(
    ("act", "state", "hint"),
    [
        (":cancel", "running", "running=true"),
        (":run_now", "running", "running=true"),
        (":cancel", "succeeded", ":retry"),
        (":cancel", "retry_wait", "Repeat the request"),
    ],
)
def test_a_cancel_that_came_to_nothing_says_how_the_task_stands_and_what_is_allowed(client, site, act, state, hint):
    key = TaskKey(at(13), "cust-3", "u")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(key, 5)])
    outcome = {"running": "started", "retry_wait": "failed"}.get(state, state)
    later = {"next_at": from_us(at(14))} if state == "retry_wait" else {}

    @asynccontextmanager
    async def answered(*names):
        append(
            f"{site.settings.data_dir}/tables",
            ATTEMPTS if outcome != state else COMPLETIONS,
            [fact(key, 1, outcome, 6, **later)],
        )
        heard = asyncio.get_running_loop().create_future()
        heard.set_result(True)
        yield heard

    site.app.state.api.waits = SimpleNamespace(waiting=answered)
    told = client.post(f"/v1/tasks/{id_of(key)}{act}")
    assert (kind(told), told.json()["state"], hint in told.json()["hint"]) == ("/problems/conflict", state, True)


def test_a_task_that_cannot_be_leased_says_why(client, site):
    async def call(asked):
        return Answer(0, ())

    site.app.state.api.leases = SimpleNamespace(call=call)
    for key, state, why in ((KEY, "failed", "It has ended: failed"), (LATER, "scheduled", "It is scheduled for 2099")):
        told = client.post(f"/v1/tasks/{id_of(key)}:lease", json={})
        assert (kind(told), told.json()["state"], why in told.json()["detail"]) == ("/problems/not-ready", state, True)
    nobody = TaskKey(at(10), "cust-0", "nobody")
    assert kind(client.post(f"/v1/tasks/{id_of(nobody)}:lease", json={})) == "/problems/not-found"


@pytest.mark.slow
def test_a_cancel_that_nobody_answers_stands(client, site):
    answer = client.post(f"/v1/tasks/{id_of(LATER)}:cancel?wait_ms=50")
    assert (answer.status_code, answer.json()["answer"]) == (202, "sent")
    assert (site.connection.sent[0].kind, site.connection.sent[0].key) == (CANCEL, LATER)
    assert site.connection.sent[0].request_id


def test_an_ended_task_is_retried_under_a_new_key(client, site):
    answer = client.post(f"/v1/tasks/{id_of(KEY)}:retry")
    assert answer.status_code == 201
    assert answer.json()["instead_of"] == id_of(KEY)
    assert "retryOf" in site.connection.sent[0].extra
    assert kind(client.post(f"/v1/tasks/{id_of(LATER)}:retry")) == "/problems/conflict"
    assert kind(client.post(f"/v1/tasks/{id_of(KEY)}:run_now")) == "/problems/conflict"


@pytest.mark.slow
def test_moves_that_nobody_answers_hold_no_thread_that_others_need(client, site):
    many = SLOW_THREADS + 4
    with ThreadPoolExecutor(many) as threads:
        moves = [threads.submit(client.post, f"/v1/tasks/{id_of(LATER)}:run_now?wait_ms=60000") for _ in range(many)]
        assert holds(lambda: len(site.connection.sent) == many)
        assert client.post(f"/v1/tasks/{id_of(KEY)}:retry").status_code == 201
        assert not any(move.done() for move in moves)
        site.app.state.api.waits._missed()  # as where the tail has lost what it would have heard
        assert {kind(move.result(60)) for move in moves} == {"/problems/timed-out"}
    assert [one.kind for one in site.connection.sent].count(CANCEL) == many, "no copy was made but that of the retry"
    assert len(site.connection.sent) == many + 1


@pytest.mark.slow
def test_tables_that_do_not_answer_keep_no_task_from_being_sent(client, site):
    answers, many = threading.Event(), 50  # more than there are threads that read tables
    waiting = []

    def read(*_: object) -> None:
        waiting.append(1)
        answers.wait(60)
        raise TimeoutError("object-store error")

    site.connection.readers.task = site.connection.readers.completion = read
    with ThreadPoolExecutor(many) as threads:
        looks = [threads.submit(client.get, f"/v1/tasks/{id_of(KEY)}") for _ in range(many)]
        assert holds(lambda: len(waiting) == current_default_threads(client))
        assert client.post("/v1/tasks", json={"handler": "h", "payload": {}}).status_code == 202
        lines = b'{"handler": "h", "payload": {}}\n'
        assert client.post("/v1/tasks:bulk", content=lines, headers={"content-type": LINES}).status_code == 200
        assert client.get("/metrics").status_code == 200
        assert not any(look.done() for look in looks)
        answers.set()
        assert {kind(look.result(60)) for look in looks} == {"/problems/unreachable"}


def current_default_threads(client):
    """How many requests may read tables at once."""

    async def total() -> int:
        return int(anyio.to_thread.current_default_thread_limiter().total_tokens)

    return client._portal.call(total)


@pytest.mark.parametrize(("by", "status"), [("own", 201), ("another", 409), (None, 409)])
def test_a_task_is_moved_by_the_request_whose_cancel_has_ended_it(client, site, by, status):
    names = _cancelled_by(site, by)
    told = client.post(f"/v1/tasks/{id_of(LATER)}:reschedule", json={"scheduled_time": iso(at(12))})
    assert told.status_code == status, told.text
    assert [one.kind for one in site.connection.sent] == ([CANCEL, ENQUEUE] if status == 201 else [CANCEL])
    assert site.connection.sent[0].request_id in names
    if status == 201:
        copy = site.connection.sent[1]
        assert (copy.key, json.loads(copy.extra)["moveOf"]) == (LATER._replace(time_us=at(12)), str(LATER))
    else:
        assert (kind(told), told.json()["state"]) == ("/problems/conflict", "cancelled")


def test_a_move_to_a_time_that_would_be_refused_sends_no_cancel(client, site):
    past = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    told = client.post(f"/v1/tasks/{id_of(LATER)}:reschedule", json={"scheduled_time": past})
    assert (kind(told), told.json()["reason"]) == ("/problems/invalid", "too_late")
    assert site.connection.sent == []


def test_a_move_whose_copy_was_not_acknowledged_says_what_it_was(client, site):
    _cancelled_by(site, "own", down=True)
    told = client.post(f"/v1/tasks/{id_of(LATER)}:run_now")
    assert (kind(told), told.json()["detail"].startswith("The task is cancelled, but")) == (
        "/problems/unreachable",
        True,
    )
    record = json.loads(told.json()["record"])
    assert (record["uniquenessKey"], TaskKey.parse(told.json()["copy"]).ordering_id) == ("x", "cust-1")


def _cancelled_by(site, by, *, down=False) -> list[str]:
    """A dispatcher that cancels LATER, by the request that asks ("own"), by another one, or by none that has a name."""
    names: list[str] = []

    @asynccontextmanager
    async def waiting(*asked):
        names.extend(asked)
        heard = asyncio.get_running_loop().create_future()
        heard.set_result(True)
        yield heard
        append(f"{site.settings.data_dir}/tables", COMPLETIONS, [fact(LATER, 0, "cancelled", 6)])
        site.connection.down = down

    def ended(key, partition):
        return Fact(LATER, 0, "cancelled", request_id=names[-1] if by == "own" else by)

    site.app.state.api.waits = SimpleNamespace(waiting=waiting)
    site.app.state.api.tail.ended = ended
    return names


# -- lists ------------------------------------------------------------------------------------------------------------------


def test_pages_go_on_by_their_cursor(look):
    first = look.get("/v1/tasks?limit=1").json()
    second = look.get(f"/v1/tasks?limit=1&cursor={first['next']}").json()
    third = look.get(f"/v1/tasks?limit=1&cursor={second['next']}").json()
    assert [one["id"] for page in (first, second, third) for one in page["tasks"]] == [id_of(KEY), id_of(LATER)]
    assert third == {"tasks": [], "next": None}


def test_a_filter_chooses_and_is_counted(look):
    assert [one["queue"] for one in look.get("/v1/tasks", params={"filter": "queue:mail"}).json()["tasks"]] == ["mail"]
    assert look.get("/v1/tasks:count", params={"filter": "error:timeout"}).json() == {"matched": 1}
    assert look.get("/v1/tasks:totals").json()["totals"] == [
        {"queue": "default", "state": "failed", "count": 1}, {"queue": "mail", "state": "scheduled", "count": 1},
    ]  # fmt: skip
    past = look.get("/v1/tasks", params={"as_of": iso(at(10))}).json()["tasks"]
    assert [one["state"] for one in past] == ["failed"]


def test_a_wrong_filter_says_where(look):
    answer = look.get("/v1/tasks", params={"filter": "queue:mail stat:failed"})
    assert kind(answer) == "/problems/invalid"
    assert "character 12" in answer.json()["detail"]
    assert answer.json()["hint"] == "Did you mean state?"


@pytest.mark.parametrize(
    ("asked", "grace"), [("running=true&grace_ms=1500", 1500), ("running=true", 10_000), ("running=false", None)]
)
@pytest.mark.slow
def test_a_cancel_of_what_runs_carries_a_grace(client, site, asked, grace):
    assert client.post(f"/v1/tasks/{id_of(LATER)}:cancel?wait_ms=50&{asked}").status_code == 202
    assert site.connection.sent[0].grace_ms == grace


@pytest.mark.parametrize(
    "asked", ["grace_ms=1500", "running=true&grace_ms=0", "running=true&grace_ms=3600001", "running=perhaps"]
)
def test_a_grace_that_cannot_be_is_refused(look, looked_at, asked):
    assert kind(look.post(f"/v1/tasks/{id_of(LATER)}:cancel?{asked}")) == "/problems/invalid"
    assert looked_at.connection.sent == []


def test_all_of_a_filter_is_counted_then_cancelled(client, site):
    dry = client.post("/v1/tasks:cancel", params={"filter": "queue:mail,default", "dry_run": True}).json()
    assert dry == {"matched": 1, "sent": 0, "dry_run": True, "undo": None}, "what has ended is left alone"
    assert site.connection.sender.records == []
    done = client.post("/v1/tasks:cancel", params={"filter": "queue:mail,default"}).json()
    assert done == {"matched": 1, "sent": 1, "dry_run": False, "undo": done["undo"]}
    assert done["undo"].startswith("queue:mail,default state:cancelled ended:>=")
    assert b'"type":"cancel"' in site.connection.sender.records[0].value


@pytest.mark.parametrize(
    ("asked", "grace"), [("&running=true&grace_ms=1500", "1500ms"), ("&running=true", "10000ms"), ("", None)]
)
def test_a_cancel_of_all_of_a_filter_ends_what_runs_if_it_is_asked_to(client, site, asked, grace):
    assert client.post(f"/v1/tasks:cancel?filter=state:open{asked}").json()["sent"] == 1
    assert json.loads(site.connection.sender.records[0].value).get("grace") == grace


@pytest.mark.parametrize("path", ["/v1/tasks:cancel?filter=state:open&", "/v1/queues/mail:clear?"])
def test_a_grace_for_what_is_not_to_be_ended_is_refused_for_many_too(look, looked_at, path):
    assert kind(look.post(f"{path}grace_ms=1500")) == "/problems/invalid"
    assert looked_at.connection.sender.records == []


def test_all_of_a_filter_is_retried(client, site):
    assert client.post("/v1/tasks:retry", params={"filter": "error:timeout"}).json()["sent"] == 1
    record = json.loads(site.connection.sender.records[0].value)
    assert (record["orderingId"], record["taskData"], record["retryOf"]) == (
        KEY.ordering_id,
        {"a": 9007199254740993},
        str(KEY),
    )


@pytest.mark.parametrize("filter_", ["", " "])
def test_a_filter_that_chooses_all_must_say_so(look, filter_):
    assert kind(look.post("/v1/tasks:cancel", params={"filter": filter_})) == "/problems/invalid"


# -- local times ----------------------------------------------------------------------------------------------------------


def test_a_task_may_be_due_at_a_local_time(client, site):
    body = {"handler": "h", "at": "2099-07-01 noon Europe/Berlin"}
    assert client.post("/v1/tasks", json=body).json()["scheduled_time"] == "2099-07-01T10:00:00Z"
    assert kind(client.post("/v1/tasks", json=body | {"scheduled_time": soon()})) == "/problems/invalid"
    assert kind(client.post("/v1/tasks", json=body | {"delay": "1h"})) == "/problems/invalid"
    assert kind(client.post("/v1/tasks", json=body | {"at": "someday noon UTC"})) == "/problems/invalid"
    assert len(site.connection.sent) == 1


# -- unique names ---------------------------------------------------------------------------------------------------------


def test_a_task_asks_for_a_unique_name_by_its_body_or_the_query(client, site):
    body = {"handler": "h", "uniqueness_key": "poster"}
    assert client.post("/v1/tasks", json=body | {"unique": "open"}).status_code == 202
    assert client.post("/v1/tasks?unique=open", json=body).status_code == 202
    assert client.put(f"/v1/tasks/{LATER}", json={"handler": "h", "unique": "open"}).status_code == 202
    assert client.post("/v1/tasks?unique=false", json=body | {"unique": None}).status_code == 202
    assert [sent.unique for sent in site.connection.sent] == [True, True, True, False]


def test_a_name_that_an_idempotency_key_makes_may_be_unique(client, site):
    body = {"handler": "h", "scheduled_time": soon()}
    answer = client.post("/v1/tasks?unique=open", json=body, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 202
    (sent,) = site.connection.sent
    assert (sent.unique, sent.key.uniqueness_key) == (True, "idempotency-key:k")


@pytest.mark.parametrize(
    ("path", "more", "told"),
    [
        ("/v1/tasks", {"uniqueness_key": "u", "unique": "ended"}, "unique"),
        ("/v1/tasks?unique=ended", {"uniqueness_key": "u"}, "unique"),
        ("/v1/tasks?unique=open", {}, "needs a uniqueness_key"),
        ("/v1/tasks", {"unique": "open"}, "needs a uniqueness_key"),
    ],
)
def test_a_unique_name_that_nobody_understands_or_could_bear_is_refused(look, looked_at, path, more, told):
    answer = look.post(path, json={"handler": "h"} | more)
    assert kind(answer) == "/problems/invalid"
    assert told in answer.text
    assert not looked_at.connection.sent


def test_tasks_of_a_bulk_ask_for_unique_names_each_for_itself(client, site):
    lines = [{"uniqueness_key": "u", "unique": "open"}, {"uniqueness_key": "u"}, {"unique": "open"}]
    body = "\n".join(json.dumps({"handler": "h"} | line) for line in lines)
    *told, counts = results(client.post("/v1/tasks:bulk", content=body, headers={"content-type": LINES}))
    assert counts == {"accepted": 2, "refused": 1}
    assert "needs a uniqueness_key" in told[2]["problem"]["detail"]
    sent = [json.loads(record.value) for record in site.connection.sender.records]
    assert [(one.get("unique"), one["version"]) for one in sent] == [("open", 3), (None, 1)]


def test_rows_of_arrow_ask_for_unique_names_each_for_itself(client, site):
    table, sink = (
        pa.table({"handler": ["h", "h"], "uniqueness_key": ["u", "u"], "unique": ["open", None]}),
        io.BytesIO(),
    )
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    kind_ = {"content-type": "application/vnd.apache.arrow.stream"}
    *_, counts = results(client.post("/v1/tasks:bulk", content=sink.getvalue(), headers=kind_))
    assert counts == {"accepted": 2, "refused": 0}
    assert [json.loads(record.value).get("unique") for record in site.connection.sender.records] == ["open", None]


# -- bulks ------------------------------------------------------------------------------------------------------------------


def results(answer) -> list[dict]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_bulk_of_lines_has_an_answer_for_each(client, site):
    lines = [
        json.dumps({"handler": "h", "ordering_id": f"o{n}", "uniqueness_key": "u", "scheduled_time": soon()})
        for n in range(3)
    ]
    body = "\n".join(
        [
            lines[0],
            "",
            "{",
            lines[1],
            '{"handler": "h", "x": 1}',
            '{"handler": "h", "payload": {"a": NaN}}',
            "[]",
            lines[2],
        ]
    )
    *told, counts = results(client.post("/v1/tasks:bulk", content=body, headers={"content-type": LINES}))
    assert counts == {"accepted": 3, "refused": 4}
    assert [one["index"] for one in told] == list(range(7))
    assert ["id" in one for one in told] == [True, False, True, False, False, False, True]
    assert {one["problem"]["type"] for one in told if "problem" in one} == {"/problems/invalid"}
    assert len(site.connection.sender.records) == 3


def test_a_bulk_of_arrow_has_an_answer_for_each(client, site):
    rows = {
        "handler": ["h", "h", None, "h"], "ordering_id": ["a", "b", "c", "d"], "uniqueness_key": ["u"] * 4,
        "scheduled_time": pa.array([at(10), at(11), at(12), None], pa.timestamp("us", "UTC")), "payload": ['{"n": 1}', "{}", None, "[1"],
        "priority": pa.array([1, 300, 2, 3], pa.int32()),
    }  # fmt: skip
    table, sink = pa.table(rows), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    kind_ = {"content-type": "application/vnd.apache.arrow.stream"}
    *told, counts = results(client.post("/v1/tasks:bulk", content=sink.getvalue(), headers=kind_))
    assert counts == {"accepted": 2, "refused": 2}
    assert ["id" in one for one in told] == [True, False, True, False]
    assert json.loads(site.connection.sender.records[0].value)["taskData"] == {"n": 1}
    assert kind(client.post("/v1/tasks:bulk", content=sink.getvalue()[:200], headers=kind_)) == "/problems/invalid"
    assert (
        kind(client.post("/v1/tasks:bulk", content=b"x", headers={"content-type": "text/csv"}))
        == "/problems/wrong-media-type"
    )


@pytest.mark.parametrize("lines", [["{"], []])
def test_a_bulk_that_is_broken_off_says_what_was_accepted_before(client, site, lines):
    first = [json.dumps({"handler": "h", "uniqueness_key": "u", "scheduled_time": soon()}), *lines]

    async def pieces():
        yield "\n".join([*first, ""]).encode()
        yield b"x" * 2_000_000

    answer = client.post("/v1/tasks:bulk", content=pieces(), headers={"content-type": LINES})
    assert kind(answer) == "/problems/too-large"
    told = answer.json()
    assert (told["accepted"], told["refused"]) == (1, len(lines)) == (len(site.connection.sender.records), len(lines))
    assert [one["index"] for one in told["items"]] == list(range(len(first)))
    assert "1 of the" in told["detail"]


def test_a_bulk_that_nobody_acknowledges_says_so_of_each(client, site):
    site.connection.down = True
    *told, counts = results(
        client.post("/v1/tasks:bulk", content='{"handler": "h"}\n' * 2, headers={"content-type": LINES})
    )
    assert counts == {"accepted": 0, "refused": 2}
    assert {one["problem"]["type"] for one in told} == {"/problems/unreachable"}


# -- lanes and refused records ----------------------------------------------------------------------------------------------


def test_a_lane_is_shown_from_the_tables_where_no_dispatcher_answers(look):
    found = look.get("/v1/lanes/cust-1").json()
    assert (found["state"], [one["id"] for one in found["tasks"]]) == ("unknown", [id_of(LATER)])
    assert kind(look.get("/v1/lanes/cust%2F9%20%C3%A4")) == "/problems/not-found", "its only task has ended"


@pytest.mark.slow
def test_the_head_of_a_lane_is_skipped_by_a_cancel(client, site):
    head = client.get("/v1/lanes/cust-1").json()["head"]
    assert client.post(f"/v1/lanes/cust-1:skip_head?wait_ms=10&head={head}").json()["id"] == head == id_of(LATER)
    assert site.connection.sent[0].kind == CANCEL


def test_a_head_that_nobody_has_seen_is_not_skipped(client, site):
    assert client.post("/v1/lanes/cust-1:skip_head").status_code == 422
    another = id_of(TaskKey(LATER.time_us - 1, LATER.ordering_id, "ended by now"))
    answer = client.post(f"/v1/lanes/cust-1:skip_head?head={another}")
    assert (kind(answer), "Nothing was done" in answer.json()["detail"]) == ("/problems/conflict", True)
    assert site.connection.sent == []


def test_a_lane_of_a_dispatcher_of_another_version_is_shown_from_the_tables_or_not_known(client, site, monkeypatch):
    told = {"loaded": True, "state": "ready", "why": "It is due.", "tasks": [{"key": "…", "attempts": 0}]}
    with answering(saying(told)) as (address, _):
        monkeypatch.setattr(site.connection, "owner_address", lambda _: address)
        found = client.get("/v1/lanes/cust-1").json()
        assert (found["state"], [one["id"] for one in found["tasks"]]) == ("ready", [id_of(LATER)])
        unknown = client.get("/v1/lanes/just-enqueued")
        assert (kind(unknown), "not known" in unknown.json()["detail"]) == ("/problems/unreachable", True)


def test_a_lane_tells_of_its_own_tasks_whatever_their_keys_hold_and_its_head_is_skipped(client, site, monkeypatch):
    world = Harness()
    key = world.enqueue(lane="a,b", unique='c,"d')
    with answering(saying(describe_lane(world.engine, world.now, key.ordering_id))) as (address, _):
        monkeypatch.setattr(site.connection, "owner_address", lambda _: address)
        (told,) = client.get("/v1/lanes/a,b").json()["tasks"]
        assert (told["id"], told["uniqueness_key"]) == (id_of(key), key.uniqueness_key)
        assert client.post(f"/v1/lanes/a,b:skip_head?wait_ms=10&head={told['id']}").json()["id"] == id_of(key)
    assert site.connection.sent[0].key == key


def test_refused_records_are_listed_and_sent_again(client, site):
    when = datetime(2026, 11, 22, tzinfo=UTC)
    good = json.dumps(
        {"orderingId": "o", "scheduledTime": iso(at(9)), "uniquenessKey": "u", "taskData": {}, "handler": "h"}
    ).encode()
    append(
        f"{site.settings.data_dir}/tables",
        REJECTED,
        [rejected(7, "wrong_partition", good, when), rejected(2**60, "not_json", b"\xff", when)],
    )
    rows = client.get("/v1/rejected").json()["rejected"]
    assert [(row["offset"], row["value_base64"]) for row in rows] == [(str(2**60), "/w=="), ("7", None)]
    assert client.get("/v1/rejected?reason=not_json").json()["rejected"][0]["value"] == "\ufffd"
    assert client.post("/v1/rejected:replay?dry_run=true").json() == {
        "matched": 2,
        "sent": 0,
        "refused_again": 1,
        "dry_run": True,
    }
    assert client.post("/v1/rejected:replay").json() == {"matched": 2, "sent": 1, "refused_again": 1, "dry_run": False}


# -- what is wrong ----------------------------------------------------------------------------------------------------------


def deep(levels: int) -> str:
    return '{"handler": "h", "payload": {"a": ' + "[" * levels + "]" * levels + "}}"


@pytest.mark.parametrize(
    ("body", "problem", "told"),
    [
        (b"", "/problems/invalid", "body"),
        (b"{", "/problems/not-json", "EOF"),
        (b"\xff\xfe", "/problems/not-json", ""),
        (b"null", "/problems/invalid", "body"),
        (b"[]", "/problems/invalid", "body"),
        (b'"x"', "/problems/invalid", "body"),
        (b'{"handler": "h", "payload": {"a": NaN}}', "/problems/not-json", ""),
        (b'{"handler": "h", "payload": {"a": 1e999}}', "/problems/invalid", ""),
        (b'{"handler": "h", "payload": {"a": "\\ud800"}}', "/problems/not-json", ""),
        (deep(1_000).encode(), "/problems/not-json", "recursion"),
        (deep(100_000).encode(), "/problems/not-json", "recursion"),
        (b'{"handler": 7}', "/problems/invalid", "body.handler"),
        (b'{"handler": "h", "priority": "7"}', "/problems/invalid", "body.priority"),
        (b'{"handler": "h", "priority": 1.0}', "/problems/invalid", "body.priority"),
        (b'{"handler": "h", "priority": 300}', "/problems/invalid", "body.priority"),
        (b'{"handler": "h", "priority": true}', "/problems/invalid", "body.priority"),
        (b'{"handler": "h", "nope": 1}', "/problems/invalid", "body.nope"),
        (b'{"handler": "h", "payload": []}', "/problems/invalid", "body.payload"),
        (b'{"handler": "h h"}', "/problems/invalid", ""),
        (b'{"handler": "h", "queue": ""}', "/problems/invalid", ""),
        (b'{"handler": "h", "timeout": "soon"}', "/problems/invalid", "duration"),
        (b'{"handler": "h", "timeout": -1}', "/problems/invalid", "out of range"),
        (b'{"handler": "h", "retry": {"max_retries": -1}}', "/problems/invalid", "max_retries"),
        (b'{"handler": "h", "scheduled_time": "2099-01-01T00:00:00"}', "/problems/invalid", "zone"),
        (b'{"handler": "h", "scheduled_time": 4070908800}', "/problems/invalid", "text"),
        (b'{"handler": "h", "scheduled_time": "9999-12-31T23:59:59-05:00"}', "/problems/invalid", "2261"),
        (b'{"handler": "h", "scheduled_time": "2020-01-01T00:00:00Z"}', "/problems/invalid", "before the enqueueing"),
        (b'{"handler": "h", "scheduled_time": "2099-01-01T00:00:00Z", "delay": 1}', "/problems/invalid", "Both"),
        (b'{"handler": "h", "ordering_id": ""}', "/problems/invalid", ""),
        (b'{"handler": "h", "uniqueness_key": "' + b"x" * 2_000 + b'"}', "/problems/invalid", ""),
        (b'{"handler": "h", "payload": {"a": "' + b"x" * 300_000 + b'"}}', "/problems/invalid", "262144"),
        (b'{"handler": "h", "payload": {"a": "' + b"x" * 10_000_000 + b'"}}', "/problems/too-large", "1048576"),
        (b'{"handler": "h", "priority": ' + b"9" * 5_000 + b"}", "/problems/not-json", ""),
    ],
    ids=range(33),
)  # fmt: skip
def test_a_bad_body_is_a_problem_of_a_stable_type(look, looked_at, body, problem, told):
    answer = look.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
    assert (kind(answer), told in answer.text) == (problem, True), answer.text
    assert looked_at.connection.sent == []


@pytest.mark.parametrize(
    ("method", "path", "problem"),
    [
        ("GET", "/nothing", "/problems/no-such-path"),
        ("GET", "/v1", "/problems/no-such-path"),
        ("GET", "/v1/tasks/", "/problems/no-such-path"),
        ("GET", "/v1/tasks/a/b/c", "/problems/no-such-path"),
        ("GET", "/v1/tasks/nope", "/problems/invalid"),
        ("GET", "/v1/tasks/%FF%FE", "/problems/invalid"),
        ("GET", "/v1/tasks/2099-01-01T00:00:00Z,a,b", "/problems/not-found"),
        ("GET", "/v1/tasks/2099-01-01T00:00:00Z,a,b/attempts", "/problems/not-found"),
        ("GET", "/v1/tasks/2099-01-01T00:00:00Z,a,b/explain", "/problems/not-found"),
        ("GET", "/v1/tasks/2099-01-01T00:00:00Z,a,b/result?wait_ms=10", "/problems/not-found"),
        ("POST", "/v1/tasks/2099-01-01T00:00:00Z,a,b:retry", "/problems/not-found"),
        ("POST", "/v1/tasks/2099-01-01T00:00:00Z,a,b:explode", "/problems/no-such-method"),
        ("GET", "/v1/tasks?limit=0", "/problems/invalid"),
        ("GET", "/v1/tasks?limit=10001", "/problems/invalid"),
        ("GET", "/v1/tasks?limit=x", "/problems/invalid"),
        ("GET", "/v1/tasks?cursor=x", "/problems/invalid"),
        ("GET", "/v1/tasks?as_of=yesterday", "/problems/invalid"),
        ("GET", "/v1/tasks?filter=" + "x" * 5_000, "/problems/invalid"),
        ("POST", "/v1/tasks:cancel", "/problems/invalid"),
        ("GET", "/v1/lanes/%FF", "/problems/invalid"),
        ("DELETE", "/v1/tasks", "/problems/no-such-method"),
        ("BREW", "/v1/tasks", "/problems/no-such-method"),
        ("GET", "/readyz", "/problems/unreachable"),
    ],
)
def test_a_bad_request_is_a_problem_of_a_stable_type(look, method, path, problem):
    assert kind(look.request(method, path)) == problem


@pytest.mark.parametrize(
    ("method", "path", "place", "hint"),
    [
        ("POST", "/v1/tasks:cancel?filter=queue:mail&dryRun=1", "query.'dryRun'", "Did you mean dry_run?"),
        ("POST", "/v1/tasks:cancel?filter=queue:mail&dry-run=true", "query.'dry-run'", "Did you mean dry_run?"),
        ("POST", "/v1/tasks:retry?filter=state:failed&DRY_RUN=1", "query.'DRY_RUN'", "Did you mean dry_run?"),
        ("POST", "/v1/tasks:cancel?filter=queue:mail&filter=state:ready", "query.'filter'", "Give it once."),
        ("POST", "/v1/queues/mail:clear?dryrun=1", "query.'dryrun'", "Did you mean dry_run?"),
        ("POST", f"/v1/tasks/{LATER}:cancel?runing=true", "query.'runing'", "Did you mean running?"),
        ("POST", f"/v1/tasks/{KEY}:retry?dry_run=1", "query.'dry_run'", "This operation has no parameters."),
        ("GET", "/v1/tasks:count?zzz=", "query.'zzz'", "Parameters: filter, as_of."),
        ("GET", "/healthz?\N{RIGHT-TO-LEFT OVERRIDE}", "query.'\\u202e'", "This operation has no parameters."),
    ],
)
def test_a_parameter_that_an_operation_would_ignore_is_refused(look, looked_at, method, path, place, hint):
    answer = look.request(method, path)
    assert kind(answer) == "/problems/invalid"
    assert ([one["place"] for one in answer.json()["errors"]], answer.json()["hint"]) == ([place], hint)
    assert looked_at.connection.sent == looked_at.connection.sender.records == []


def test_a_parameter_with_several_values_may_stand_twice(look):
    assert look.get("/v1/fires?verdict=skipped&verdict=missed").status_code == 200


@pytest.mark.parametrize("body", [b'{"dry_run": true}', b"{}", b"dry_run=true"])
def test_a_body_that_an_operation_would_ignore_is_refused(look, looked_at, body):
    for path in ("/v1/tasks:cancel?filter=queue:mail", f"/v1/tasks/{KEY}:retry"):
        answer = look.post(path, content=body, headers={"content-type": "application/json"})
        assert (kind(answer), "reads none" in answer.text) == ("/problems/invalid", True)
    assert looked_at.connection.sent == looked_at.connection.sender.records == []


def test_an_empty_body_is_none(client):
    async def nothing():
        yield b""

    for body in (b"", nothing()):
        answer = client.post("/v1/tasks:cancel?filter=queue:mail&dry_run=true", content=body)
        assert answer.json()["matched"] == 1


def test_a_method_that_is_not_taken_says_which_are(look):
    assert look.request("DELETE", f"/v1/tasks/{id_of(KEY)}").headers["allow"] == "GET, PUT"


def test_a_body_without_its_media_type_is_not_believed(look, looked_at):
    answer = look.post("/v1/tasks", content=b'{"handler": "h"}', headers={"content-type": "text/plain"})
    assert kind(answer) == "/problems/invalid"
    assert looked_at.connection.sent == []


@pytest.mark.parametrize("body", [{"handler": "scylla.notify"}, {"handler": "h", "queue": "_notify"}])
def test_messages_of_notification_rules_are_not_for_clients_to_send(look, looked_at, body):
    line = look.post("/v1/tasks:bulk", content=json.dumps(body).encode(), headers={"content-type": LINES})
    assert json.loads(line.text.splitlines()[0])["problem"]["reason"] == "wrong_value"
    for answer in (look.post("/v1/tasks", json=body), look.put(f"/v1/tasks/{soon()},a,b", json=body)):
        assert (kind(answer), answer.json()["reason"]) == ("/problems/invalid", "wrong_value")
    assert looked_at.connection.sent == looked_at.connection.sender.records == []


def test_a_broker_that_is_away_is_told_with_when_to_come_again(client, site):
    site.connection.down = True
    answer = client.post("/v1/tasks", json={"handler": "h"})
    assert (kind(answer), answer.headers["retry-after"]) == ("/problems/unreachable", "2")


@pytest.mark.slow
def test_a_defect_of_ours_tells_nothing_of_itself(client, site):
    site.app.state.api.tasks.status = lambda key: 1 / 0
    answer = client.get(f"/v1/tasks/{id_of(KEY)}")
    assert kind(answer) == "/problems/defect"
    assert "division" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8099", "localhost", "[::1]:8099", "10.1.2.3"])
def test_it_answers_to_addresses_and_names_of_its_own(look, host):
    assert look.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[", "127.0.0.1.nip.io"])
def test_no_site_can_rebind_its_own_name(look, host):
    assert kind(look.get("/healthz", headers={"host": host})) == "/problems/wrong-host"


def test_a_name_that_is_listed_is_answered(tmp_path):
    make(f"{tmp_path}/tables")
    with Site(str(tmp_path), allowed_hosts=("API.example",)).client() as client:
        assert client.get("/healthz", headers={"host": "api.example:8099"}).status_code == 200


def test_answers_cannot_be_sniffed_or_kept_and_no_other_site_is_let_in(look):
    headers = look.get("/healthz", headers={"origin": "https://evil.example"}).headers
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    assert not any(name.startswith("access-control") for name in headers)
    assert (
        look.options(
            "/v1/tasks", headers={"origin": "https://evil.example", "access-control-request-method": "POST"}
        ).status_code
        == 405
    )


def test_requests_are_counted_by_operation(client):
    client.get("/healthz")
    client.get("/nope")
    told = client.get("/metrics").text
    assert 'scyllaspark_api_requests_total{operation="check_liveness",status="200"} 1.0' in told
    assert 'scyllaspark_api_requests_total{operation="none",status="404"} 1.0' in told


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (
            {"content-type": "application/x-www-form-urlencoded"},
            "has the Content-Type application/x-www-form-urlencoded",
        ),
        ({}, "has no Content-Type"),
    ],
)
def test_a_body_that_is_not_sent_as_json_is_refused_with_the_header_to_send(client, headers, said):
    for method, path in (("POST", "/v1/tasks"), ("PUT", "/v1/queues/q")):
        told = client.request(method, path, content=b'{"handler": "h"}', headers=headers)
        assert (told.status_code, said in told.json()["detail"]) == (422, True)
        assert "Content-Type: application/json" in told.json()["hint"]
