"""Routes of schedules, calendars and events, in front of a real planner without brokers."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scylla_spark import Schedule, Scheduler, Trigger
from scylla_spark.client.schedules.handle import _known_next
from scylla_spark.client.schedules.sets import put
from scylla_spark.clock import from_us, iso, to_us
from scylla_spark.core.plan.times.fire_times import FireTimes
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from scylla_spark.schemas import ATTEMPTS, FIRES, TASKS
from tests.support.api_site import Site, kind
from tests.support.delta_tables import append, at, fact, make, task

NIGHTLY = {"handler": "report", "cron": "0 2 * * *", "tz": "Europe/Berlin", "max_running": 2}


@pytest.fixture
def site(tmp_path):
    make(f"{tmp_path}/tables")
    return Site(str(tmp_path))


@pytest.fixture
def client(site):
    with site.client() as client:
        client.put("/v1/schedules/nightly", json=NIGHTLY)
        yield client


def scheduler_of(site) -> Scheduler:
    scheduler = Scheduler(site.connection.settings)
    scheduler.connection = site.connection
    return scheduler


def test_a_schedule_is_stored_and_shown_with_its_version(client):
    answer = client.get("/v1/schedules/nightly")
    found = answer.json()
    assert (found["state"], found["handler"], found["revision"], found["etag"]) == (
        "active",
        "report",
        1,
        answer.headers["etag"],
    )
    assert found["definition"]["maxRunning"] == 2
    assert found["definition"]["trigger"] == {"kind": "cron", "expression": "0 2 * * *", "tz": "Europe/Berlin"}


@pytest.mark.parametrize("name", ["team/nightly", "a:b", "nightly:next", "x.y@z-1", "a/b/c:pause"])
def test_names_may_hold_what_paths_set_apart(client, name):
    from urllib.parse import quote

    path = f"/v1/schedules/{quote(name, safe='')}"
    assert client.put(path, json=NIGHTLY).status_code == 201
    assert client.get(path).json()["name"] == name
    assert client.post(f"{path}:pause").json() == {"name": name, "done": "paused"}
    assert client.get(f"{path}:next").json()["paused"] is True
    assert client.request("DELETE", path).status_code == 200


def test_a_put_of_a_stored_one_must_say_which_version_it_replaces(client):
    missing = client.put("/v1/schedules/nightly", json=NIGHTLY | {"note": "x"})
    assert (kind(missing), missing.status_code) == ("/problems/if-match-needed", 428)
    etag = missing.headers["etag"]
    changed = client.put("/v1/schedules/nightly", json=NIGHTLY | {"note": "x"}, headers={"If-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag
    late = client.put("/v1/schedules/nightly", json=NIGHTLY, headers={"If-Match": etag})
    assert (kind(late), late.headers["etag"]) == ("/problems/changed", changed.headers["etag"])
    assert client.put("/v1/schedules/nightly", json=NIGHTLY, headers={"If-Match": "*"}).status_code == 200
    assert kind(client.put("/v1/schedules/new", json=NIGHTLY, headers={"If-Match": "*"})) == "/problems/changed"


def test_what_changes_between_the_look_and_the_planner_is_noticed_by_the_planner(client, site):
    ask = site.connection.plan.ask

    def late(kind_, **fields):
        ask("pause", names=["nightly"])
        return ask(kind_, **fields)

    site.connection.plan.ask = late
    etag = client.get("/v1/schedules/nightly").headers["etag"]
    other = client.put("/v1/schedules/nightly", json=NIGHTLY | {"note": "x"}, headers={"If-Match": etag})
    assert kind(other) == "/problems/changed"


@pytest.mark.parametrize("match", [{}, {"If-Match": '"1.1"'}], ids=["no version", "the version before"])
def test_a_put_that_is_repeated_changes_nothing(client, match):
    first = client.get("/v1/schedules/nightly")
    again = client.put("/v1/schedules/nightly", json=dict(reversed(NIGHTLY.items())), headers=match)
    assert (again.status_code, again.headers["etag"], again.json()) == (200, first.headers["etag"], first.json())
    other = client.put("/v1/schedules/nightly", json=NIGHTLY | {"payload": {"a": 1}}, headers={"If-Match": "*"})
    assert other.headers["etag"] != first.headers["etag"]
    assert client.put("/v1/schedules/nightly", json=NIGHTLY | {"payload": {"a": True}}).status_code == 428


def test_a_patch_keeps_what_it_leaves_out_and_null_takes_out(client):
    client.request("PATCH", "/v1/schedules/nightly", json={"note": "n", "priority": 7})
    found = client.request("PATCH", "/v1/schedules/nightly", json={"note": None, "max_running": 3}).json()["definition"]
    assert (found["maxRunning"], found["priority"], "note" in found) == (3, 7, False)
    trigger = client.request("PATCH", "/v1/schedules/nightly", json={"trigger": {"expression": "0 3 * * *"}}).json()[
        "definition"
    ]["trigger"]
    assert trigger == {"kind": "cron", "expression": "0 3 * * *", "tz": "Europe/Berlin"}
    trigger = client.request("PATCH", "/v1/schedules/nightly", json={"every": "1h"}).json()["definition"]["trigger"]
    assert trigger == {"kind": "every", "period": "1h"}
    assert kind(client.request("PATCH", "/v1/schedules/nope", json={"note": "n"})) == "/problems/not-found"


def test_a_patch_replaces_a_payload_and_what_an_event_must_say_whole(client):
    def patched(fields):
        return client.request("PATCH", "/v1/schedules/nightly", json=fields).json()["definition"]

    patched({"payload": {"a": 1, "b": {"x": 1}}, "event": "stock", "where": {"site": 3, "kind": "a"}})
    found = patched({"payload": {"b": {"y": None}}, "trigger": {"where": {"site": 4}}})
    assert found["payload"] == {"b": {"y": None}}
    assert found["trigger"] == {"kind": "event", "name": "stock", "where": {"site": 4}}
    assert patched({"note": "n"})["payload"] == {"b": {"y": None}}
    assert "payload" not in patched({"payload": None})


@pytest.mark.slow
def test_a_schedule_is_paused_resumed_and_run(client, site):
    assert (
        client.post("/v1/schedules/nightly:pause", json={"note": "month end", "until": "2099-01-01T00:00:00Z"}).json()[
            "done"
        ]
        == "paused"
    )
    found = client.get("/v1/schedules/nightly").json()
    assert (found["state"], found["note"], found["until"]) == ("paused", "month end", "2099-01-01T00:00:00Z")
    assert kind(client.post("/v1/schedules/nightly:pause")) == "/problems/conflict"
    assert client.post("/v1/schedules/nightly:resume").json()["done"] == "resumed"
    run = client.post("/v1/schedules/nightly:run", json={"payload": {"a": 1}})
    assert run.status_code == 201
    assert site.connection.plan.planner.sent[-1]["taskData"] == {"a": 1}
    assert client.get("/v1/schedules/nightly").json()["runs"] == [run.json()["id"]]


def test_times_tell_of_clock_changes(client):
    client.put("/v1/schedules/b", json={"handler": "h", "cron": "30 2 28 3 *", "tz": "Europe/Berlin"})
    times = client.get("/v1/schedules/b:next?count=3").json()["times"]
    assert all(time["local"].endswith("02:30") or "clock" in time["note"] for time in times)
    assert len(client.get("/v1/schedules/nightly:previous?count=2").json()["times"]) == 2
    client.put("/v1/schedules/e", json={"handler": "h", "event": "stock"})
    assert kind(client.get("/v1/schedules/e:next")) == "/problems/invalid"


class Watched(dict):
    """Calendars that note whether somebody looks one up while the planner's state is being asked."""

    def __init__(self, days, lock):
        super().__init__(days)
        self.lock, self.looked_up = lock, []

    def get(self, name, default=None):
        self.looked_up.append(self.lock.locked())
        return super().get(name, default)


