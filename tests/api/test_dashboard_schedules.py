"""The screen Schedules over the real API and planner: what fires, what fired, what was skipped, and acts with a note and a preview."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from scylla_spark.client.schedules.files import definition_of
from scylla_spark.client.schedules.schedule import Schedule
from scylla_spark.clock import from_us, iso, now_us
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.schemas import FIRES, SCHEDULES, TASKS
from tests.support.api_site import Site
from tests.support.dashboard_site import ORIGIN, seen, sent
from tests.support.delta_tables import append, at, make, task

NAME, PATH = "team-a/nightly:run", "team-a%2Fnightly%3Arun"
NIGHTLY = {"handler": "report", "cron": "0 2 * * *", "tz": "Europe/Berlin"}
HOSTILE = "<img src=x onerror=alert(1)> \u202e %2F\n"


@pytest.fixture
def site(tmp_path):
    make(f"{tmp_path}/tables")
    return Site(str(tmp_path))


@pytest.fixture
def client(site):
    with site.client() as client:
        client.put(f"/v1/schedules/{PATH}", json=NIGHTLY)
        yield client


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    """The site of tests that change nothing."""
    path = str(tmp_path_factory.mktemp("looked-at"))
    make(f"{path}/tables")
    return Site(path)


@pytest.fixture(scope="module")
def look(looked_at):
    with looked_at.client() as client:
        client.put(f"/v1/schedules/{PATH}", json=NIGHTLY)
        yield client


def decided(tmp_path, *rows: dict) -> None:
    common = {"schedule": NAME, "revision": 1, "by_hand": False}
    append(f"{tmp_path}/tables", FIRES, [common | {"plan_offset": number} | row for number, row in enumerate(rows)])


def fire(verdict: str, why: str | None = None, **more) -> dict:
    now = from_us(now_us() // 1_000_000 * 1_000_000)
    task = {"scheduled_time": now, "ordering_id": HOSTILE, "uniqueness_key": "k", "generation": 1}
    return (
        {"planned_at": now, "decided_at": now, "verdict": verdict, "why": why}
        | (task if verdict == "launched" else {})
        | more
    )


def test_the_list_says_in_words_when_each_fires(look):
    page = look.get("/ui/schedules")
    assert "at 02:00 every day, Europe/Berlin time" in seen(page)
    assert f'href="/ui/schedules/{PATH}"' in page.text


def test_the_list_is_filtered_by_its_address(client):
    client.put("/v1/schedules/other", json={"handler": "h", "event": "stock", "tags": ["x"]})
    assert "other" not in seen(client.get("/ui/schedules?kind=time"))
    assert "nightly" not in seen(client.get("/ui/schedules?tag=x"))
    assert "No schedule fits" in seen(client.get("/ui/schedules?state=paused"))


def test_a_schedule_that_can_never_fire_again_is_completed_and_says_when_it_ran_last(client, tmp_path):
    over = {"at": "2020-01-01T00:00:00Z"}
    client.put("/v1/schedules/once", json={"handler": "h", **over})
    client.put("/v1/schedules/both", json={"handler": "h", "all": [over, {"cron": "0 2 * * *"}]})
    page = client.get("/ui/schedules?state=completed")
    assert '<span class="state completed">completed</span>' in page.text
    assert "nightly" not in seen(page)
    planned = {"planned_at": from_us(1_577_836_800_000_000)}
    decided(tmp_path, fire("launched", schedule="once", **planned), fire("launched", schedule="once", by_hand=True))
    said = (
        "It is completed: it has run for the last time at 2020-01-01T00:00:00Z, and its trigger can never fire again."
    )
    assert said in seen(client.get("/ui/schedules/once"))
    assert "too few can still come" in seen(client.get("/ui/schedules/both"))


def test_many_schedules_stand_on_pages(client):
    stored = [{"name": f"s{number:03}", "handler": "h", "event": "e"} for number in range(205)]
    client.post("/v1/schedules:apply", json={"schedules": stored})
    page = client.get("/ui/schedules")
    assert 'href="/ui/schedules?after=s199"' in page.text
    assert "s204" in seen(client.get("/ui/schedules?after=s199"))


def test_a_schedule_leads_to_its_runs_and_a_run_to_its_schedule(client, tmp_path):
    run = TaskKey(at(8), "lane", f"{NAME}/2026-01-01T08:00:00Z/1")
    append(f"{tmp_path}/tables", TASKS, [task(run)])
    (link,) = re.findall(r'href="([^"]+)">All runs', client.get(f"/ui/schedules/{PATH}").text)
    assert id_of(run) in client.get(unescape(link)).text
    assert f'href="/ui/schedules/{PATH}"' in client.get(f"/ui/tasks/{id_of(run)}").text


def test_a_schedule_shows_when_its_runs_expire(client):
    client.put("/v1/schedules/brief", json=NIGHTLY | {"expires": "10m"})
    assert client.get("/v1/schedules/brief").json()["definition"]["expires"] == "10m"
    assert "Expires 10m after its time" in seen(client.get("/ui/schedules/brief"))
    assert "Expires" not in seen(client.get(f"/ui/schedules/{PATH}"))


def test_a_schedule_shows_what_its_pauses_keep_and_what_its_job_timeout_does(client):
    client.put("/v1/schedules/kept", json=NIGHTLY | {"on_pause": "backlog", "on_job_timeout": "run"})
    page = seen(client.get("/ui/schedules/kept"))
    assert "What comes during a pause makes a run each" in page
    assert "After its job timeout a job runs with what there is" in page


def test_a_schedule_shows_its_next_ten_times_and_what_a_clock_change_does(client):
    client.put("/v1/schedules/spring", json=NIGHTLY | {"cron": "30 2 28 3 *", "gap": "skip"})
    assert seen(client.get(f"/ui/schedules/{PATH}")).count("02:00 Europe/Berlin") == 10
    page = seen(client.get("/ui/schedules/spring"))
    assert "2027-03-28 02:30 Europe/Berlin" in page
    assert "left out" in page, "that time does not exist in 2027"


def test_a_trigger_shows_what_has_come_of_each_branch(client, site):
    both = {"kind": "all", "of": [{"kind": "event", "name": "stock"}, {"kind": "event", "name": "prices"}]}
    client.put("/v1/schedules/both", json={"handler": "h", "trigger": both})
    site.connection.plan.planner.ask("event", name="stock", payload={})
    page = seen(client.get("/ui/schedules/both"))
    assert "waits all of these 1 of 2" in page
    assert "holds on the event 'stock'" in page
    assert "waits on the event 'prices'" in page
    assert "Next times" not in page


def test_decisions_stand_with_reason_versions_and_hostile_words_as_words(client, tmp_path):
    values = {"from_version": 4, "to_version": 9, "name": "sales", "rows": 1200}
    decided(
        tmp_path,
        fire("launched", values=json.dumps(values)),
        fire("skipped", HOSTILE),
        fire("failed", values='{"a": "<b>"}'),
    )
    page = client.get(f"/ui/schedules/{PATH}")
    assert "versions 5 to 9 of sales, 1,200 rows" in seen(page)
    assert "<img src=x" not in page.text
    assert "<b>" not in page.text
    assert "skipped" in seen(page)


def test_what_was_skipped_of_all_schedules_is_found_by_time_and_verdict(client, tmp_path):
    night = from_us(now_us() - 90_000_000_000)
    decided(tmp_path, fire("launched"), fire("skipped", "another run was active", decided_at=night, planned_at=night))
    assert "another run was active" not in seen(client.get("/ui/fires")), "it is older than a day"
    window = {
        "from": (night - timedelta(hours=1)).isoformat()[:19],
        "to": (night + timedelta(hours=1)).isoformat()[:19],
    }
    page = client.get("/ui/fires", params=window | {"verdict": "skipped"})
    assert "another run was active" in seen(page)
    assert f'href="/ui/schedules/{PATH}"' in page.text
    assert "Nothing was decided" in seen(client.get("/ui/fires?verdict=missed"))


@pytest.mark.parametrize("query", ["from=never", "verdict=maybe", "from=2026-01-02T00:00&to=2026-01-01T00:00"])
def test_windows_of_decisions_that_cannot_be_read_are_refused(look, query):
    assert look.get(f"/ui/fires?{query}").status_code in (400, 422)


def test_a_pause_keeps_its_note_and_a_resume_ends_it(client):
    page = client.get(f"/ui/schedules/{PATH}")
    answer = sent(client, f"/ui/schedules/{PATH}/pause", page, note=HOSTILE, until="2099-01-01T00:00")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/schedules/{PATH}")
    page = client.get(f"/ui/schedules/{PATH}")
    assert "paused" in seen(page)
    assert "<img src=x" not in page.text
    assert "2099-01-01 00:00:00" in seen(page)
    assert client.get(f"/v1/schedules/{PATH}").json()["note"] == HOSTILE
    sent(client, f"/ui/schedules/{PATH}/resume", page)
    assert client.get(f"/v1/schedules/{PATH}").json()["state"] == "active"


def test_a_run_by_hand_leads_to_its_task(client, monkeypatch):
    from scylla_spark.api.schedules import actions as schedule_actions

    monkeypatch.setattr(schedule_actions, "_LOOKS_FOR_RUN", 0)  # no broker here would ever show the task
    answer = sent(client, f"/ui/schedules/{PATH}/run", client.get(f"/ui/schedules/{PATH}"))
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/ui/tasks/")


def test_a_backfill_is_previewed_and_nothing_runs_before_it_is_confirmed(client, site):
    window = {
        "begin": "2026-01-01T00:00",
        "end": "2026-01-04T00:00",
        "order": "newest",
        "max_running": "2",
        "reprocess": "all",
    }
    page = client.get(f"/ui/schedules/{PATH}")
    preview = client.get(f"/ui/schedules/{PATH}", params=window)
    assert "data-live" in page.text
    assert "data-live" not in preview.text, "it stands still while somebody looks at it"
    assert "3 runs, from 2026-01-03 01:00:00" in seen(preview)
    assert site.connection.plan.planner.shadow.entries[NAME].jobs == {}
    answer = sent(client, f"/ui/schedules/{PATH}/backfill", preview, **window)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/schedules/{PATH}")
    assert "3 past times run now" in seen(client.get(answer.headers["location"]))


def test_more_than_a_hundred_runs_are_launched_only_by_who_types_their_number(client, site):
    window = {
        "begin": "2026-01-01T00:00",
        "end": "2026-06-01T00:00",
        "order": "oldest",
        "max_running": "1",
        "reprocess": "all",
    }
    preview = client.get(f"/ui/schedules/{PATH}", params=window)
    assert "Type 151 to confirm" in seen(preview)
    assert sent(client, f"/ui/schedules/{PATH}/backfill", preview, **window, typed="15").status_code == 409
    assert sent(client, f"/ui/schedules/{PATH}/backfill", preview, **window, typed="151").status_code == 303


@pytest.mark.parametrize(
    "wrong", [{"begin": "soon"}, {"end": ""}, {"max_running": "x"}, {"max_running": "9" * 5_000}, {"order": "random"}]
)
def test_a_backfill_that_cannot_be_read_is_refused(look, wrong):
    window = {
        "begin": "2026-01-01T00:00",
        "end": "2026-01-04T00:00",
        "order": "oldest",
        "max_running": "1",
        "reprocess": "all",
    }
    assert look.get(f"/ui/schedules/{PATH}", params=window | wrong).status_code in (400, 422)


def test_the_answer_to_why_not_at_a_time_is_on_the_page(look):
    page = seen(look.get(f"/ui/schedules/{PATH}", params={"at": "2026-01-01T01:00:00"}))
    (said,) = look.get(f"/v1/schedules/{PATH}:explain", params={"at": "2026-01-01T01:00:00Z"}).json()["said"][:1]
    assert "Why, about 2026-01-01 01:00:00" in page
    assert said in page


def test_a_schedule_that_never_was_is_a_page(look):
    answer = look.get("/ui/schedules/nope")
    assert answer.status_code == 404
    assert "There is no schedule 'nope'" in seen(answer)


def test_a_backfill_shows_how_far_it_is_and_is_paused_resumed_and_cancelled(client, site):
    assert "Backfills, newest first" not in seen(client.get(f"/ui/schedules/{PATH}"))
    window = {"begin": "2026-01-01T00:00:00Z", "end": "2026-01-05T00:00:00Z"}
    client.post(f"/v1/schedules/{PATH}:backfill", json=window)
    planner = site.connection.plan.planner
    planner.pass_s(0)
    planner.pass_s(10)
    planner.end(0, "failed")
    page = client.get(f"/ui/schedules/{PATH}")
    assert f"backfill:{NAME}/1 running 1 of 4 1 1" in seen(page)
    assert "about" in seen(page)
    for act, said, state in (
        ("pause", "what is leased ends at once, to be run again", "paused"), ("resume", "goes on with what it has left", "running"),
        ("cancel", "without another try; what is leased ends at once.", "cancelled"),
    ):  # fmt: skip
        answer = sent(client, f"/ui/schedules/{PATH}/backfills/1/{act}", page)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/schedules/{PATH}")
        page = client.get(answer.headers["location"])
        assert said in seen(page)
        assert site.connection.plan.planner.shadow.entries[NAME].backfills[1].state == state
    assert f"/ui/schedules/{PATH}/backfills/1/" not in page.text, "nothing is to be done with it any more"
    assert sent(client, f"/ui/schedules/{PATH}/backfills/1/pause", page).status_code == 409


def test_a_data_schedule_is_backfilled_over_versions_of_its_table(client, site, tmp_path):
    for number in (1, 2, 3):
        write_deltalake(f"{tmp_path}/orders", pa.table({"id": list(range(number))}), mode="append")
    trigger = {"kind": "any", "of": [{"kind": "table", "table": f"{tmp_path}/orders"}, {"kind": "event", "name": "e"}]}
    client.put("/v1/schedules/rollup", json={"handler": "h", "trigger": trigger})
    window = {"begin": "0", "end": "2", "order": "oldest", "max_running": "1", "reprocess": "all"}
    assert "run past versions of its table" in seen(client.get("/ui/schedules/rollup"))
    preview = client.get("/ui/schedules/rollup", params=window)
    assert "versions 1 to 1, 2 rows" in seen(preview)
    assert "versions 2 to 2, 3 rows" in seen(preview)
    answer = sent(client, "/ui/schedules/rollup/backfill", preview, **window)
    assert "2 ranges of versions run now" in seen(client.get(answer.headers["location"]))
    assert site.connection.plan.planner.shadow.entries["rollup"].backfills[1].total == 2


@pytest.mark.parametrize("act", ["pause", "resume", "run", "backfill", "backfills/1/pause", "backfills/1/cancel"])
def test_acts_need_the_token_of_the_form(client, act):
    assert client.post(f"/ui/schedules/{PATH}/{act}", data={"form_token": "x"}, headers=ORIGIN).status_code == 403


# -- as it was at a moment ------------------------------------------------------------------------------------------------


HOUR_US = 3_600_000_000


def changed(tmp_path, *rows: dict) -> None:
    """Changes of schedules, one an hour from the first hour of 1970 on."""
    put = {"change": "put", "revision": 1, "handler": "report", "paused": False, "author": "ops"}
    append(f"{tmp_path}/tables", SCHEDULES, [
        (put | {"definition": definition(row["name"])} if row.get("change", "put") == "put" else {})
        | {"changed_at": from_us((number + 1) * HOUR_US), "plan_offset": number} | row
        for number, row in enumerate(rows)
    ])  # fmt: skip


def definition(name: str) -> str:
    return json.dumps(Schedule.of(definition_of(NIGHTLY | {"name": name, "owner": "billing"})).definition)


def test_schedules_are_shown_as_they_were_at_a_moment(client, tmp_path):
    paused = {"name": "a", "change": "paused", "paused": True, "note": HOSTILE, "until": from_us(9 * HOUR_US)}
    changed(
        tmp_path, {"name": "a"}, {"name": "b"}, paused, {"name": "a", "change": "resumed", "paused": False},
        {"name": "b", "change": "removed"}, {"name": "older", "change": "paused", "paused": True},
    )  # fmt: skip

    def stood(hour: int) -> list[tuple]:
        rows = client.get("/v1/schedules:past", params={"as_of": iso(hour * HOUR_US)}).json()["schedules"]
        return [(one["name"], one["state"], one["note"]) for one in rows]

    assert [stood(hour) for hour in (0, 1, 3, 4, 6)] == [
        [], [("a", "active", "")], [("a", "paused", HOSTILE), ("b", "active", "")],
        [("a", "active", ""), ("b", "active", "")], [("a", "active", "")],
    ]  # fmt: skip
    page = client.get("/ui/schedules", params={"as_of": iso(3 * HOUR_US)})
    assert "As they were at 1970-01-01 03:00:00" in seen(page)
    assert "at 02:00 every day, Europe/Berlin time" in seen(page)
    assert "<img src=x" not in page.text
    assert NAME not in seen(page), "it is newer"
    assert "data-live" not in page.text


def test_a_definition_that_this_version_cannot_read_is_listed_without_words(client, tmp_path):
    changed(tmp_path, {"name": "new", "definition": '{"trigger": {"kind": "moonrise"}}'})
    assert "in words of another version" in seen(client.get("/ui/schedules?as_of=1970-01-02T00:00:00Z"))


def test_past_schedules_stand_on_pages(client, tmp_path):
    changed(tmp_path, *({"name": name} for name in "cab"))
    first = client.get("/v1/schedules:past?as_of=1970-01-02T00:00:00Z&limit=2").json()
    assert ([one["name"] for one in first["schedules"]], first["next"]) == (["a", "b"], "b")
    rest = client.get("/v1/schedules:past?as_of=1970-01-02T00:00:00Z&limit=2&after=b").json()
    assert ([one["name"] for one in rest["schedules"]], rest["next"]) == (["c"], None)


def test_decisions_are_shown_as_they_were_at_a_moment(client, tmp_path):
    now = now_us()
    decided(
        tmp_path, fire("skipped", "early", decided_at=from_us(now - 2 * HOUR_US)), fire("skipped", "newer", decided_at=from_us(now)),
    )  # fmt: skip
    page = seen(client.get("/ui/fires", params={"as_of": iso(now - HOUR_US)}))
    assert "As it was at" in page
    assert "early" in page
    assert "newer" not in page
