"""What tokens of some queues get of what is about all: all that is theirs, and nothing by which the rest could be told to exist."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from scylla_spark.api.access.required_scopes import NEEDS, About
from scylla_spark.api.follow.recent_records import OutcomeEvent
from scylla_spark.api.follow.records_tail import Since
from scylla_spark.api.follow.stream import _Reader
from scylla_spark.client.handlers import gathered
from scylla_spark.clock import from_us, now_us
from scylla_spark.core.access.scopes import ALL_QUEUES, read_rights
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import _read as read_definition
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import HOUR_US, TaskKey
from scylla_spark.schemas import COMPLETIONS, FIRES, SCHEDULES, TASKS
from tests.api.test_api_access import give
from tests.api.test_handler_catalogue import row
from tests.support.api_site import Site, kind
from tests.support.dashboard_site import seen, sent
from tests.support.delta_tables import append, fact, make_filled, task

FOREIGN = "foreign"  # stands in all names of what is not the token's
MINUTE_US = 60_000_000
NIGHTLY = {"handler": "report", "cron": "0 2 * * *", "tz": "UTC"}


class Keys:
    """Tasks of a moment ago: of one lane each, and of a lane that holds some of both."""

    def __init__(self, now: int) -> None:
        self.now = now
        due = now - HOUR_US
        self.own = [TaskKey(due + 2 * number, "own", f"k{number}") for number in range(3)]
        self.foreign = [TaskKey(due + 2 * number + 1, FOREIGN, f"{FOREIGN}-{number}") for number in range(4)]
        self.head = TaskKey(due, "shared", f"{FOREIGN}-head")
        self.behind = TaskKey(due + 1, "shared", "behind")
        self.ended = TaskKey(due + 9, "own", "ended")
        self.foreign_ended = TaskKey(due + 9, FOREIGN, f"{FOREIGN}-ended")


@pytest.fixture
def keys():
    return Keys(now_us() // MINUTE_US * MINUTE_US)


@pytest.fixture
def site(tmp_path, keys):
    make_filled(f"{tmp_path}/tables", filled, keys.now)
    return Site(str(tmp_path))


def filled(path: str, now: int) -> None:
    keys = Keys(now)
    rows = [task(key, 1, queue="mail/a", handler="send") for key in (*keys.own, keys.behind, keys.ended)]
    others = [*keys.foreign, keys.head, keys.foreign_ended]
    append(path, TASKS, rows + [task(key, 1, queue=f"{FOREIGN}/q", handler=f"{FOREIGN}_h") for key in others])
    append(path, COMPLETIONS, [fact(key, 1, "failed", 2) for key in (keys.ended, keys.foreign_ended)])
    fires = {"planned_at": from_us(keys.ended.time_us), "decided_at": from_us(keys.ended.time_us), "verdict": "skipped"}
    append(path, FIRES, [{"schedule": name, "plan_offset": 1} | fires for name in ("mine", FOREIGN, f"{FOREIGN}-gone")])


@pytest.fixture
def client(site):
    admin, own = give(site, "admin"), give(site, "read", "tasks:write", "schedules:write", namespaces=["mail/"])
    with site.client() as client:
        for name, queue in (("mine", "mail/a"), (FOREIGN, f"{FOREIGN}/q")):
            assert (
                client.put(f"/v1/schedules/{name}", json=NIGHTLY | {"queue": queue}, headers=admin).status_code == 201
            )
            path = queue.replace("/", "%2F")
            assert client.put(f"/v1/queues/{path}", json={"default_handler": "send"}, headers=admin).status_code == 201
        client.headers = own
        yield client


def asked(client, method, path, **more):
    """The JSON of an answer, in which nothing foreign stands."""
    answer = client.request(method, path, headers=client.headers, **more)
    assert answer.status_code == 200, answer.text
    assert FOREIGN not in answer.text
    return answer.json()


# -- each operation -------------------------------------------------------------------------------------------------------


def lists_tasks(client, site, keys):
    """Pages are full: what is foreign is left out before they are cut."""
    first = asked(client, "GET", "/v1/tasks?limit=3")
    second = asked(client, "GET", f"/v1/tasks?limit=3&cursor={first['next']}")
    assert [len(first["tasks"]), len(second["tasks"]), second["next"]] == [3, 2, None]
    assert asked(client, "GET", f"/v1/tasks?filter=queue:{FOREIGN}/q")["tasks"] == []


def counts_tasks(client, site, keys):
    assert asked(client, "GET", "/v1/tasks:count") == {"matched": 5}
    assert asked(client, "GET", f"/v1/tasks:count?filter=handler:{FOREIGN}_h") == {"matched": 0}


def counts_by_queue_and_state(client, site, keys):
    totals = asked(client, "GET", "/v1/tasks:totals")["totals"]
    assert {(one["state"], one["count"]) for one in totals} == {("ready", 4), ("failed", 1)}


def cancels_by_filter(client, site, keys):
    done = asked(client, "POST", "/v1/tasks:cancel?filter=state:open")
    assert (done["matched"], done["sent"], len(site.connection.sender.records)) == (4, 4, 4)
    assert done["undo"].startswith("state:cancelled ended:>=20")


def retries_by_filter(client, site, keys):
    assert asked(client, "POST", "/v1/tasks:retry?filter=state:ended")["sent"] == 1


def restores_by_filter(client, site, keys):
    assert asked(client, "POST", "/v1/tasks:restore?filter=ended:>2000-01-01")["matched"] == 0
    gone = [TaskKey(now_us() + HOUR_US, "own", "gone"), TaskKey(now_us() + HOUR_US, FOREIGN, "gone")]
    path = site.settings.tables_path
    queues = ("mail/a", f"{FOREIGN}/q")
    append(path, TASKS, [task(key, 5, queue=queue) for key, queue in zip(gone, queues, strict=True)])
    append(path, COMPLETIONS, [fact(key, 0, "cancelled", 6) for key in gone])
    assert asked(client, "POST", "/v1/tasks:restore?filter=key:gone")["sent"] == 1
    (record,) = site.connection.sender.records
    assert FOREIGN not in str(record)


def tells_of_lateness(client, site, keys):
    found = asked(client, "GET", "/v1/lateness")
    assert (found["queues"], sum(one["open"] for one in found["cells"])) == (1, 4)


def looks_at_lanes(client, site, keys):
    assert [one["uniqueness_key"] for one in asked(client, "GET", "/v1/lanes/own")["tasks"]] == ["k0", "k1", "k2"]
    shared = asked(client, "GET", "/v1/lanes/shared")
    assert [one["uniqueness_key"] for one in shared["tasks"]] == ["behind"]
    assert "not for this token" in shared["why"]
    assert shared["head"] is None, "what it sees first is not the head"
    refused, none = (client.get(f"/v1/lanes/{name}", headers=client.headers) for name in (FOREIGN, "nothing"))
    assert kind(refused) == "/problems/not-found"
    assert refused.json() == none.json(), "nothing tells them apart"


def skips_heads(client, site, keys):
    (behind,) = asked(client, "GET", "/v1/lanes/shared")["tasks"]
    refused = client.post(f"/v1/lanes/shared:skip_head?head={behind['id']}", headers=client.headers)
    assert kind(refused) == "/problems/not-found"
    assert site.connection.sent == []
    client.post(
        f"/v1/lanes/own:skip_head?wait_ms=1&head={asked(client, 'GET', '/v1/lanes/own')['head']}",
        headers=client.headers,
    )
    assert [command.key for command in site.connection.sent] == [keys.own[0]]


def follows_the_stream(client, site, keys):
    """Ends name their queue; of attempts that do not, it is looked up."""
    api = site.app.state.api
    facts = (
        Fact(keys.foreign[0], 1, "succeeded", queue=f"{FOREIGN}/q"), Fact(keys.own[0], 1, "succeeded", queue="mail/a"),
        Fact(keys.foreign[1], 1, "failed", next_us=5), Fact(keys.own[1], 1, "failed", next_us=5),
        Fact(TaskKey(1, FOREIGN, "nowhere"), 1, "failed", next_us=5),
    )  # fmt: skip
    records = [OutcomeEvent(0, offset, 1, (fact,)) for offset, fact in enumerate(facts)]
    api.tail.places = lambda: {0: (0, 1)}
    api.tail.since = lambda wanted, listener, missed: Since({0: 0}, records)

    async def texts():
        reader = _Reader(api, None, read_rights(["read"], ["mail/"]).bounds("read"))
        await reader.begin()
        found = reader.events()
        return b"".join([await anext(found) for _ in range(1 + len(records))]).decode()

    told = asyncio.run(texts())
    assert [told.count(word) for word in ('"k0"', '"k1"', FOREIGN, "event: ")] == [1, 1, 0, 2]
    assert client.get("/v1/stream", headers=client.headers | {"Last-Event-ID": "x"}).status_code == 422, "let in"


def tells_how_it_is_doing(client, site, keys):
    found = asked(client, "GET", "/v1/overview")
    assert [one["name"] for one in found["queues"]] == ["mail/a"]
    assert (found["states"]["ready"], found["states"]["failed"], found["overdue"]["count"]) == (4, 1, 4)
    assert found["overdue"]["oldest"]["uniqueness_key"] == "k0"
    overviews = site.app.state.overviews.of(read_rights(["read"], ["mail/"]).bounds("read"))
    now = now_us()
    facts = [Fact(key, 1, "failed", now, now, now, queue=queue) for key, queue in (
        (keys.own[0], "mail/a"), (keys.foreign[0], f"{FOREIGN}/q"), (keys.foreign[1], None),
    )]  # fmt: skip
    overviews._pulse.heard(OutcomeEvent(0, 1, 1, tuple(facts)))
    overviews._until = 0
    lately = asked(client, "GET", "/v1/overview")["lately"]
    assert (lately["started"], lately["ended"], lately["failed"]) == (1, 1, 1)


def lists_queues(client, site, keys):
    assert [one["name"] for one in asked(client, "GET", "/v1/queues")["queues"]] == ["mail/a"]


def lists_schedules(client, site, keys):
    assert [one["name"] for one in asked(client, "GET", "/v1/schedules")["schedules"]] == ["mine"]
    assert asked(client, "GET", "/v1/schedules?limit=1")["next"] is None


def lists_past_schedules(client, site, keys):
    rows = [
        {"name": name, "change": "put", "changed_at": from_us(1), "plan_offset": 1}
        | {"definition": json.dumps({"handler": "h", "queue": queue})}
        for name, queue in (("mine", "mail/a"), (FOREIGN, f"{FOREIGN}/q"))
    ]  # fmt: skip
    append(site.settings.tables_path, SCHEDULES, rows)
    found = asked(client, "GET", "/v1/schedules:past?as_of=2026-01-01T00:00:00Z&limit=1")
    assert ([one["name"] for one in found["schedules"]], found["next"]) == (["mine"], None)


def lists_decisions(client, site, keys):
    assert [one["schedule"] for one in asked(client, "GET", "/v1/fires?limit=1")["fires"]] == ["mine"]


def tells_of_handlers(client, site, keys):
    """Handlers are of no queue; which queues fall back on one is told as far as they are seen."""
    site.app.state.api.handlers._look = lambda: gathered([("http://a:1", {"handlers": [row(name="send")]})])
    assert asked(client, "GET", "/v1/handlers")["handlers"][0]["queues"] == ["mail/a"]
    assert asked(client, "GET", "/v1/handlers/send")["queues"] == ["mail/a"]


def pauses_and_resumes_schedules(client, site, keys):
    now, entries = now_us(), site.connection.plan.state().entries
    window = {"changed_from": "2020-01-01T00:00:00Z"}
    for steer, paused in (("pause", True), ("resume", False)):
        told = asked(client, "POST", f"/v1/schedules:{steer}", json=window)
        assert told["changes"] == {"mine": f"{steer}d"}
        assert (entries["mine"].paused, entries[FOREIGN].paused) == (paused, False)
    assert entries[FOREIGN].changed_us <= now


def deletes_schedules(client, site, keys):
    told = asked(client, "POST", "/v1/schedules:delete", json={"changed_from": "2020-01-01T00:00:00Z"})
    assert told["changes"] == {"mine": "removed"}
    assert list(site.connection.plan.state().entries) == [FOREIGN]


OWN = {
    "list_handlers": tells_of_handlers,
    "get_handler": tells_of_handlers,
    "list_tasks": lists_tasks,
    "count_tasks": counts_tasks,
    "get_task_totals": counts_by_queue_and_state,
    "cancel_tasks": cancels_by_filter,
    "retry_tasks": retries_by_filter,
    "restore_tasks": restores_by_filter,
    "get_lateness": tells_of_lateness,
    "get_lane": looks_at_lanes,
    "skip_lane_head": skips_heads,
    "stream_events": follows_the_stream,
    "get_overview": tells_how_it_is_doing,
    "list_queues": lists_queues,
    "list_schedules": lists_schedules,
    "list_past_schedules": lists_past_schedules,
    "pause_schedules": pauses_and_resumes_schedules,
    "resume_schedules": pauses_and_resumes_schedules,
    "delete_schedules": deletes_schedules,
    "list_fires": lists_decisions,
}


@pytest.mark.parametrize("operation", sorted(name for name, need in NEEDS.items() if need.about is About.OWN))
def test_an_operation_about_all_queues_tells_of_ones_own(client, site, keys, operation):
    OWN[operation](client, site, keys)


def test_an_explanation_names_no_other_task(client, site, keys):
    """A dispatcher tells what is before a task in its lane, and that may be of another queue."""
    head, path = str(keys.head), f"/v1/tasks/{keys.behind}/explain"
    told = {"key": str(keys.behind), "state": "ready", "attempts": 0, "source": "a dispatcher", "reason": "", "holders": [], "conditions": [
        {"name": "it is due", "met": True, "detail": "then"}, {"name": "it is the head", "met": False, "detail": f"before it: {head}"},
    ]}  # fmt: skip
    for why, shown in (
        (f"It waits for {head}: it runs.", "It waits for what is before it in its lane."),
        ("It is due.", "It is due."),
    ):
        site.app.state.api.scheduler.task = lambda key, why=why: SimpleNamespace(explain=lambda: told | {"why": why})
        found = asked(client, "GET", path)
        assert (found["why"], [one["detail"] for one in found["conditions"]]) == (shown, ["then", ""])
    told |= {"holders": [FOREIGN], "why": f"It is due, but queue {FOREIGN!r} holds 13 of its 16 children."}
    site.app.state.api.scheduler.task = lambda key: SimpleNamespace(explain=lambda: told)
    assert FOREIGN not in asked(client, "GET", path)["why"]


@pytest.mark.parametrize("path", ["", ":next", ":previous", ":explain", "/fires"])
def test_a_schedule_of_a_foreign_queue_is_not_found(client, path):
    assert client.get(f"/v1/schedules/mine{path}", headers=client.headers).status_code == 200
    foreign = client.get(f"/v1/schedules/{FOREIGN}{path}", headers=client.headers)
    none = client.get(f"/v1/schedules/{FOREIGN[::-1]}{path}", headers=client.headers)
    assert kind(foreign) == "/problems/not-found"
    assert foreign.text == none.text.replace(FOREIGN[::-1], FOREIGN), "nothing tells them apart"


def test_a_schedule_is_steered_by_who_sees_its_queue_and_not_defined(client):
    assert client.post("/v1/schedules/mine:pause", headers=client.headers).status_code == 200
    for action in (":pause", ":resume", ":run"):
        foreign = client.post(f"/v1/schedules/{FOREIGN}{action}", headers=client.headers)
        assert kind(foreign) == "/problems/not-found"
    assert kind(client.request("DELETE", f"/v1/schedules/{FOREIGN}", headers=client.headers)) == "/problems/not-found"
    body = NIGHTLY | {"queue": f"{FOREIGN}/q"}
    assert kind(client.put("/v1/schedules/new", json=body, headers=client.headers)) == "/problems/forbidden"


@pytest.mark.parametrize("query", ["?dry_run=true", ""])
def test_a_schedule_that_a_foreign_one_waits_for_is_not_deleted_and_neither_is_that_one(client, site, query):
    admin, after = give(site, "admin"), {"handler": "report", "after": "mine"}
    for name, queue in ((f"{FOREIGN}-down", f"{FOREIGN}/q"), ("down", "mail/b")):
        assert client.put(f"/v1/schedules/{name}", json=after | {"queue": queue}, headers=admin).status_code == 201
    before = dict(site.connection.plan.state().entries)
    etag = client.get("/v1/schedules/mine", headers=client.headers).headers["etag"]
    many = {"changed_from": "2020-01-01T00:00:00Z", "dry_run": bool(query)}
    for refused in (
        client.request("DELETE", f"/v1/schedules/mine{query}", headers=client.headers),
        client.request("DELETE", f"/v1/schedules/mine{query}", headers=client.headers | {"If-Match": etag}),
        client.post("/v1/schedules:delete", json=many, headers=client.headers),
    ):
        assert kind(refused) == "/problems/conflict"
        assert FOREIGN not in refused.text
    assert site.connection.plan.state().entries == before
    assert asked(client, "POST", "/v1/schedules/mine:pause")["done"] == "paused"
    assert client.request("DELETE", f"/v1/schedules/{FOREIGN}-down", headers=admin).status_code == 200
    assert asked(client, "DELETE", f"/v1/schedules/mine{query}")["also"] == {"down": "removed"}


def test_a_token_for_all_queues_deletes_what_waits_too(client, site):
    admin, after = give(site, "admin"), {"handler": "report", "after": "mine"}
    for name, queue in ((f"{FOREIGN}-down", f"{FOREIGN}/q"), ("down", "mail/b")):
        assert client.put(f"/v1/schedules/{name}", json=after | {"queue": queue}, headers=admin).status_code == 201
    for query in ("?dry_run=true", ""):
        everything = client.request("DELETE", f"/v1/schedules/mine{query}", headers=admin).json()
        assert everything["also"] == {"down": "removed", f"{FOREIGN}-down": "removed"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/schedules?limit=1", None),
        ("GET", "/v1/fires", None),
        ("POST", "/v1/schedules:pause", {"changed_from": "2020-01-01T00:00:00Z"}),
        ("POST", "/v1/schedules:resume", {"changed_from": "2020-01-01T00:00:00Z", "dry_run": True}),
    ],
)
def test_nobody_waits_while_definitions_are_read_or_schedules_copied_that_are_not_shown(
    client, site, method, path, body
):
    plan = site.app.state.api.plan
    ask, asked_so = plan.ask, []

    def watched(question):
        before = read_definition.cache_info()
        answered = ask(question)
        after = read_definition.cache_info()
        with pytest.raises(RuntimeError):  # it is a thread, not the loop that serves all requests
            asyncio.get_running_loop()
        asked_so.append(before[:2] == after[:2])
        asked_so.append(not isinstance(answered, PlanState) or answered.entries.keys() == {"mine"})
        return answered

    plan.ask = watched
    assert asked(client, method, path, json=body)
    assert all(asked_so)
    assert asked_so


def test_acts_of_a_token_of_single_queues_stay_within_them(client, site):
    headers = give(site, "read", "tasks:write:queue=mail/a")
    told = client.post("/v1/tasks:cancel?filter=state:open&dry_run=true", headers=headers).json()
    assert told["matched"] == 4
    assert client.get("/v1/tasks:count", headers=headers).json() == {"matched": 11}, "it may read all"


def test_bounds_are_what_a_scope_is_his_for():
    for scopes, namespaces in (
        (["read"], []),
        (["read"], ["mail/"]),
        (["lease:mail/a"], ["mail/"]),
        (["admin"], ["x"]),
    ):
        rights = read_rights(scopes, namespaces)
        for scope in ("read", "lease", "tasks:write"):
            for queue in ("mail/a", "mail/b", "x", "default"):
                assert rights.bounds(scope).has(queue) == rights.has_for(scope, queue)
    assert ALL_QUEUES.has(None)
    assert not read_rights(["read"], ["mail/"]).bounds("read").has(None)


# -- the screens ----------------------------------------------------------------------------------------------------------


def test_screens_of_who_sees_some_queues_show_those(client, site):
    text = client.headers["Authorization"].removeprefix("Bearer ")
    sent(client, "/ui/login", client.get("/ui/login"), token=text)
    for path in (
        "now",
        "tasks",
        "lanes?name=own",
        "schedules",
        "fires",
        "schedules/mine",
        "tasks:bulk?act=cancel&filter=state:open",
    ):
        page = client.get(f"/ui/{path}")
        assert page.status_code == 200, (path, seen(page))
        assert FOREIGN not in page.text
    assert "mail/a" in seen(client.get("/ui/now"))