@pytest.mark.parametrize("asked", ["next", "previous", "explain"])
def test_times_are_reckoned_while_others_may_ask_the_planners_state(site, client, asked):
    client.put("/v1/calendars/always", json={"days": ["2026-01-01"]})
    client.put(
        "/v1/schedules/b", json={"handler": "h", "cron": "0 9 * * *", "calendar": "always", "on_holiday": "next"}
    )
    state, lock = site.connection.plan.state(), threading.Lock()
    state.calendars = Watched(state.calendars, lock)

    def ask(question):
        with lock:
            return question(state)

    site.app.state.api.plan.ask = ask
    found = client.get(f"/v1/schedules/b:{asked}")
    assert found.status_code == 200
    assert found.json().get("times") or "due" in " ".join(found.json()["said"])
    assert True not in state.calendars.looked_up


def test_it_is_told_why_a_schedule_does_not_run(client):
    client.post("/v1/schedules/nightly:pause", json={"note": "month end"})
    assert any("month end" in sentence for sentence in client.get("/v1/schedules/nightly:explain").json()["said"])
    assert client.get("/v1/schedules/nightly/fires").json() == {"fires": [], "complete": False}
    assert kind(client.get("/v1/schedules/nope:explain")) == "/problems/not-found"
    assert kind(client.get("/v1/schedules/nope/fires")) == "/problems/not-found"


