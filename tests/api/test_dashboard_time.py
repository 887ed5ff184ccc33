"""The screen Time machine over the real API: the map, a moment, what if, and that limits are applied only by a form of ours."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urlencode

import pytest

from scylla_spark.clock import from_us, iso, now_us
from scylla_spark.core.tasks.key import HOUR_US, TaskKey
from scylla_spark.dashboard.time_machine import LIMITS
from scylla_spark.errors import UnreachableError
from scylla_spark.schemas import COMPLETIONS, TASKS
from tests.support.api_site import Site
from tests.support.dashboard_site import ORIGIN, seen, sent, token_of
from tests.support.delta_tables import append, fact, make, make_filled, task

LANE = "<script>alert(1)</script>/%\n\u202e"
MINUTE = 60_000_000


@pytest.fixture(scope="module")
def due():
    return now_us() // HOUR_US * HOUR_US - 2 * HOUR_US


@pytest.fixture
def site(tmp_path, due):
    make_filled(f"{tmp_path}/tables", filled, due)
    return Site(str(tmp_path))


def filled(path: str, due: int) -> None:
    keys = [TaskKey(due + number * MINUTE, LANE if number == 3 else f"lane-{number}", "k") for number in range(10)]
    append(path, TASKS, [task(one, 1, queue="mail") for one in keys])
    ends = [
        fact(
            one,
            1,
            "succeeded",
            2,
            started_at=from_us(one.time_us + 70_000_000),
            finished_at=from_us(one.time_us + 80_000_000),
        )
        for one in keys[:8]
    ]
    append(path, COMPLETIONS, ends)


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory, due):
    """The site of tests that change nothing."""
    path = str(tmp_path_factory.mktemp("looked-at"))
    make_filled(f"{path}/tables", filled, due)
    return Site(path)


def test_the_map_of_the_last_day_shows_queues_and_the_worst_stretches(look, due):
    page = look.get("/ui/time")
    assert page.status_code == 200
    assert 'class="heat4"' in page.text, "a minute late"
    assert "Where tasks were most late" in seen(page)
    assert iso(due)[11:19] in seen(page)


def test_a_click_on_the_map_leads_to_the_hour_and_then_to_a_moment(look):
    day = look.get("/ui/time").text
    (hour,) = {unescape(link) for link in re.findall(r'<a href="([^"]+)" tabindex="-1">', day)}
    closer = look.get(hour).text
    links = [unescape(link) for link in re.findall(r'<a href="([^"]+)" tabindex="-1">', closer)]
    assert len(links) == 2, "of each stretch"
    assert all("at=" in link for link in links)
    assert "State then" in look.get(links[0]).text


def test_a_moment_shows_tasks_as_they_stood(look, due):
    page = look.get("/ui/time", params={"at": iso(due + 4 * MINUTE + 30_000_000), "span": "24h"})
    text = seen(page)
    assert "lane-4" in text
    assert "lane-8" not in text, "it was not due yet"
    assert "lane-0" not in text, "it had ended"


def test_the_slider_asks_for_minutes_of_the_window(look, due):
    window = {"from": iso(due), "to": iso(due + HOUR_US)}
    by_minute = look.get("/ui/time", params=window | {"minute": "5"})
    by_name = look.get("/ui/time", params=window | {"at": iso(due + 5 * MINUTE)})
    assert re.findall("<tbody>.*?</tbody>", by_minute.text, re.DOTALL) == re.findall(
        "<tbody>.*?</tbody>", by_name.text, re.DOTALL
    )
    assert 'max="60" step="1" value="5"' in by_minute.text


def test_names_that_are_markup_are_shown_and_their_links_lead_to_them(look, due):
    then = iso(due + 3 * MINUTE + 30_000_000)
    page = look.get("/ui/time", params={"at": then})
    assert "<script>alert" not in page.text
    assert f"/ui/lanes?{urlencode({'name': LANE, 'as_of': then})}" in unescape(page.text)


@pytest.mark.parametrize(
    "query",
    [
        "span=99y",
        "from=x&to=y",
        "from=2026-01-01T00:00:00Z&to=2020-01-01T00:00:00Z",
        "minute=-1",
        "at=never",
        "minute=1e9",
    ],
)
def test_addresses_that_cannot_be_read_are_refused_with_a_page(look, query):
    page = look.get(f"/ui/time?{query}")
    assert page.status_code in (400, 422)
    assert "Back to Now" in seen(page)


def test_a_filter_that_cannot_be_read_says_so(look, due):
    page = look.get("/ui/time", params={"at": iso(due), "filter": "colour:red"})
    assert page.status_code == 422
    assert "colour" in seen(page)


@pytest.mark.slow
def test_what_if_plays_the_window_and_shows_both(look, due):
    window = {"from": iso(due), "to": iso(due + HOUR_US), "queue": "mail"}
    limits = {"concurrency": "1", "rate": "0.01", "group_concurrency": "", "slots": ""}
    answer = look.get("/ui/time/simulation", params=window | limits | {"play": "1"})
    assert answer.status_code == 200
    assert "8 tasks played" in seen(answer)
    assert "Apply these limits to mail" in seen(answer)
    assert 'name="concurrency" value="1"' in answer.text


def test_a_link_on_another_site_plays_nothing_and_shows_the_form_as_it_was_filled_in(client, site, monkeypatch):
    played = []

    async def simulated(question):
        played.append(question)
        raise UnreachableError("It was played.")

    monkeypatch.setattr(site.app.state.api, "simulated", simulated)
    path = "/ui/time/simulation?queue=mail&concurrency=7&rate=&group_concurrency=&slots=&play=1"
    page = client.get(path, headers={"Sec-Fetch-Site": "cross-site"})
    assert page.status_code == 200
    assert 'name="concurrency" value="7"' in page.text
    assert played == []
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {}):
        assert client.get(path, headers=headers).status_code == 503
    assert len(played) == 3


def test_limits_are_applied_as_they_were_tried_and_an_empty_field_is_none(client, site):
    site.connection.plan.ask("put_queue", queues=[{"name": "mail", "concurrency": 9, "rate": 3.0}])
    assert 'name="concurrency" value="9"' in client.get("/ui/time/simulation?queue=mail").text
    form = client.get("/ui/tasks:new")
    answer = sent(
        client, "/ui/time:apply", form, queue="mail", span="24h", concurrency="4", rate="", group_concurrency=""
    )
    assert answer.status_code == 303
    assert "are in force" in seen(client.get(answer.headers["location"]))
    fields = client.get("/v1/queues/mail").json()["fields"]
    assert [fields[name] for name in LIMITS] == [4, None, None]


def test_a_limit_that_is_none_is_refused_in_the_words_of_the_api(look):
    answer = sent(
        look,
        "/ui/time:apply",
        look.get("/ui/tasks:new"),
        queue="mail",
        concurrency="many",
        rate="",
        group_concurrency="",
    )
    assert answer.status_code == 422
    assert "concurrency" in seen(answer)


def test_another_site_cannot_apply_limits(look):
    fields = {"queue": "mail", "concurrency": "0", "rate": "", "group_concurrency": "", "form_token": "guessed"}
    assert look.post("/ui/time:apply", data=fields, headers=ORIGIN).status_code == 403
    assert look.get("/v1/queues").json()["queues"] == []


def test_who_may_only_read_cannot_apply(client, site):
    form = client.get("/ui/login")
    assert sent(client, "/ui/login", form, token=token_of(site, "read"), next="/ui/time").status_code == 303
    page = client.get("/ui/time/simulation?queue=mail")
    answer = sent(client, "/ui/time:apply", page, queue="mail", concurrency="4", rate="", group_concurrency="")
    assert answer.status_code == 403


def test_no_tables_with_tasks_is_a_calm_page(tmp_path):
    make(f"{tmp_path}/tables")
    with Site(str(tmp_path)).client() as client:
        assert "Nothing was due in this window" in seen(client.get("/ui/time"))
        assert "No queue is defined" in seen(client.get("/ui/time/simulation"))


def test_what_is_played_is_what_the_page_shows_and_would_apply(client, site, monkeypatch):
    played = []

    async def simulated(question):
        played.append(question)
        raise UnreachableError("It was played.")

    monkeypatch.setattr(site.app.state.api, "simulated", simulated)
    site.connection.plan.ask("put_queue", queues=[{"name": "mail", "concurrency": 9, "rate": 3.1234567}])
    path = "/ui/time/simulation?queue=mail&concurrency=4"
    shown = dict(re.findall(r'name="(concurrency|rate|group_concurrency)" value="([^"]*)"', client.get(path).text))
    assert shown == {"concurrency": "4", "rate": "3.1234567", "group_concurrency": ""}
    assert client.get(f"{path}&play=1").status_code == 503
    (question,) = played
    assert [question.changes["mail"].get(name) for name in LIMITS] == [4, 3.1234567, None]


@pytest.mark.parametrize("rate", ["1e400", "nan", "9" * 400, "9" * 5_000])
def test_a_number_that_is_none_is_refused_in_the_words_of_the_api(look, rate):
    answer = look.get("/ui/time/simulation", params={"queue": "mail", "play": "1", "rate": rate})
    assert (answer.status_code, "rate" in seen(answer)) == (422, True)
