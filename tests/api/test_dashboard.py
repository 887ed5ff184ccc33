"""The frame of the dashboard over the real API: who is let in, which forms are believed, and what every answer carries."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import socket
import tomllib
from contextlib import ExitStack
from itertools import pairwise

import pytest

from scylla_spark.api.access.login_codes import LoginCodes
from scylla_spark.api.app import guarded
from scylla_spark.api.deployment import overview
from scylla_spark.api.follow.recent_records import OutcomeEvent, Standing
from scylla_spark.client.handlers import gathered
from scylla_spark.client.tasks import explain
from scylla_spark.clock import now_us
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.dashboard import now_live, value_texts
from scylla_spark.dashboard.app import SCREENS
from scylla_spark.dashboard.assets import FOLDER
from scylla_spark.dashboard.now_live import Parts
from scylla_spark.dashboard.sessions import IDLE_US, LONGEST_US, MOST_ENDED, RENEWED_US, Session, Sessions
from scylla_spark.io.kafka.topics import announce
from scylla_spark.schemas import TASKS
from tests.api.test_handler_catalogue import row
from tests.support.api_site import Site
from tests.support.dashboard_site import ORIGIN, form_token, seen, sent, token_of
from tests.support.delta_tables import append, at, make_filled, task
from tests.support.waiting import eventually

KEY = TaskKey(at(10), "cust/9", "inv")


def made(tmp_path, **settings) -> Site:
    make_filled(f"{tmp_path}/tables", filled)
    return Site(str(tmp_path), **settings)


def filled(path: str) -> None:
    append(path, TASKS, [task(KEY, 1, queue="mail")])


@pytest.fixture
def site(tmp_path):
    return made(tmp_path)


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


# -- what every answer carries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/ui/now", "/ui/login", "/ui/nothing", "/ui/static/0/x.css"])
def test_every_answer_keeps_other_sites_away(look, path):
    headers = look.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")


def test_the_first_page_is_now(look):
    answer = look.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/now")
    assert "Queues" in seen(look.get("/ui/now"))


def test_a_page_that_is_not_there_is_a_page(look):
    answer = look.get("/ui/nothing")
    assert answer.status_code == 404
    assert "There is no such page" in seen(answer)


def test_the_api_is_where_it_was(look):
    assert look.get("/healthz").json() == {"status": "ok"}
    assert look.get("/v1/nothing").headers["content-type"] == "application/problem+json"


def test_no_page_has_scripts_or_styles_of_its_own(look):
    for path in ("/ui/now", "/ui/login", "/ui/nothing"):
        text = look.get(path).text
        assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", text) == []


def test_pages_load_nothing_from_elsewhere(look):
    text = look.get("/ui/now").text
    assert re.findall(r'(?:src|href|action)="(?!/)[^#"]*"', text) == []


@pytest.mark.parametrize(
    ("path", "every"),
    [
        ("/ui/tasks", None), ("/ui/lanes?name=x", None), ("/ui/schedules", 5000), ("/ui/fires", 10_000),
        ("/ui/fires?from=2026-01-01", 10_000),
        ("/ui/system", 5000), ("/ui/system/tables", 5000),
    ],
)  # fmt: skip
def test_a_page_about_now_asks_again_when_something_has_happened(look, path, every):
    (said,) = re.findall(r'<div id="live" data-live="/ui/live"( data-every="(\d+)")?>', look.get(path).text)
    assert said[1] == (str(every) if every else "")


@pytest.mark.parametrize(
    "path",
    ["/ui/time", "/ui/time/simulation", "/ui/fires?to=2026-01-01", "/ui/system/rejected", "/ui/system/audit", "/ui/system/tokens",
     "/ui/tasks:new", "/ui/schedules?as_of=2026-01-01T00:00:00Z"],
)  # fmt: skip
def test_a_page_about_a_moment_and_a_form_stand_still(look, path):
    answer = look.get(path)
    assert answer.status_code == 200
    assert "data-live" not in answer.text


def test_what_a_page_loads_is_there_for_ever_and_compressed(look):
    for path in re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', look.get("/ui/now").text):
        answer = look.get(path, headers={"Accept-Encoding": "gzip"})
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-encoding"] == "gzip"
        assert look.get(path, headers={"Accept-Encoding": "identity"}).text == answer.text


def test_a_page_with_all_that_it_loads_is_light(look):
    page = look.get("/ui/now")
    weight = len(gzip.compress(page.content))
    for path in set(re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', page.text)):
        weight += len(gzip.compress(look.get(path).content))
    assert weight <= 150 * 1024


def test_vendored_files_are_those_of_their_packages():
    listed = tomllib.loads((FOLDER / "vendor.toml").read_text())["file"]
    for one in listed:
        assert hashlib.sha256((FOLDER / "vendor" / one["name"]).read_bytes()).hexdigest() == one["sha256"], one["name"]
        assert (FOLDER / "vendor" / one["licence_file"]).is_file()
    licences = {one["licence_file"] for one in listed}
    assert {path.name for path in (FOLDER / "vendor").iterdir()} == {one["name"] for one in listed} | licences


# -- who is let in --------------------------------------------------------------------------------------------------------


def test_where_a_token_is_needed_the_login_asks_for_it(site, client):
    token_of(site, "read")
    answer = client.get("/ui/now")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login?next=%2Fui%2Fnow")


def test_a_token_begins_a_session_that_scripts_and_other_sites_do_not_see(site, client):
    text = token_of(site, "read")
    answer = sent(client, "/ui/login", client.get("/ui/login"), token=text, next="/ui/now?x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/now?x=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie, (
        "a link from elsewhere leads in whoever is logged in; forms are guarded by themselves"
    )
    assert text not in cookie
    assert client.get("/ui/now").status_code == 200


def test_a_session_ends_when_its_owner_logs_out(site, client):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"))
    sent(client, "/ui/logout", client.get("/ui/now"))
    assert client.get("/ui/now").headers["location"].startswith("/ui/login")


def test_a_wrong_token_is_told_so(site, client):
    token_of(site, "read")
    for wrong in ("ss_0a1b2c3d4e5f_wrong", "", "\u202e"):
        answer = sent(client, "/ui/login", client.get("/ui/login"), token=wrong)
        assert answer.status_code == 401
        assert "token" in seen(answer)


@pytest.mark.parametrize(
    "place", ["https://evil.example/", "//evil.example/ui/", "/\\evil.example", "/v1/tasks", "/ui/\n"]
)
def test_a_login_leads_only_to_pages_of_ours(site, client, place):
    answer = sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"), next=place)
    assert answer.headers["location"] == "/ui/now"


def test_a_code_logs_in_once(site, client):
    text = token_of(site, "read")
    code = client.post("/v1/login_codes", headers={"Authorization": f"Bearer {text}"}).json()["code"]
    page = client.get(f"/ui/login?code={code}")
    (given,) = re.findall(r'name="code" value="([^"]+)"', page.text)
    assert sent(client, "/ui/login", page, code=given).headers["location"] == "/ui/now"
    assert client.get("/ui/now").status_code == 200
    again = sent(client, "/ui/login", client.get(f"/ui/login?code={code}"), code=given)
    assert again.status_code == 401
    assert "worth nothing" in seen(again)


def test_a_link_alone_logs_nobody_in(site, client):
    text = token_of(site, "read")
    code = client.post("/v1/login_codes", headers={"Authorization": f"Bearer {text}"}).json()["code"]
    for headers in ({}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "none"}):
        page = client.get(f"/ui/login?code={code}", headers=headers)
        assert (page.status_code, "set-cookie" in page.headers) == (200, False)
    foreign = {"origin": "https://evil.example"}
    fields = {"code": code, "form_token": form_token(page)}
    assert client.post("/ui/login", data=fields, headers=foreign).status_code == 403
    assert client.get("/ui/now").headers["location"].startswith("/ui/login")
    assert sent(client, "/ui/login", page, code=code).status_code == 303, "it was not used up by looking"


def test_where_no_token_is_needed_there_is_no_code(look):
    assert look.post("/v1/login_codes").status_code == 409


def test_who_asks_is_said(site, client):
    text = token_of(site, "read", "tasks:write:queue=mail")
    told = client.get("/v1/me", headers={"Authorization": f"Bearer {text}"}).json()
    assert (told["name"], told["scopes"]) == ("somebody", ["read", "tasks:write:queue=mail"])


def test_where_no_token_is_needed_nobody_asks(look):
    assert look.get("/v1/me").json() == {"id": "", "name": "", "scopes": ["admin"], "namespaces": []}


def test_sessions_end_when_they_are_silent_or_have_lasted_long():
    sessions = Sessions("secret")
    first = sessions.begun("a", 0)
    text = sessions.text(first, 0)
    assert sessions.read(text, IDLE_US) == first
    assert sessions.read(text, IDLE_US + 1) is None, "it was silent"
    later = sessions.text(first, LONGEST_US - 1)
    assert sessions.read(later, LONGEST_US) is not None
    assert sessions.read(later, LONGEST_US + 1) is None, "it lasted long enough"


def test_a_session_is_known_to_whoever_shares_the_secret_and_to_nobody_else():
    session = Sessions("secret").begun("a", 0)
    text = Sessions("secret").text(session, 0)
    assert Sessions("secret").read(text, 1) == session
    assert Sessions("another").read(text, 1) is None
    for wrong in ("", ".", text[:-1], text.replace(".a.", ".b."), f"{text}0", "x" * 10_000, "1.a.b.c.\u00e9"):
        assert Sessions("secret").read(wrong, 1) is None
    assert LoginCodes("secret").redeemed(text, 1) == "", "what is signed for one purpose is nothing for another"


def test_a_code_holds_for_a_minute_and_once():
    codes = LoginCodes("secret")
    code = codes.made("a", 0)
    assert LoginCodes("secret").redeemed(code, 60_000_000) == "a", "another process has made it"
    assert (codes.redeemed(code, 60_000_001), codes.redeemed(code, 0), codes.redeemed(code, 0)) == ("", "a", "")


def revoke(site, text):
    id = text.split("_")[1]
    stored = site.connection.plan.state().tokens[id]
    fields = {"id": id, "digest": stored.digest, "name": stored.name, "scopes": list(stored.scopes), "revoked": True}
    site.connection.plan.ask("put_token", tokens=[fields])


def test_a_session_is_known_to_every_process_and_ends_in_each_with_its_token(site, client):
    text = token_of(site, "read")
    sent(client, "/ui/login", client.get("/ui/login"), token=text)
    with site.client() as other:  # all that a process remembers of sessions is new
        assert other.get("/ui/now").status_code == 303
        other.cookies.update(client.cookies)
        assert other.get("/ui/now").status_code == 200
        answer = sent(other, "/ui/now:pause", client.get("/ui/now"), queue="mail")
        assert "no scope" in seen(answer), "its form is believed, only its scope is missing"
        revoke(site, text)
        for one in (client, other):
            eventually(lambda one=one: one.get("/ui/now").status_code == 303, 10, "the revocation is seen")


def test_a_session_that_goes_on_gets_a_new_text_and_an_old_one_does_not(site, client, monkeypatch):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"))
    assert "set-cookie" not in client.get("/ui/now").headers
    began = now_us()
    monkeypatch.setattr("scylla_spark.dashboard.page_request.now_us", lambda: began + RENEWED_US + 1_000_000)
    assert "HttpOnly" in client.get("/ui/now").headers["set-cookie"]
    monkeypatch.setattr("scylla_spark.dashboard.page_request.now_us", lambda: began + IDLE_US + 1_000_000)
    assert client.get("/ui/now").status_code == 200, "it was renewed"


def at_later(monkeypatch, us):
    """Pages are asked for so much later."""
    began = now_us()
    monkeypatch.setattr("scylla_spark.dashboard.page_request.now_us", lambda: began + us)


def test_a_log_out_takes_the_cookie_away_however_old_its_text_is(site, client, monkeypatch):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"))
    page = client.get("/ui/now")
    at_later(monkeypatch, RENEWED_US + 1_000_000)
    answer = sent(client, "/ui/logout", page)
    assert len([one for one in answer.headers.get_list("set-cookie") if "session" in one]) == 1
    assert not [name for name in client.cookies if "session" in name]


def test_a_log_in_that_replaces_an_old_session_gives_the_new_one_alone(site, client, monkeypatch):
    text = token_of(site, "read")
    sent(client, "/ui/login", client.get("/ui/login"), token=text)
    page = client.get("/ui/login")
    at_later(monkeypatch, RENEWED_US + 1_000_000)
    answer = sent(client, "/ui/login", page, token=text)
    assert len(answer.headers.get_list("set-cookie")) == 1
    assert client.get("/ui/now").status_code == 200


def test_two_deployments_of_one_host_do_not_log_each_other_out(tmp_path):
    """Browsers send a cookie to all ports of a host."""
    assert Sessions("one").cookie("session") != Sessions("another").cookie("session")
    assert Sessions("one").cookie("session") == Sessions("one").cookie("session"), "its processes share it"


def test_the_form_of_the_log_in_does_not_depend_on_a_session_that_comes_or_does_not(site, client):
    text = token_of(site, "read")
    made_without = client.get("/ui/login")
    sent(client, "/ui/login", made_without, token=text)
    assert sent(client, "/ui/login", made_without, token=text).status_code == 303, "the page was made for nobody"
    made_with = client.get("/ui/login")
    with site.client() as other:
        fields = {"form_token": form_token(made_with, "/ui/login"), "token": text}
        assert other.post("/ui/login", data=fields, headers=ORIGIN).status_code == 303
        assert other.post("/ui/login", data=fields, headers={"Origin": "https://evil.example"}).status_code == 403
        assert other.post("/ui/now:pause", data=fields | {"queue": "mail"}, headers=ORIGIN).status_code == 403


def test_a_copy_of_a_cookie_is_worth_nothing_once_its_owner_has_logged_out(site, client):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"))
    copied = dict(client.cookies)
    sent(client, "/ui/logout", client.get("/ui/now"))
    client.cookies.update(copied)
    assert client.get("/ui/now").status_code == 303


def test_no_request_vouches_for_itself(site, client):
    text = token_of(site, "admin")
    for name in ("scylla_spark.vouched_token", "Vouched-Token", "Cookie"):
        answer = client.get("/v1/me", headers={name: text.split("_")[1]})
        assert answer.status_code == 401


# -- which forms are believed ---------------------------------------------------------------------------------------------


def test_a_form_of_ours_is_obeyed(client):
    answer = sent(client, "/ui/now:pause", client.get("/ui/now"), queue="mail")
    assert answer.status_code == 303
    assert client.get("/v1/queues/mail").json()["fields"]["paused"] is True
    assert "Nothing of the queue mail starts any more" in seen(client.get("/ui/now"))
    assert "Nothing of the queue mail" not in seen(client.get("/ui/now")), "it is said once"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": ""}, {"Sec-Fetch-Site": "cross-site"},
     {"Sec-Fetch-Site": "none"}],
)  # fmt: skip
def test_a_form_of_another_site_does_nothing(looked_at, look, headers):
    fields = {"form_token": form_token(look.get("/ui/now")), "queue": "mail"}
    answer = look.post("/ui/now:pause", data=fields, headers=headers)
    assert answer.status_code == 403
    assert "mail" not in looked_at.connection.plan.state().queues


@pytest.mark.parametrize("given", ["", "0" * 64, "\u00e4"])
def test_a_form_without_the_token_of_its_page_does_nothing(looked_at, look, given):
    answer = look.post("/ui/now:pause", data={"form_token": given, "queue": "mail"}, headers=ORIGIN)
    assert answer.status_code == 403
    assert "Load the page again" in seen(answer)
    assert "mail" not in looked_at.connection.plan.state().queues


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"{}", "application/json"), (b"a=\xff", "application/x-www-form-urlencoded"),
     (b"&".join(b"a=1" for _ in range(300)), "application/x-www-form-urlencoded")],
)  # fmt: skip
def test_what_is_no_form_is_refused(look, content, kind):
    answer = look.post("/ui/now:pause", content=content, headers={"Content-Type": kind} | ORIGIN)
    assert answer.status_code == 400


def test_who_may_only_read_changes_nothing(site, client):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"))
    answer = sent(client, "/ui/now:pause", client.get("/ui/now"), queue="mail")
    assert answer.status_code == 403
    assert "queues:write" in seen(answer)
    assert "mail" not in site.connection.plan.state().queues


_ANYTHING = {
    "act": "cancel", "filter": "state:open", "preview": "1", "play": "1", "queue": "mail", "after": "2026-01-01T00:00:00Z",
    "before": "2026-01-02T00:00:00Z", "code": "x", "name": "cust/9", "like": "x", "handler": "h", "form_token": "x",
}  # fmt: skip


def paths(*, acting):
    screens = [one for module in SCREENS for one in module.ROUTES if one.acts == acting]
    assert len(screens) > 15
    return [re.sub(r"\{\w+\}", "x", one.path) for one in screens]


def test_every_form_is_refused_without_the_token_of_a_page_and_from_other_sites(site, client):
    for path in paths(acting=True):
        assert client.post(path, data=_ANYTHING, headers=ORIGIN).status_code == 403, path
        genuine = {"form_token": form_token(client.get("/ui/now"))}
        assert (
            client.post(path, data=_ANYTHING | genuine, headers={"Origin": "https://evil.example"}).status_code == 403
        )
        client.get(path, params=_ANYTHING | genuine)  # a link
    plan = site.connection.plan
    assert (site.connection.sent, site.connection.sender.records, plan.told, dict(plan.state().queues)) == (
        [],
        [],
        [],
        {},
    )


def test_no_look_changes_anything(site, client, monkeypatch):
    asked = []
    plan = site.connection.plan
    monkeypatch.setattr(plan, "ask", lambda kind, **fields: asked.append(kind))
    for path in paths(acting=False):
        if path not in ("/ui/live", "/ui/now/live"):
            client.get(path, params=_ANYTHING)
    assert (site.connection.sent, site.connection.sender.records, plan.told, asked) == ([], [], [], [])


# -- under the prefix of a proxy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["https://tasks.example/sched", "https://tasks.example/sched/"])
def test_links_have_the_prefix_once(tmp_path, url):
    with made(tmp_path, public_url=url, allowed_hosts=["tasks.example"]).client() as client:
        for path in ("/ui/now", "/sched/ui/now"):  # with a proxy that takes it off, and with one that leaves it
            text = client.get(path).text
            links = re.findall(r'(?:src|href|action|data-live)="([^"#]+)"', text)
            assert [link for link in links if not re.match(r"/sched/(?!.*//)", link)] == []
        assert client.get("/sched").headers["location"] == "/sched/ui/now"
        assert client.get("/sched/healthz").status_code == 200


@pytest.mark.parametrize("prefix", ["/ui", "/ui/spark", "/spark"])
@pytest.mark.parametrize("is_left", [True, False])
def test_whatever_the_prefix_is_called_every_redirect_leads_to_a_page(tmp_path, prefix, is_left):
    site = made(tmp_path, public_url=f"https://tasks.example{prefix}", allowed_hosts=["tasks.example"])

    def inner(outer):
        assert outer.startswith(f"{prefix}/ui/")
        return outer if is_left else outer.removeprefix(prefix)

    with site.client() as client:
        page = client.get(inner(f"{prefix}/ui/now"))
        fields = {"form_token": form_token(page), "queue": "mail"}
        act = client.post(inner(f"{prefix}/ui/now:pause"), data=fields, headers=ORIGIN)
        assert client.get(inner(act.headers["location"])).status_code == 200
        assert client.get(inner(client.get("/").headers["location"])).status_code == 200
        assert client.get(f"{prefix}/healthz").status_code == 200
    text = token_of(site, "read")
    with site.client() as client:
        asked = client.get(inner(f"{prefix}/ui/now?x=1"))
        login = client.get(inner(asked.headers["location"]))
        (following,) = re.findall(r'name="next" value="([^"]+)"', login.text)
        fields = {"form_token": form_token(login), "token": text, "next": following}
        into = client.post(inner(f"{prefix}/ui/login"), data=fields, headers=ORIGIN)
        assert into.headers["location"] == f"{prefix}/ui/now?x=1"


def test_behind_tls_cookies_do_not_leave_it(tmp_path):
    site = made(tmp_path, public_url="https://tasks.example/sched")
    with site.client() as client:
        fields = {"form_token": form_token(client.get("/ui/login")), "token": token_of(site, "read")}
        answer = client.post("/ui/login", data=fields, headers={"Origin": "https://tasks.example"})
        assert "Secure" in answer.headers["set-cookie"]
        assert "Path=/sched" in answer.headers["set-cookie"]
        assert answer.headers["location"] == "/sched/ui/now"


# -- words ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("us", "text"),
    [(None, "\u2013"), (0, "0 ms"), (300, "<1 ms"), (3_000, "3 ms"), (1_200_000, "1.2 s"), (245_000_000, "4 min 5 s"),
     (51 * 3_600_000_000, "2 d 3 h"), (3_600_000_000, "1 h"), (-5_000_000, "0 ms")],
)  # fmt: skip
def test_spans_of_time_are_read_at_a_glance(us, text):
    assert value_texts.span_text(us).replace("\u202f", " ") == text


def test_an_instant_is_said_twice_and_is_machine_readable():
    text = value_texts.moment_markup("2026-01-31T09:00:00Z", value_texts.instant_of("2026-01-31T09:04:05Z") or 0)
    assert text.replace("\u202f", " ") == (
        '<time datetime="2026-01-31T09:00:00Z" title="2026-01-31T09:00:00Z">2026-01-31 09:00:00 <span class="ago">4 min ago</span></time>'
    )


def test_a_number_beyond_those_of_browsers_is_exact():
    assert value_texts.json_text({"a": 9007199254740993}).text == '{\n  "a": 9007199254740993\n}'


@pytest.mark.parametrize("value", ["mail", 'a "b" \\c', "a,b", "ü\n", ">5", " "])
def test_a_term_of_a_filter_means_exactly_its_value(value):
    from scylla_spark.core.tasks.filter import OneOf, read_filter

    assert read_filter(value_texts.filter_term("queue", value), 0).conditions == (OneOf("queue", (value,)),)


def test_a_name_that_is_markup_is_text():
    assert (
        value_texts.name_markup("<b>\u202ex\n")
        == '<bdi class="name" title="&lt;b&gt;\\u202ex\\n">&lt;b&gt;\\u202ex\\n</bdi>'
    )


# -- the overview ---------------------------------------------------------------------------------------------------------


def test_starts_and_ends_are_counted_by_when_they_were(site, client):
    pulse = site.app.state.api.pulse
    pulse.beats(now_us())
    for number in range(100):
        planned = now_us() - number * 1_000
        fact = Fact(KEY, 1, "failed" if number < 3 else "succeeded", planned + 10_000, planned + 20_000, planned)
        pulse.heard(OutcomeEvent(0, number, 1, (Fact(KEY, 1, "started", planned + 10_000, 0, planned), fact)))
    told = client.get("/v1/overview").json()["lately"]
    assert (told["started"], told["ended"], told["failed"]) == (100, 100, 3), "a start that is told twice is one"
    assert 9 <= told["p50_ms"] <= 11
    assert 9 <= told["p99_ms"] <= 11


def test_a_clock_that_is_ahead_is_told(site):
    pulse = site.app.state.api.pulse
    pulse.beats(now_us())
    pulse.heard(OutcomeEvent(0, 1, 1, (Fact(KEY, 1, "succeeded", now_us() + 4_000_000, now_us() + 5_000_000, 1),)))
    assert 4_000_000 < pulse.ahead_us(now_us()) <= 5_000_000


def test_counting_is_made_once_for_all_who_look(site, client, monkeypatch):
    asked = []
    pages = site.app.state.api.pages
    monkeypatch.setattr(
        pages, "totals", lambda wanted, now, real=pages.totals: asked.append(now) or real(wanted, now=now)
    )
    for _ in range(5):
        client.get("/v1/overview")
    assert len(asked) == 1


def test_what_somebody_should_look_at_is_told(site, client, monkeypatch):
    tail = site.app.state.api.tail
    standing = {0: Standing(5, 9, resigned=False), 1: Standing(5, 5, resigned=True)}
    monkeypatch.setattr(tail, "standing", lambda: standing)
    overviews = site.app.state.overviews
    (banner,) = client.get("/v1/overview").json()["banners"]
    assert banner["kind"] == "partition_without_owner"
    assert "1 of 2" in banner["text"]
    monkeypatch.setattr(
        "scylla_spark.api.deployment.overview.boot_us", lambda real=overview.boot_us: real() + 120_000_000
    )
    kinds = [one["kind"] for one in client.get("/v1/overview").json()["banners"]]
    assert kinds == ["partition_without_owner", "ingest_silent"]
    standing[0] = Standing(9, 9, resigned=False)
    monkeypatch.setattr(overviews, "_until", 0)
    assert [one["kind"] for one in client.get("/v1/overview").json()["banners"]] == ["partition_without_owner"]


def test_partitions_of_a_dispatcher_that_was_killed_are_told_and_no_longer_once_another_has_them(
    site, client, monkeypatch
):
    api = site.app.state.api
    monkeypatch.setattr(api.tail, "standing", lambda: {n: Standing(5, 5, resigned=False) for n in range(3)})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
    addresses = {0: dead, 1: dead, 2: ""}
    monkeypatch.setattr(api.scheduler.connection, "owner_address", addresses.__getitem__)
    (banner,) = client.get("/v1/overview").json()["banners"]
    assert (banner["kind"], banner["text"][:6]) == ("partition_without_owner", "2 of 3")
    addresses |= {0: "", 1: ""}
    monkeypatch.setattr(
        "scylla_spark.api.deployment.overview.boot_us", lambda real=overview.boot_us: real() + 20_000_000
    )
    assert client.get("/v1/overview").json()["banners"] == []


def test_lanes_that_wait_for_a_handler_and_queues_that_hold_the_children_are_told(site, client, monkeypatch):
    api = site.app.state.api
    monkeypatch.setattr(api.tail, "standing", lambda: {0: Standing(5, 5, resigned=False)})
    monkeypatch.setattr(api.scheduler.connection, "owner_address", lambda number: "http://127.0.0.1:1")
    status = {
        "partitions": [{"partition": 0}],
        "no_handler": [{"queue": "mail", "handler": "sum_flie", "lanes": 3}, {"queue": 7}],
        "no_worker": [
            {"queue": "mail", "handler": "train", "lanes": 2, "seconds": 40},
            {"queue": "mail", "handler": "soon", "lanes": 1, "seconds": 3},
        ],
        "holding": [{"queue": "bulk", "executor": "local", "held": 13, "children": 16, "lanes": 40}, "x"],
    }
    monkeypatch.setattr(explain, "ask", lambda address, path: status)
    found = client.get("/v1/overview").json()["banners"]
    assert [one["kind"] for one in found] == ["no_handler", "no_worker", "queue_holds_children"]
    assert "3 lanes wait" in found[0]["text"]
    assert "'sum_flie'" in found[0]["text"]
    assert found[1]["text"] == "2 lanes wait for Spark workers, which have been wanted for 40 s."
    assert "Spark is starting" in found[1]["hint"], "a session that is not up counts, too"
    assert "Queue 'bulk' holds 13 of the 16 children" in found[2]["text"]


def test_a_broker_that_is_away_is_told_after_a_while(client, monkeypatch):
    assert client.get("/v1/overview").json()["banners"] == []
    monkeypatch.setattr(
        "scylla_spark.api.deployment.overview.boot_us", lambda real=overview.boot_us: real() + 60_000_000
    )
    assert [one["kind"] for one in client.get("/v1/overview").json()["banners"]] == ["broker_away"]


@pytest.mark.parametrize(
    ("kafka", "ago_s", "shown"), [("here", 60, True), ("here", 3_600, False), ("elsewhere", 60, False)]
)
def test_a_broker_that_was_started_again_is_shown_for_a_while(site, client, monkeypatch, kafka, ago_s, shown):
    api = site.app.state.api
    monkeypatch.setattr(api.tail, "standing", lambda: {0: Standing(5, 5, resigned=False)})
    address = api.settings.kafka.bootstrap_servers if kafka == "here" else "127.0.0.1:2"
    restarts = {"times": 2, "last_us": now_us() - ago_s * 1_000_000}
    announce(api.settings.data_dir, {"kafka": address, "broker_restarts": restarts})
    told = [one["text"] for one in client.get("/v1/overview").json()["banners"]]
    assert ["2 times" in text for text in told] == [True] * shown


# -- what a page that is open is told -------------------------------------------------------------------------------------


def events_of(site, cookies, until, path="/ui/now/live"):
    """What a stream says, event by event, until something is said."""
    found = []

    async def read():
        app = guarded(site.app, site.settings)
        sent = asyncio.Event()
        shown = "; ".join(f"{name}={value}" for name, value in cookies.items())
        headers = [(b"host", b"127.0.0.1"), (b"cookie", shown.encode())]

        whole = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive():
            if (message := next(whole, None)) is not None:
                return message
            await sent.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            found.append(str(message.get("headers", "")) + message.get("body", b"").decode())
            if until(found):
                sent.set()

        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        await asyncio.wait_for(app(scope, receive, send), 60)

    asyncio.run(read())
    return "".join(found)


@pytest.fixture
def prompt(monkeypatch):
    """What is new is told at once, however dear it was to make."""
    monkeypatch.setattr(overview, "_LEAST_US", 50_000)
    monkeypatch.setattr(overview, "_PRICE", 0)
    monkeypatch.setattr(overview, "_QUIET_S", 0.05)
    monkeypatch.setattr(now_live, "_PRICE", 0)


@pytest.mark.usefixtures("prompt")
def test_now_sends_its_part_when_it_has_become_another(site):
    told = []

    def enough(found):
        parts = "".join(found).count("event: part")
        if parts == 1 and not told:
            told.append(1)
            site.connection.plan.ask("put_queue", queues=[{"name": "added", "paused": True}])
        return parts == 2

    text = events_of(site, {}, enough)
    first, second = (json.loads(one.partition("data: ")[2].partition("\n")[0]) for one in text.split("event: part")[1:])
    assert (">mail<" in first, "added" in first, "added" in second) == (True, False, True)
    assert "form_token" not in second, "what all are sent is of no session"


def test_now_shows_queues_by_pages_and_its_buttons_lead_back_to_the_same_page(site, client):
    names = [f"team/{number:04}" for number in range(1_700)]
    site.connection.plan.ask("put_queue", queues=[{"name": name, "concurrency": 3} for name in names])
    first = client.get("/ui/now")
    assert len(first.content) < 100_000
    assert re.search(r"Queues 1 to 50 of 1.70\d, by name\.", seen(first))
    second = client.get("/ui/now?after=team/0048")
    assert (">team/0048<" in second.text, ">team/0049<" in second.text, ">team/0098<" in second.text) == (
        False,
        True,
        True,
    )
    assert "/ui/now/live?after=team%2F0048" in second.text, "what changes is of the same page"
    assert "after=team%2F0098" in second.text
    paused = sent(client, "/ui/now:pause", second, queue="team/0050", after="team/0048")
    assert paused.headers["location"] == "/ui/now?after=team%2F0048"
    assert "No queue comes after" in seen(client.get("/ui/now?after=zz"))


def test_a_warning_is_no_part_of_what_was_done(site, client):
    told = gathered([("http://127.0.0.1:1", {"handlers": [row(name="sum_file")]})])
    site.app.state.api.handlers._look = lambda: told
    answer = sent(client, "/ui/tasks:new", client.get("/ui/tasks:new"), handler="sum_flie")
    text = client.get(answer.headers["location"]).text
    assert '<p class="said" role="status">The task was enqueued.</p>' in text
    assert re.search('<p class="said warning" role="alert">[^<]*sum_flie', text)


def test_what_is_told_alike_is_made_once_and_not_too_often(monkeypatch):
    parts, made, now = Parts(), [], [1_000_000]
    monkeypatch.setattr(now_live, "boot_us", lambda: now[0])

    def make():
        made.append(now[0])
        now[0] += 10_000
        return f"<p>{len(made)}"

    with parts.watched(b"all"):
        assert [parts.made(b"all", (b"a", b"q"), make) for _ in range(50)] == ["<p>1"] * 50
        assert parts.made(b"all", (b"b", b"q"), make) is None, "a hundred times ten milliseconds have not passed"
        now[0] += 1_000_000
        assert parts.made(b"all", (b"b", b"q"), make) == "<p>2"
        with parts.watched(b"also all"):
            assert parts.made(b"also all", (b"b", b"q"), make) == "<p>2", "they are told the same"
    assert len(made) == 2


def test_everybody_who_may_see_something_else_is_brought_his_part_whoever_asks_first(monkeypatch):
    parts, made, now = Parts(), [], [1_000_000]
    monkeypatch.setattr(now_live, "boot_us", lambda: now[0])
    teams = [b"%d" % number for number in range(12)]

    def make(team):
        made.append((team, now[0]))
        now[0] += 10_000
        return "<p>"

    with ExitStack() as open_pages:
        for team in teams:
            open_pages.enter_context(parts.watched(team))
        for beat in range(40):  # all are told something new, always in the same order
            now[0] = beat * 5_000_000 + 1_000_000
            for team in teams:
                parts.made(team, (b"%d" % beat, team), lambda team=team: make(team))
    for team in teams:
        times = [at for one, at in made if one == team]
        assert len(times) >= 12, "a twelfth of what there is, every 12 s, at their next news"
        assert max(later - earlier for earlier, later in pairwise(times)) <= 16_000_000
    assert len(made) * 10_000 <= 40 * 5_000_000 // 100 + 12 * 10_000, "a hundredth of a core, and the first of each"


def test_one_that_took_long_to_make_keeps_nobody_waiting_for_long(monkeypatch):
    parts, now = Parts(), [1_000_000]
    monkeypatch.setattr(now_live, "boot_us", lambda: now[0])

    def make():
        now[0] += 900_000
        return "<p>"

    with parts.watched(b"all"):
        parts.made(b"all", (b"a", b"q"), make)
        now[0] += 5_000_000
        assert parts.made(b"all", (b"b", b"q"), make) == "<p>"


@pytest.mark.parametrize("path", ["/ui/now/live", "/ui/live"])
def test_a_stream_is_refused_where_there_is_no_session(site, client, path):
    token_of(site, "read")
    assert client.get(path).status_code == 401


@pytest.mark.usefixtures("prompt")
@pytest.mark.parametrize("path", ["/ui/now/live", "/ui/live"])
@pytest.mark.parametrize("why", ["logged out", "silent"])
def test_a_stream_ends_with_its_session(site, client, monkeypatch, path, why):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"))
    ended = []

    def enough(found):
        text = "".join(found)
        if ("event: part" in text or "event: overview" in text) and not ended:
            ended.append(1)
            if why == "silent":
                at_later(monkeypatch, IDLE_US + 1_000_000)
            else:
                monkeypatch.setattr(
                    Sessions, "holds", lambda self, session, now: False
                )  # the log-out asks another loop
        return "event: over" in text

    assert "event: over" in events_of(site, dict(client.cookies), enough, path)


def test_a_session_that_was_ended_holds_no_more_whatever_text_it_has():
    sessions = Sessions("secret")
    session = sessions.begun("a", 0)
    sessions.end(session)
    assert not sessions.holds(session._replace(seen_us=5), 6)
    for number in range(MOST_ENDED):
        sessions.end(Session(str(number), "a", 0, 0))
    assert sessions.holds(session, 6), "memory is bounded"


@pytest.mark.usefixtures("prompt")
def test_the_head_of_a_stream_has_the_new_text_of_its_session_and_lasts_as_long(site, client, monkeypatch):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"))
    at_later(monkeypatch, RENEWED_US + 1_000_000)
    later = []

    def enough(found):
        text = "".join(found)
        if "event: part" in text and not later:
            later.append(1)
            at_later(monkeypatch, IDLE_US + 1_000_000)
            site.connection.plan.ask("put_queue", queues=[{"name": "added", "paused": True}])
        return text.count("event: part") == 2

    head = events_of(site, dict(client.cookies), enough).partition("event: ")[0]
    assert (head.count("set-cookie"), "HttpOnly" in head) == (1, True)


@pytest.mark.usefixtures("prompt")
def test_a_stream_ends_with_its_token(site, client):
    token = token_of(site, "read")
    sent(client, "/ui/login", client.get("/ui/login"), token=token)
    revoked = []

    def enough(found):
        text = "".join(found)
        if "event: part" in text and not revoked:
            revoked.append(1)
            revoke(site, token)
            site.connection.plan.ask("put_queue", queues=[{"name": "added", "paused": True}])
        return "event: over" in text

    assert "event: over" in events_of(site, dict(client.cookies), enough)