def test_it_is_told_as_what_a_run_failed_that_is_tried_again(client, site, tmp_path):
    made = client.post("/v1/schedules/nightly:run").json()
    assert not any("failed" in one for one in client.get("/v1/schedules/nightly:explain").json()["said"])
    key = TaskKey(to_us(datetime.fromisoformat(made["scheduled_time"])), made["ordering_id"], made["uniqueness_key"])
    append(f"{tmp_path}/tables", TASKS, [task(key, 1)])
    failed = fact(key, 1, "failed", 2, error_class="handler_unknown", error_message="No.\x1b", next_at=from_us(at(10)))
    append(f"{tmp_path}/tables", ATTEMPTS, [failed])
    said = client.get("/v1/schedules/nightly:explain").json()["said"][-1]
    assert "has failed once, the last time as handler_unknown (No.\\x1b); it is tried again at 20" in said


def test_a_backfill_leaves_out_the_times_and_stretches_that_it_is_told(client, site):
    client.put("/v1/schedules/hourly", json={"handler": "h", "every": "1h"})
    days = {"begin": "2026-01-01T00:00:00Z", "end": "2026-01-01T06:00:00Z", "dry_run": True}
    without = ["2026-01-01T05:00:00Z", ["2026-01-01T01:00:00Z", "2026-01-01T03:00:00Z"]]
    told = client.post("/v1/schedules/hourly:backfill", json=days | {"exclude": without}).json()
    assert [one[11:13] for one in told["planned"]] == ["00", "03", "04"]
    hourly = scheduler_of(site).schedule("hourly")
    day = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(7)]
    made = hourly.backfill(day[0], day[6], exclude=[day[5], (day[1], day[3])])
    assert made.planned == [day[0], day[3], day[4]]
    planner = site.connection.plan.planner
    planner.pass_s(0)
    planner.end()
    planner.end()
    assert len(planner.sent) == 3
    for wrong in (["2026-01-01T05:30:00Z"], [["2026-01-01T05:00:00Z"] * 2], [["2026-01-01T05:00:00Z"]], ["noon"]):
        assert kind(client.post("/v1/schedules/hourly:backfill", json=days | {"exclude": wrong})) == "/problems/invalid"


