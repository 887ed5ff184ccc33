"""Who is let in by the API and for what: tokens that hold and others, scopes, namespaces, rates, and that no route is forgotten."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
import structlog

from scylla_spark.api.access import access, token_mirror
from scylla_spark.api.access.audit_trail import AuditTrail
from scylla_spark.api.access.refusals import Refusals
from scylla_spark.api.access.required_scopes import NEEDS, NOT_AUDITED
from scylla_spark.api.access.token_mirror import TokenView
from scylla_spark.api.http.metrics import ApiMetrics
from scylla_spark.clock import from_us, iso
from scylla_spark.core.access.scopes import PLAIN
from scylla_spark.core.access.token_text import digest_of, new_token
from scylla_spark.core.leases.messages import Answer, digest_of_token
from scylla_spark.core.plan.commands.plan_answer import checked_command
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.audit_entry import AuditEntry
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import UnreachableError
from scylla_spark.schemas import AUDIT_TRAIL, TASKS
from scylla_spark.transforms.plan_rows import plan_rows
from tests.support.api_site import Site, kind
from tests.support.delta_tables import append, at, make_filled, task
from tests.support.openapi_file import FILE
from tests.support.planner_harness import PlannerHarness

MAIL = TaskKey(at(10), "o", "mail")
GPU = TaskKey(at(10), "o", "gpu")
NONE = TaskKey(at(10), "o", "none")
ENTRY = AuditEntry(1_767_225_600_000_000, "x", "x", "x", "POST", "x", 200, "x")
MISSING = "/problems/unauthenticated"
OPERATIONS = {
    operation["operationId"]: (method, path)
    for path, methods in json.loads(FILE.read_text())["paths"].items()
    for method, operation in methods.items()
}


def made(tmp_path, **settings) -> Site:
    make_filled(f"{tmp_path}/tables", filled)
    return Site(str(tmp_path), **settings)


def filled(path: str) -> None:
    append(path, TASKS, [task(MAIL, 1, queue="mail"), task(GPU, 2, queue="gpu")])


@pytest.fixture
def site(tmp_path):
    return made(tmp_path)


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def give(site, *scopes, **more) -> dict[str, str]:
    """Stores a token; the headers that show it."""
    token = new_token()
    fields = {"id": token.id, "digest": digest_of(token), "name": "t", "scopes": list(scopes)} | more
    site.connection.plan.ask("put_token", tokens=[fields])
    return {"Authorization": f"Bearer {token.text}"}


def test_a_stranger_is_refused_before_his_body_has_come(site, client):
    give(site, "read")
    read = []

    async def never():
        read.append("a piece")
        yield b"{"
        await asyncio.Event().wait()

    answer = client.post(
        "/v1/tasks", content=never(), headers={"content-type": "application/json", "content-length": "9"}, timeout=60
    )
    assert kind(answer) == MISSING
    assert read == []


def test_a_token_speaks_for_no_worker_of_another(site, client):
    spoken, left = [], []

    async def call(asked):
        spoken.append(asked.worker)
        return Answer(0, tuple("ok" for _ in (*asked.reports, *asked.signs)))

    async def leave(worker, session):
        left.append((worker, session))
        return 0

    site.app.state.api.leases = SimpleNamespace(call=call)
    site.app.state.api.lease_servers = SimpleNamespace(leave=leave, close=lambda: None)
    lease = {"lease": "0." + "a" * 32}
    for headers in (give(site, "lease:mail"), give(site, "admin")):
        name = f"w@{headers['Authorization'].split('_')[1]}"
        asked = [
            client.post("/v1/workers/w/sync", json={"seq": 1, "session": "s"}, headers=headers),
            client.post("/v1/queues/mail/leases", json={"worker": "w"}, headers=headers),
            client.post("/v1/leases:extend", json={"worker": "w", "leases": [lease]}, headers=headers),
            client.post("/v1/leases:complete", json={"worker": "w", "leases": [lease]}, headers=headers),
            client.delete("/v1/workers/w?session=s", headers=headers),
        ]
        assert [one.status_code for one in asked] == [200] * 5
        assert (spoken, left) == ([name] * 4, [(name, "s")])
        client.post("/v1/leases:extend", json={"leases": [lease]}, headers=headers)
        assert spoken.pop() == "", "the token of a lease is proof enough"
        spoken.clear()
        left.clear()
    long = client.post(f"/v1/workers/{'w' * 250}/sync", json={"seq": 1, "session": "s"}, headers=headers)
    assert (kind(long), spoken) == ("/problems/invalid", [])


def test_a_name_in_a_path_is_the_one_that_is_sent_in_a_body(site, client):
    spoken = []

    async def call(asked):
        spoken.append(asked.worker)
        return Answer(0)

    async def leave(worker, session):
        spoken.append(worker)
        return 0

    site.app.state.api.leases = SimpleNamespace(call=call)
    site.app.state.api.lease_servers = SimpleNamespace(leave=leave, close=lambda: None)
    for path, name in (("a%20b", "a b"), ("%C3%A9%2Fx", "é/x")):
        assert client.post(f"/v1/workers/{path}/sync", json={"seq": 1, "session": "s"}).status_code == 200
        assert client.post("/v1/queues/mail/leases", json={"worker": name}).status_code == 200
        assert client.delete(f"/v1/workers/{path}?session=s").status_code == 200
        assert spoken == [name] * 3
        spoken.clear()
    assert kind(client.post("/v1/workers/%ff/sync", json={"seq": 1, "session": "s"})) == "/problems/invalid"


def test_an_operator_drains_and_stops_workers_by_the_names_that_the_list_shows(site, client):
    told = []

    async def order(worker, what):
        told.append((worker, what))
        return worker != "nobody"

    site.app.state.api.lease_servers = SimpleNamespace(order=order, close=lambda: None)
    headers = give(site, "queues:write")
    for what in ("drain", "stop"):
        answer = client.post(f"/v1/workers/w%40ab12:{what}", headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"worker": "w@ab12", "order": what})
    assert told == [("w@ab12", "drain"), ("w@ab12", "stop")]
    assert kind(client.post("/v1/workers/nobody:stop", headers=headers)) == "/problems/not-found"
    assert kind(client.post("/v1/workers/w:stop", headers=give(site, "lease", "tasks:write"))) == "/problems/forbidden"


# -- no route is forgotten ------------------------------------------------------------------------------------------------


def test_every_operation_says_what_it_needs_and_nothing_else_does():
    assert NEEDS.keys() == OPERATIONS.keys()
    assert {need.scope for need in NEEDS.values()} <= {None, "", *PLAIN}
    assert [name for name, need in NEEDS.items() if need.scope is None] == ["check_liveness"]
    assert NEEDS.keys() >= NOT_AUDITED


def test_what_changes_something_needs_more_than_reading():
    assert [
        name for name, (method, _) in OPERATIONS.items() if method != "get" and NEEDS[name].scope in ("", "read", None)
    ] == ["create_login_code", "simulate_queue"], "own rights under another name; which only plays"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A site that tests ask without changing it, and headers of three tokens by their scope."""
    site = made(tmp_path_factory.mktemp("guarded"))
    headers = {scope: give(site, scope) for scope in ("admin", "read", "lease:nothing")}
    with site.client() as client:
        yield client, headers


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_but_one_refuses_strangers_and_tokens_without_its_scope(guarded, name):
    client, headers = guarded
    weak = headers["lease:nothing" if NEEDS[name].scope != "lease" else "read"]
    method, path = OPERATIONS[name]
    stranger, other = client.request(method, path), client.request(method, path, headers=weak)
    if NEEDS[name].scope is None:
        assert (stranger.status_code, other.status_code) == (200, 200)
        return
    assert kind(stranger) == MISSING
    if NEEDS[name].scope:
        assert kind(other) == "/problems/forbidden"