def test_a_backfill_of_a_data_schedule_runs_past_versions_of_its_table(client, site, tmp_path):
    path = f"{tmp_path}/orders"
    for number in (1, 2, 3):
        write_deltalake(path, pa.table({"id": list(range(number))}), mode="append")
    DeltaTable(path).optimize.compact()
    write_deltalake(path, pa.table({"id": [1]}), mode="append")
    definition = {
        "handler": "h",
        "trigger": {"kind": "table", "table": path},
        "payload": {"from": "{{ table.from_version }}"},
    }
    assert client.put("/v1/schedules/rollup", json=definition).status_code == 201
    wanted = {"begin": 0, "end": 4, "max_running": 2}
    told = client.post("/v1/schedules/rollup:backfill", json=wanted | {"dry_run": True}).json()
    assert [(one["from_version"], one["to_version"], one["rows"]) for one in told["versions"]] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 4, 1),
    ]
    assert (told["tag"], len(told["planned"])) == ("", 3)
    newest = client.post("/v1/schedules/rollup:backfill", json=wanted | {"order": "newest"}).json()
    assert (newest["tag"], newest["versions"]) == ("backfill:rollup/1", told["versions"][::-1])
    planner = site.connection.plan.planner
    planner.pass_s(0)
    assert [one["taskData"] for one in planner.sent] == [{"from": 2}, {"from": 1}]
    left = client.post("/v1/schedules/rollup:backfill", json=wanted | {"dry_run": True}).json()["versions"]
    assert [one["from_version"] for one in left] == [1, 2], (
        "what is left of the other will run; no table of fires is kept here"
    )
    for wrong, hint in (
        ({"begin": 0, "end": 9}, "ends with version 4"), ({"begin": 0, "end": "2026-01-01T00:00:00Z"}, "two versions"),
        ({"begin": 3, "end": 2}, "no versions after"), ({"begin": 0, "end": 2, "exclude": ["2026-01-01T00:00:00Z"]}, "left out of"),
    ):  # fmt: skip
        problem = client.post("/v1/schedules/rollup:backfill", json=wrong)
        assert kind(problem) == "/problems/invalid"
        assert hint in problem.text
    assert "watches no table" in client.post("/v1/schedules/nightly:backfill", json=wanted).text


def test_a_backfill_is_listed_paused_resumed_and_cancelled_as_a_whole(client, site):
    client.put("/v1/schedules/team%2Fhourly", json={"handler": "h", "every": "1h"})
    path, planner = "/v1/schedules/team%2Fhourly", site.connection.plan.planner
    assert client.get(f"{path}/backfills").json() == {"backfills": []}
    days = {"begin": "2026-01-01T00:00:00Z", "end": "2026-01-01T06:00:00Z", "order": "newest"}
    assert client.post(f"{path}:backfill", json=days, params={"author": "me"}).json()["tag"] == "backfill:team/hourly/1"
    planner.pass_s(0)
    planner.pass_s(10)
    planner.end(0, "failed")
    (found,) = client.get(f"{path}/backfills").json()["backfills"]
    numbers = ("number", "total", "done", "succeeded", "failed", "cancelled", "running", "left", "max_running")
    assert [found[name] for name in numbers] == [1, 6, 1, 0, 1, 0, 1, 4, 1]
    assert (found["state"], found["author"], found["over_at"]) == ("running", "me", None)
    assert found["ends_at"] > found["begun_at"]
    assert client.post(f"{path}/backfills/1:pause").json()["state"] == "paused"
    assert client.get(f"{path}/backfills").json()["backfills"][0]["ends_at"] is None
    assert kind(client.post(f"{path}/backfills/1:pause")) == "/problems/conflict"
    planner.end(1)
    assert len(planner.sent) == 2
    assert client.post(f"{path}/backfills/1:resume").json()["state"] == "running"
    planner.pass_s(0)
    assert [one["uniquenessKey"].split("/")[2][11:13] for one in planner.sent] == ["05", "04", "03"]
    cancelled = client.post(f"{path}/backfills/1:cancel").json()
    assert (cancelled["state"], cancelled["left"], cancelled["over_at"] is None) == ("cancelled", 0, False)
    for wrong in ("9:pause", "9:resume"):
        assert kind(client.post(f"{path}/backfills/{wrong}")) == "/problems/not-found"
    assert kind(client.post(f"{path}/backfills/0:cancel")) == "/problems/invalid"
    assert kind(client.get("/v1/schedules/nope/backfills")) == "/problems/not-found"
    handle = scheduler_of(site).schedule("team/hourly")
    assert [(one.tag, one.state, one.done) for one in handle.backfills()] == [
        ("backfill:team/hourly/1", "cancelled", 2)
    ]
    with pytest.raises(ArgumentError, match="tag of no backfill"):
        handle.pause_backfill("backfill:other/1")
    with pytest.raises(ConflictError, match="was cancelled"):
        handle.resume_backfill("backfill:team/hourly/1")


def test_a_schedule_goes_on_where_it_was_or_from_now_on(client, site):
    asked, ask = [], site.connection.plan.ask
    site.connection.plan.ask = lambda kind_, **fields: asked.append(fields) or ask(kind_, **fields)
    for begin, body in ((None, None), (None, {"begin": "pause"}), (True, {"begin": "now"})):
        client.post("/v1/schedules/nightly:pause")
        assert client.post("/v1/schedules/nightly:resume", json=body).json()["done"] == "resumed"
        assert asked[-1]["fromNow"] is begin
    client.put("/v1/schedules/b", json=NIGHTLY | {"tags": ["x"]})
    client.post("/v1/schedules/b:pause")
    told = client.post("/v1/schedules:resume", json={"tag": "x", "begin": "now"}).json()
    assert (told["changes"], asked[-1]["fromNow"]) == ({"b": "resumed"}, True)
    assert kind(client.post("/v1/schedules/nightly:resume", json={"begin": "then"})) == "/problems/invalid"
    with pytest.raises(ArgumentError):
        scheduler_of(site).schedule("nightly").resume(begin="then")


def test_lists_choose_and_go_on(client):
    for name in ("a", "b", "c"):
        client.put(f"/v1/schedules/{name}", json={"handler": "h", "event": "e", "tags": ["t"], "owner": "o"})
    client.post("/v1/schedules/b:pause")
    names = lambda query: [one["name"] for one in client.get(f"/v1/schedules{query}").json()["schedules"]]  # noqa: E731
    assert names("") == ["a", "b", "c", "nightly"]
    assert names("?tag=t&state=active") == ["a", "c"]
    assert names("?kind=time") == ["nightly"]
    page = client.get("/v1/schedules?owner=o&limit=2").json()
    assert ([one["name"] for one in page["schedules"]], page["next"]) == (["a", "b"], "b")
    assert names("?owner=o&limit=2&after=b") == ["c"]
    assert kind(client.get("/v1/schedules?state=asleep")) == "/problems/invalid"


def test_a_set_is_compared_then_stored(client):
    wanted = {"schedules": [{"name": "s", "handler": "h", "every": "1h", "owner": "ci"}], "prune": "ci"}
    assert client.post("/v1/schedules:apply", json=wanted | {"dry_run": True}).json() == {
        "changes": {"s": "added"},
        "dry_run": True,
        "warnings": [],
    }
    assert kind(client.get("/v1/schedules/s")) == "/problems/not-found"
    assert client.post("/v1/schedules:apply", json=wanted).json()["changes"] == {"s": "added"}
    other = {"schedules": [], "prune": "ci"}
    assert client.post("/v1/schedules:apply", json=other).json()["changes"] == {"s": "removed"}


def test_a_delete_names_all_others_that_lose_something_and_may_be_tried_before(client):
    client.put("/v1/schedules/lone", json={"handler": "h", "after": "nightly"})
    client.put("/v1/schedules/either", json={"handler": "h", "any": [{"after": "nightly"}, {"cron": "0 1 * * *"}]})
    also = {"lone": "removed", "either": "changed"}
    would = client.request("DELETE", "/v1/schedules/nightly?dry_run=true")
    assert would.json() == {"name": "nightly", "change": "removed", "also": also, "dry_run": True}
    assert client.get("/v1/schedules/lone").status_code == 200
    assert client.request("DELETE", "/v1/schedules/nightly").json()["also"] == also
    assert kind(client.get("/v1/schedules/lone")) == "/problems/not-found"
    assert kind(client.request("DELETE", "/v1/schedules/nightly?dry_run=true")) == "/problems/not-found"


def test_a_schedule_is_deleted_once(client):
    assert kind(client.request("DELETE", "/v1/schedules/nightly", headers={"If-Match": '"1.1"'})) == "/problems/changed"
    assert client.request("DELETE", "/v1/schedules/nightly").json() == {
        "name": "nightly", "change": "removed", "also": {}, "dry_run": False
    }  # fmt: skip
    assert kind(client.request("DELETE", "/v1/schedules/nightly")) == "/problems/not-found"