def test_routes_without_what_guards_them_answer_nobody(site):
    with pytest.raises(access.Problem):
        access.may({}, "list_tasks")
    with pytest.raises(access.Problem):
        access.may({"caller": access.Caller("a", "a", access.read_rights(["read"], []))}, "an_operation_of_tomorrow")


# -- who is let in --------------------------------------------------------------------------------------------------------


def test_without_any_token_all_is_open(client):
    assert client.get("/v1/tasks").status_code == 200
    assert client.post("/v1/tasks", json={}).status_code == 202


def test_with_tokens_always_needed_nobody_comes_in_while_there_is_none(tmp_path):
    with made(tmp_path, tokens="always").client() as client:
        assert kind(client.get("/v1/tasks")) == MISSING
        assert client.get("/healthz").status_code == 200


def test_with_a_token_stored_everything_needs_one(site, client):
    headers = give(site, "read")
    refused = client.get("/v1/tasks")
    assert (kind(refused), refused.headers["www-authenticate"]) == (MISSING, "Bearer")
    assert client.get("/v1/tasks", headers=headers).status_code == 200
    assert kind(client.get("/v1/nothing")) == MISSING, "not even what there is, is told"
    assert client.get("/healthz").status_code == 200


HOSTILE = {
    "nothing": lambda text: {},
    "truncated": lambda text: {"Authorization": text[:-1]},
    "longer": lambda text: {"Authorization": text + "0"},
    "another secret": lambda text: {"Authorization": text[:-64] + "0" * 64},
    "unknown": lambda text: {"Authorization": f"Bearer {new_token().text}"},
    "another scheme": lambda text: {"Authorization": text.replace("Bearer", "Basic")},
    "no scheme": lambda text: {"Authorization": text.replace("Bearer ", "")},
    "twice": lambda text: [("Authorization", text), ("Authorization", text)],
    "in capitals": lambda text: {"Authorization": text.upper()},
    "in a cookie": lambda text: {"Cookie": text},
    "not ascii": lambda text: {"Authorization": (text + "ü").encode("latin-1")},
    "huge": lambda text: {"Authorization": text * 100_000},
    "a million words": lambda text: {"Authorization": "Bearer " + " ".join(["ss_"] * 1_000_000)},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_lets_nobody_in(guarded, change):
    client, headers = guarded
    text = headers["admin"]["Authorization"]
    assert client.get("/v1/tasks", headers={"Authorization": text}).status_code == 200
    assert kind(client.get("/v1/tasks", headers=change(text))) == MISSING


def test_the_word_bearer_is_read_in_any_letters(site, client):
    text = give(site, "read")["Authorization"].replace("Bearer", "bEARER")
    assert client.get("/v1/tasks", headers={"Authorization": text}).status_code == 200


def test_an_expired_token_is_none(site, client):
    give(site, "read")
    assert kind(client.get("/v1/tasks", headers=give(site, "read", expires=1))) == MISSING


def test_once_all_tokens_are_revoked_nobody_comes_in(site, client):
    assert kind(client.get("/v1/tasks", headers=give(site, "read", revoked=True))) == MISSING


def test_no_answer_and_no_log_line_has_the_secret(site, client):
    headers = give(site, "tasks:write")
    secret = headers["Authorization"][-64:]
    with structlog.testing.capture_logs() as lines:
        answers = [client.post("/v1/tasks", json={}, headers=headers), client.get("/v1/tasks", headers=headers)]
    assert [answer.status_code for answer in answers] == [202, 403]
    assert secret not in repr(lines) + "".join(answer.text + repr(answer.headers) for answer in answers)


# -- what it allows -------------------------------------------------------------------------------------------------------


def test_objects_of_foreign_queues_are_not_found(site, client):
    headers = give(site, "read", "tasks:write", "queues:write", namespaces=["ma"])
    for path in (
        f"/v1/tasks/{GPU}",
        f"/v1/tasks/{GPU}/result",
        "/v1/queues/gpu",
        "/v1/queues/gpu/stats",
    ):
        assert kind(client.get(path, headers=headers)) == "/problems/not-found"
    foreign, none = (client.get(f"/v1/tasks/{key}", headers=headers).json() for key in (GPU, NONE))
    assert foreign == none, "nothing tells them apart"
    assert client.get(f"/v1/tasks/{MAIL}", headers=headers).status_code == 200
    assert client.put("/v1/queues/mail", json={"rate": 1}, headers=headers).status_code == 201
    assert kind(client.put("/v1/queues/gpu", json={"rate": 1}, headers=headers)) == "/problems/not-found"
    assert kind(client.post(f"/v1/tasks/{GPU}:cancel", headers=headers)) == "/problems/not-found"
    assert site.connection.sent == []


def test_what_is_about_all_queues_needs_a_token_for_all(site, client):
    headers = give(site, "admin", namespaces=["ma"])
    for path in ("/v1/rejected", "/v1/workers", "/v1/calendars", "/v1/tokens", "/v1/audit", "/v1/system/tables"):
        assert kind(client.get(path, headers=headers)) == "/problems/forbidden"


@pytest.mark.parametrize("more", [{"namespaces": ["ma"]}, {}])
@pytest.mark.slow
def test_tasks_are_enqueued_into_queues_of_ones_own_only(site, client, more):
    headers = give(site, "tasks:write" if more else "tasks:write:queue=mail", **more)
    assert client.post("/v1/tasks", json={"queue": "mail"}, headers=headers).status_code == 202
    assert client.put(f"/v1/tasks/{NONE}", json={"queue": "mail"}, headers=headers).status_code == 202
    for body in ({"queue": "gpu"}, {}, {"queue": None}, {"queue": ["mail"]}):
        assert kind(client.post("/v1/tasks", json=body, headers=headers)) == "/problems/forbidden"
    assert len(site.connection.sent) == 2


def test_a_body_that_names_two_queues_is_judged_by_the_one_that_counts(site, client):
    headers = give(site, "tasks:write:queue=mail") | {"Content-Type": "application/json"}
    refused = client.post("/v1/tasks", content=b'{"queue": "mail", "queue": "gpu"}', headers=headers)
    assert kind(refused) == "/problems/forbidden"
    assert client.post("/v1/tasks", content=b'{"queue": "gpu", "queue": "mail"}', headers=headers).status_code == 202
    assert [command.queue for command in site.connection.sent] == ["mail"]


def test_a_task_of_a_foreign_queue_is_not_overwritten_by_its_key(site, client):
    headers = give(site, "tasks:write:queue=mail")
    key = {"scheduled_time": iso(GPU.time_us), "ordering_id": GPU.ordering_id, "uniqueness_key": GPU.uniqueness_key}
    assert kind(client.put(f"/v1/tasks/{GPU}", json={"queue": "mail"}, headers=headers)) == "/problems/not-found"
    assert kind(client.post("/v1/tasks", json=key | {"queue": "mail"}, headers=headers)) == "/problems/not-found"
    assert site.connection.sent == []


def test_leases_are_for_the_queues_of_the_scope(site, client):
    headers = give(site, "lease:mail")
    body = {"seq": 1, "session": "s", "want": [{"queue": "mail"}, {"queue": "gpu"}]}
    assert kind(client.post("/v1/workers/w/sync", json=body, headers=headers)) == "/problems/forbidden"
    assert kind(client.post("/v1/queues/gpu/leases", json={}, headers=headers)) == "/problems/forbidden"
    assert kind(client.post(f"/v1/tasks/{GPU}:lease", json={}, headers=headers)) == "/problems/not-found"
    body["want"] = [{"queue": "mail"}]
    for path, sent in (("/v1/workers/w/sync", body), ("/v1/queues/mail/leases", {})):
        assert client.post(path, json=sent, headers=headers).status_code == 503, "let in; no dispatcher is there"


# -- how often, and what is written down ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_token_that_asks_too_often_is_told_when_to_come_again_and_others_go_on(tmp_path):
    site = made(tmp_path, token_rate=0.1, token_burst=3)
    one, other = give(site, "read"), give(site, "read")
    with site.client() as client:
        answers = [client.get("/readyz", headers=one) for _ in range(4)]
        assert kind(answers[3]) == "/problems/busy"
        assert 0 < int(answers[3].headers["retry-after"]) <= 10
        assert client.get("/openapi.json", headers=other).status_code == 200
        assert client.get("/healthz", headers=one).status_code == 200


def test_every_change_is_written_down_with_who_asked_also_if_it_was_refused(site, client):
    headers = give(site, "tasks:write:queue=mail")
    with structlog.testing.capture_logs() as lines:
        client.post("/v1/tasks", json={"queue": "mail"}, headers=headers)
        client.post("/v1/tasks", json={"queue": "gpu"}, headers=headers)
        client.post("/v1/tasks", json={"queue": "mail"})
        client.get(f"/v1/tasks/{MAIL}", headers=headers)
    told = [
        (line["token"], line["name"], line["operation"], line["status"]) for line in lines if line["event"] == "audit"
    ]
    id = headers["Authorization"].split("_")[1]
    assert told == [(id, "t", "enqueue_task", 202), (id, "t", "enqueue_task", 403), ("", "", "", 401)]


LEASE = "0." + "ab" * 16


@pytest.mark.parametrize("path", [
    f"/v1/leases/{LEASE}/outputs/x.txt", f"/v1/leases/{LEASE}/logs", f"/v1/leases/{LEASE}", f"/V1/Leases//{LEASE}/logs",
    f"/v1/leases%2F{LEASE}%2Flogs", f"/v1/leases/{LEASE.replace('.', '%2E')}/logs", f"/v1/tokens/ss_0123456789ab_{'ab' * 32}",
])  # fmt: skip
@pytest.mark.parametrize("scopes", [(), ("read",), ("lease:mail", "admin")], ids=["stranger", "refused", "let in"])
def test_no_token_in_a_path_is_written_down(site, monkeypatch, path, scopes):
    trail = []
    monkeypatch.setattr(site.app.state.api.audit, "note", trail.append)
    headers = give(site, *scopes or ("read",))
    with site.client() as client, structlog.testing.capture_logs() as lines:
        for method in ("PUT", "POST", "DELETE"):
            answer = client.request(method, path, headers=headers if scopes else {}, content=b"hi")
            assert answer.status_code >= 400
            assert "ab" * 5 not in answer.text
    assert [line for line in lines if line["event"] == "audit"]
    assert "ab" * 5 not in repr((lines, trail))


def test_calls_of_one_lease_are_known_by_its_digest(site):
    with site.client() as client, structlog.testing.capture_logs() as lines:
        client.put(f"/v1/leases/{LEASE}/outputs/x.txt", content=b"hi")
    path = f"/v1/leases/{digest_of_token(LEASE)}/outputs/x.txt"
    assert [line["path"] for line in lines if line["event"] == "audit"] == [path]


def test_of_the_refusals_of_an_address_one_a_minute_is_written_down_and_tells_how_many_were_not(site, monkeypatch):
    trail, now = [], 10**12
    monkeypatch.setattr(site.app.state.api.audit, "note", trail.append)
    monkeypatch.setattr(access, "boot_us", lambda: now)
    give(site, "read")
    with site.client() as client, structlog.testing.capture_logs() as lines:
        assert [client.post("/v1/tasks", json={}).status_code for _ in range(20)] == [401] * 20
        assert len(trail) == 1
        now += 60_000_000
        assert client.get("/v1/tasks").status_code == 401
    assert len(trail) == 2
    assert [line.get("not_written_down") for line in lines if line["event"] == "audit"] == [None, 19]


def test_refusals_of_many_addresses_take_bounded_memory():
    refusals = Refusals()
    said = [refusals.counted(f"10.0.{n // 256}.{n % 256}", 0) for n in range(5_000)]
    assert said.count(0) == 1_001
    assert len(refusals._begun) == 1_001
    assert refusals.counted("10.0.19.135", 60_000_000) == 3_999
    assert refusals.counted("10.0.0.0", 300_000_000) == 0
    assert len(refusals._begun) == 1


def kept(client, trail, *requests):
    """What of some requests goes into the table: operation and status."""
    before = len(trail)
    for method, path, more in requests:
        client.request(method, path, **more)
    return [(entry.operation, entry.status) for entry in trail[before:]]


def test_the_table_has_what_is_changed_and_who_may_not_and_not_what_leaves_rows_of_its_own(site, monkeypatch):
    trail = []
    monkeypatch.setattr(site.app.state.api.audit, "note", trail.append)
    headers = give(site, "tasks:write:queue=mail", "queues:write")
    with site.client() as client:
        shown = {"headers": headers}
        assert kept(client, trail, ("POST", "/v1/queues/mail:pause", shown)) == [("pause_queue", 200)]
        assert kept(client, trail, ("PATCH", "/v1/queues/mail", shown | {"json": {"rate": -1}})) == [
            ("update_queue", 422)
        ]
        assert kept(client, trail, ("POST", "/v1/tasks", shown | {"json": {"queue": "gpu"}})) == [("enqueue_task", 403)]
        assert kept(client, trail, ("POST", "/v1/tasks", shown | {"json": {"queue": "mail"}})) == []
        assert kept(client, trail, ("GET", "/v1/queues", {})) == [("", 401)]
        assert kept(client, trail, ("GET", "/healthz", {}), ("POST", "/v1/nothing", shown)) == []
    id, path = headers["Authorization"].split("_")[1], "/v1/queues/mail:pause"
    assert trail[0]._replace(at_us=0) == (0, id, "t", "pause_queue", "POST", path, 200, "127.0.0.1")


def test_whoever_only_looks_what_an_operation_would_do_has_changed_nothing_and_stands_nowhere(site, monkeypatch):
    trail = []
    monkeypatch.setattr(site.app.state.api.audit, "note", trail.append)
    shown = {"headers": give(site, "tasks:write", "queues:write", "schedules:write", "admin")}
    looks = [
        ("POST", f"{path}{'&' if '?' in path else '?'}dry_run=true", shown)
        for path in (
            *(f"/v1/tasks:{act}?filter=queue:mail" for act in ("cancel", "retry", "restore")),
            "/v1/queues/mail:clear", "/v1/rejected:replay",
        )
    ] + [
        ("POST", path, shown | {"json": body | {"dry_run": True}})
        for path, body in (
            ("/v1/schedules:apply", {"schedules": []}), ("/v1/schedules:pause", {"tag": "x"}), ("/v1/schedules:resume", {"tag": "x"}),
        )
    ]  # fmt: skip
    with site.client() as client, structlog.testing.capture_logs() as lines:
        assert [client.request(method, path, **more).status_code for method, path, more in looks] == [200] * len(looks)
        assert trail == []
        assert kept(client, trail, ("POST", "/v1/tasks:cancel?filter=queue:mail&dry_run=true", {})) == [("", 401)]
        assert kept(client, trail, ("POST", "/v1/tasks:cancel?filter=queue:mail", shown)) == [("cancel_tasks", 200)]
    assert [line["status"] for line in lines if line["event"] == "audit"] == [401, 200]


def test_every_operation_that_can_be_looked_at_first_says_in_its_answer_whether_it_was():
    document = json.loads(FILE.read_text())
    parts = document["components"]["schemas"]

    def fields(content) -> set[str]:
        schema = content["content"]["application/json"]["schema"]
        return set(parts[schema["$ref"].rpartition("/")[2]]["properties"]) if "$ref" in schema else set()

    found = 0
    for method, path in OPERATIONS.values():
        operation = document["paths"][path][method]
        asked = {one["name"] for one in operation.get("parameters", ())}
        if "application/json" in operation.get("requestBody", {}).get("content", {}):
            asked |= fields(operation["requestBody"])
        if "dry_run" in asked:
            found += 1
            assert "dry_run" in fields(operation["responses"]["200"]), operation["operationId"]
    assert found >= 10


def test_entries_reach_the_planners_topic_a_second_later_and_those_that_find_no_room_are_counted():
    metrics, told, down = ApiMetrics(), [], [UnreachableError("down")]

    def tell(entries):
        if down:
            raise down.pop()
        told.append(entries)

    async def play():
        trail = AuditTrail(tell, metrics)
        for number in range(1_005):
            trail.note(ENTRY._replace(status=number % 600, path="\ud800" * 400))
        await trail.stop()
        assert told == [], "nobody acknowledged anything"
        await trail.stop()

    asyncio.run(play())
    assert [len(some) for some in told] == [50] * 20
    assert told[0][0].path == "?" * 300
    assert metrics.audit_lost._value.get() == 5
    checked_command("audit", entries=[entry.to_wire() for entry in told[0]])
    checked_command(
        "audit", entries=[ENTRY._make(["\x01" * 300 if one == "x" else one for one in ENTRY]).to_wire()] * 50
    )


def test_an_entry_becomes_a_row():
    plan = PlannerHarness()
    plan.raw(checked_command("audit", entries=[ENTRY.to_wire(), ENTRY._replace(status=403).to_wire()]))
    plan.turn()
    groups = [plan_log.decode(value) for value in plan.log]
    rows = [
        json.loads(row.text)
        for offset, group in enumerate(groups)
        for row in plan_rows(group, offset)
        if row.kind == "audit"
    ]
    assert {(row["at"], row["token"]) for row in rows} == {("2026-01-01T00:00:00Z", "x")}
    assert [row["status"] for row in rows] == [200, 403]


def test_the_trail_is_shown_the_newest_first_to_administrators(tmp_path):
    site = made(tmp_path)
    common = {"token": "x", "name": "n", "method": "POST", "path": "/", "client": "c", "plan_offset": 1}
    append(f"{tmp_path}/tables", AUDIT_TRAIL, [
        {"at": from_us(at(hour)), "operation": operation, "status": 200, **common} for hour, operation in ((1, "a"), (3, "b"), (2, "a"))
    ])  # fmt: skip
    headers = give(site, "admin")
    with site.client() as client:

        def look(query=""):
            found = client.get(f"/v1/audit{query}", headers=headers).json()["entries"]
            return [one["operation"] + one["at"][11:13] for one in found]

        assert look() == ["b03", "a02", "a01"]
        assert look("?limit=1") == ["b03"]
        assert look("?operation=a&limit=1") == ["a02"]
        assert look(f"?before={iso(at(2)).replace('+', '%2B')}") == ["a01"]
        assert look(f"?since={iso(at(2)).replace('+', '%2B')}") == ["b03", "a02"]


# -- how old what is known may be -----------------------------------------------------------------------------------------


class Clock:
    """A loop's clock that is moved by hand."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(token_mirror, "_time", lambda: self.now)


def test_a_revocation_is_obeyed_within_five_seconds(monkeypatch):
    clock, stored = Clock(monkeypatch), [{"a": 1}]
    view = TokenView(lambda: stored[0])

    async def asked():
        assert await view.now() == {"a": 1}
        stored[0] = {"a": 2}
        clock.now += token_mirror.OLDEST_S + 0.1
        assert await view.now() == {"a": 2}, "it waits for the log"

    asyncio.run(asked())


def test_a_new_token_is_looked_for_at_once(monkeypatch):
    Clock(monkeypatch)
    stored = [{"a": 1}]
    view = TokenView(lambda: stored[0])

    async def asked():
        await view.now()
        stored[0] = {"a": 1, "b": 1}
        assert "b" in await view.now("b"), "also right after the last look"

    asyncio.run(asked())


def test_while_the_log_cannot_be_read_nobody_is_let_in_by_what_is_old(monkeypatch):
    clock, down = Clock(monkeypatch), [False]

    def read():
        if down[0]:
            raise UnreachableError("Kafka did not answer.")
        return {"a": 1}

    view = TokenView(read)

    async def asked():
        await view.now()
        down[0] = True
        clock.now += 4
        assert await view.now() == {"a": 1}
        clock.now += 2
        with pytest.raises(UnreachableError):
            await view.now()

    asyncio.run(asked())


def test_where_nobody_knows_whether_there_are_tokens_nobody_is_let_in(monkeypatch):
    Clock(monkeypatch)

    def read():
        raise UnreachableError("Kafka did not answer.")

    with pytest.raises(UnreachableError):
        asyncio.run(TokenView(read).now())


# -- tokens over HTTP -----------------------------------------------------------------------------------------------------


def test_an_administrator_makes_a_token_that_holds_at_once_and_is_told_once(site, client):
    admin = give(site, "admin")
    with structlog.testing.capture_logs() as lines:
        wanted = {"name": "ci", "scopes": ["read"], "namespaces": ["ma"], "expires_at": "2200-01-01T00:00:00Z"}
        made = client.post("/v1/tokens", json=wanted, headers=admin)
    assert (made.status_code, made.json()["expires_at"], made.headers["cache-control"]) == (
        201,
        "2200-01-01T00:00:00Z",
        "no-store",
    )
    told = made.json()
    assert told["token"].split("_")[1] == told["id"]
    assert told["token"][-64:] not in repr(lines)
    headers = {"Authorization": f"Bearer {told['token']}"}
    assert client.get("/v1/me", headers=headers).json() == {
        "id": told["id"],
        "name": "ci",
        "scopes": ["read"],
        "namespaces": ["ma"],
    }
    listed = client.get("/v1/tokens", headers=admin)
    assert told["token"][-64:] not in listed.text
    assert next(one for one in listed.json()["tokens"] if one["id"] == told["id"])["author"] == "t", (
        "the name of the token that asked"
    )


def test_a_revoked_token_is_worth_nothing_and_stays_listed(site):
    admin, other = give(site, "admin"), give(site, "read")
    id = other["Authorization"].split("_")[1]
    with site.client() as client:
        assert client.delete(f"/v1/tokens/{id}", headers=admin).json() == {"id": id, "done": "revoked"}
        assert site.connection.plan.state().tokens[id].revoked
        assert kind(client.delete("/v1/tokens/000000000000", headers=admin)) == "/problems/not-found"
    with site.client() as client:  # as another process
        assert kind(client.get("/v1/tasks", headers=other)) == MISSING
        states = {one["id"]: one["state"] for one in client.get("/v1/tokens", headers=admin).json()["tokens"]}
    assert states[id] == "revoked"


@pytest.mark.parametrize("body", [
    {}, {"name": "x"}, {"name": "x", "scopes": []}, {"name": "x", "scopes": ["all"]}, {"name": "", "scopes": ["read"]},
    {"name": "x", "scopes": "read"}, {"name": "x", "scopes": ["read"], "namespaces": ["\n"]}, {"name": "x", "scopes": ["read"] * 101},
    {"name": "x", "scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}, {"name": "x", "scopes": ["read"], "id": "0" * 12},
])  # fmt: skip
def test_what_is_no_token_is_not_made(site, client, body):
    assert kind(client.post("/v1/tokens", json=body, headers=give(site, "admin"))) == "/problems/invalid"
    assert len(site.connection.plan.state().tokens) == 1


def test_an_administrator_of_some_queues_makes_no_tokens(site, client):
    headers = give(site, "admin", namespaces=["ma"])
    assert (
        kind(client.post("/v1/tokens", json={"name": "x", "scopes": ["admin"]}, headers=headers))
        == "/problems/forbidden"
    )
    assert kind(client.delete("/v1/tokens/000000000000", headers=headers)) == "/problems/forbidden"