@pytest.mark.parametrize(
    ("body", "told"),
    [({}, "handler"), ({"handler": "h"}, "trigger"), (NIGHTLY | {"nope": 1}, "nope"), (NIGHTLY | {"cron": "x"}, "cron"),
     (NIGHTLY | {"name": "other"}, "another name"), (NIGHTLY | {"every": "1h"}, "two triggers"), (NIGHTLY | {"tz": "Mars"}, "Mars"),
     ([], "body"), (None, "body"), ({"handler": "h", "trigger": 7}, "trigger")],
    ids=range(10),
)  # fmt: skip
def test_a_definition_that_is_none_is_told_with_its_field(client, body, told):
    answer = client.put("/v1/schedules/bad", json=body)
    assert (kind(answer), told in answer.text) == ("/problems/invalid", True), answer.text


def test_events_and_partitions_are_told_to_the_planner(client, site):
    assert client.post("/v1/events", json={"name": "stock", "fields": {"site": 3}}).status_code == 202
    assert (
        client.post(
            "/v1/partitions", json={"dataset": "d", "partitions": [{"rows": 3, "values": {"day": "x"}}]}
        ).status_code
        == 202
    )
    assert site.connection.plan.told == [
        ("event", {"name": "stock", "fields": {"site": 3}}),
        ("partitions", {"name": "d", "partitions": [{"values": {"day": "x"}, "rows": 3}]}),
    ]
    assert kind(client.post("/v1/events", json={"name": ""})) == "/problems/invalid"
    assert (
        kind(client.post("/v1/partitions", json={"dataset": "d", "partitions": [{"rows": -1}]})) == "/problems/invalid"
    )


def test_calendars_are_replaced_and_removed(client):
    assert client.put("/v1/calendars/de", json={"days": ["2026-12-26", "2026-12-25", "2026-12-25"]}).json()["days"] == [
        "2026-12-25",
        "2026-12-26",
    ]
    assert client.get("/v1/calendars").json() == {"calendars": {"de": 2}}
    told = {"days": ["2026-12-25", "2026-12-26"], "notes": {"2026-12-25": "Christmas Day"}}
    assert client.put("/v1/calendars/de", json=told).json() == {"name": "de"} | told
    assert client.get("/v1/calendars/de").json() == {"name": "de"} | told
    strange = client.put("/v1/calendars/de", json={"days": ["2026-12-25"], "notes": {"2026-12-26": "x"}})
    assert (kind(strange), "2026-12-26" in strange.json()["detail"]) == ("/problems/invalid", True)
    assert client.put("/v1/calendars/de", json={"days": []}).json()["days"] == []
    assert kind(client.get("/v1/calendars/de")) == "/problems/not-found"
    assert kind(client.put("/v1/calendars/de", json={"days": ["2026-13-01"]})) == "/problems/invalid"
    assert kind(client.put("/v1/calendars/de", json={"days": [20261225]})) == "/problems/invalid"


def test_a_schedule_shows_its_trigger_as_a_tree_with_what_has_come(client):
    both = {"kind": "all", "of": [{"kind": "event", "name": "stock"}, {"kind": "event", "name": "prices"}]}
    client.put("/v1/schedules/both", json={"handler": "h", "trigger": both})
    assert [(one["depth"], one["progress"]) for one in client.get("/v1/schedules/both").json()["tree"]] == [
        (0, "0 of 2"), (1, ""), (1, ""),
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/schedules", "/v1/schedules/nightly"])
def test_no_time_is_reckoned_while_others_wait_for_the_planners_state(site, client, monkeypatch, path):
    asking, reckoned = [], []
    api, reckon = site.app.state.api, FireTimes.next_after
    ask = api.plan.ask

    def asked(question):
        asking.append(question)
        try:
            return ask(question)
        finally:
            asking.pop()

    _known_next.cache_clear()
    monkeypatch.setattr(api.plan, "ask", asked)
    monkeypatch.setattr(
        FireTimes, "next_after", lambda self, *given: reckoned.append(len(asking)) or reckon(self, *given)
    )
    assert client.get(path).status_code == 200
    assert reckoned
    assert not any(reckoned)


def test_of_a_set_only_what_is_new_is_stored_if_so_asked(client):
    mine = [NIGHTLY | {"name": "nightly", "cron": "0 5 * * *"}, {"name": "other", "handler": "h", "event": "e"}]
    body = {"schedules": mine, "only_new": True}
    looked = client.post("/v1/schedules:apply", json=body | {"dry_run": True}).json()
    assert looked == {"changes": {"nightly": "kept", "other": "added"}, "dry_run": True, "warnings": []}
    assert client.get("/v1/schedules/other").status_code == 404
    assert client.post("/v1/schedules:apply", json=body).json()["changes"] == {"nightly": "kept", "other": "added"}
    assert client.get("/v1/schedules/nightly").json()["definition"]["trigger"]["expression"] == "0 2 * * *"
    assert client.post("/v1/schedules:apply", json=body).json()["changes"] == {"nightly": "kept", "other": "unchanged"}


def test_only_new_ones_never_replace_what_came_between_look_and_planner(site, client):
    plan, ask = site.connection.plan, site.connection.plan.ask

    def overtaken(kind, **fields):
        plan.ask = ask
        ask("put", schedules=[Schedule("late", "other", Trigger.event("e")).definition])
        return ask(kind, **fields)

    plan.ask = overtaken
    with pytest.raises(ConflictError):
        put(plan, [Schedule("late", "mine", Trigger.event("e"))], None, "", only_new=True)
    assert plan.state().entries["late"].handler == "other"


def test_a_schedule_that_can_never_fire_again_is_completed_in_lists_pages_and_words(client, site):
    over, event = {"at": "2020-01-01T00:00:00Z"}, {"event": "e"}
    for name, trigger in (
        ("a-once", over), ("b-off", over), ("c-both", {"all": [over, {"cron": "0 2 * * *"}]}), ("d-either", {"any": [over, event]}),
    ):  # fmt: skip
        assert client.put(f"/v1/schedules/{name}", json={"handler": "h", **trigger}).status_code == 201
    client.post("/v1/schedules/b-off:pause")
    names = lambda query: [one["name"] for one in client.get(f"/v1/schedules{query}").json()["schedules"]]  # noqa: E731
    assert names("?state=completed") == ["a-once", "c-both"]
    assert names("?state=active") == ["d-either", "nightly"]
    assert names("?state=paused") == ["b-off"]
    page = client.get("/v1/schedules?state=completed&limit=1").json()
    assert ([one["state"] for one in page["schedules"]], page["next"]) == (["completed"], "a-once")
    assert names("?state=completed&after=a-once") == ["c-both"]
    shown = client.get("/v1/schedules/c-both").json()
    assert (shown["state"], shown["next_at"]) == ("completed", None)
    said = client.get("/v1/schedules/a-once:explain").json()["said"]
    assert said == ["It is completed: its trigger can never fire again."]
    listed = scheduler_of(site).list_schedules(state="completed")
    assert [(one.name, one.state) for one in listed] == [("a-once", "completed"), ("c-both", "completed")]


def test_schedules_of_a_tag_are_paused_and_resumed_together(client):
    for name, tags in (("a", ["x"]), ("b", ["x", "y"]), ("c", ["y"])):
        client.put(f"/v1/schedules/{name}", json=NIGHTLY | {"tags": tags})
    client.post("/v1/schedules/b:pause")
    tried = client.post("/v1/schedules:pause", json={"tag": "x", "dry_run": True}).json()
    assert tried == {"changes": {"a": "paused"}, "dry_run": True}
    assert client.post("/v1/schedules:pause", json={"tag": "x", "note": "moved"}).json()["changes"] == {"a": "paused"}
    assert client.get("/v1/schedules/a").json()["note"] == "moved"
    assert client.post("/v1/schedules:resume", json={"tag": "x"}).json()["changes"] == {"a": "resumed", "b": "resumed"}
    assert client.post("/v1/schedules:resume", json={"tag": "x"}).json()["changes"] == {}
    assert client.get("/v1/schedules/nightly").json()["state"] == "active"


def test_schedules_with_a_tag_are_deleted_together_and_those_that_waited_for_them_are_told(client, site):
    client.put("/v1/schedules/a", json=NIGHTLY | {"tags": ["x"]})
    client.put("/v1/schedules/b", json=NIGHTLY | {"tags": ["x"]})
    client.put("/v1/schedules/behind", json={"handler": "h", "after": "a"})
    expected = {"a": "removed", "b": "removed", "behind": "removed"}
    assert client.post("/v1/schedules:delete", json={"tag": "x", "dry_run": True}).json() == {
        "changes": expected,
        "dry_run": True,
    }
    assert client.get("/v1/schedules/a").status_code == 200
    assert client.post("/v1/schedules:delete", json={"tag": "x"}).json() == {"changes": expected, "dry_run": False}
    assert sorted(site.connection.plan.state().entries) == ["nightly"]
    assert client.post("/v1/schedules:delete", json={"tag": "x"}).json()["changes"] == {}
    assert kind(client.post("/v1/schedules:delete", json={})) == "/problems/invalid"


def test_what_was_paused_in_a_window_goes_on_and_nothing_else(client, site):
    for name in "abc":
        client.put(f"/v1/schedules/{name}", json=NIGHTLY)
        client.post(f"/v1/schedules/{name}:pause")
    paused_at = [site.connection.plan.state().entries[name].changed_us for name in "abc"]
    window = {"changed_from": iso(paused_at[1]), "changed_until": iso(paused_at[2])}
    assert client.post("/v1/schedules:resume", json=window).json()["changes"] == {"b": "resumed"}


def test_all_schedules_are_meant_by_nobody_who_says_nothing(client):
    for body in ({}, {"note": "x"}, {"dry_run": True}):
        answer = client.post("/v1/schedules:pause", json=body)
        assert (answer.status_code, kind(answer)) == (422, "/problems/invalid")


def test_python_lists_steers_and_explains_schedules_without_spark(client, site):
    client.put("/v1/schedules/onevent", json={"handler": "h", "event": "e", "tags": ["x"], "owner": "us"})
    scheduler = scheduler_of(site)
    assert [one.name for one in scheduler.list_schedules()] == ["nightly", "onevent"]
    assert [one.name for one in scheduler.list_schedules(kind="time")] == ["nightly"]
    assert [one.name for one in scheduler.list_schedules(tag="x", owner="us", state="active")] == ["onevent"]
    assert scheduler.pause_schedules(tag="x", note="moved") == ["onevent"]
    assert scheduler.schedule("onevent").status().note == "moved"
    assert scheduler.resume_schedules(tag="x") == ["onevent"]
    with pytest.raises(ArgumentError):
        scheduler.pause_schedules()
    nightly = scheduler.schedule("nightly")
    before = nightly.previous_runs(3)
    assert (len(before), before) == (3, sorted(before))
    assert before[-1] < nightly.next_runs(1)[0]
    assert any(
        "It has not fired yet" in one or "waits" in one.lower() or "next" in one.lower() for one in nightly.explain()
    )
    assert nightly.fires() == []
    with pytest.raises(NotFoundError):
        scheduler.schedule("nobody").fires()


def test_decisions_in_python_are_those_of_the_table(client, site, tmp_path):
    row = {"schedule": "nightly", "revision": 1, "plan_offset": 1, "verdict": "launched", "by_hand": False}
    key = {"scheduled_time": from_us(at(8)), "ordering_id": "l", "uniqueness_key": "u"}
    append(f"{tmp_path}/tables", FIRES, [row | key | {"planned_at": from_us(at(8)), "decided_at": from_us(at(8, 1))}])
    (found,) = scheduler_of(site).schedule("nightly").fires(since=from_us(at(8)))
    assert (found.verdict, found.planned_at, found.task) == ("launched", from_us(at(8)), TaskKey(at(8), "l", "u"))
    assert scheduler_of(site).schedule("nightly").fires(since=from_us(at(9))) == []
