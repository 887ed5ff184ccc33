"""Answers that go on, or come late, end with the token that asked for them: streams, long looks, and what is leased."""

from __future__ import annotations

import asyncio

import pytest

from scylla_spark.api.access import access, token_mirror, token_recheck
from scylla_spark.api.access.access import Access
from scylla_spark.api.access.token_mirror import TokenView
from scylla_spark.api.app import guarded
from scylla_spark.api.deployment import overview
from scylla_spark.core.leases.messages import Answer
from scylla_spark.core.tasks.task import YIELDED
from tests.api.test_api_access import MISSING, give, made
from tests.support.api_site import kind
from tests.support.invocations import invocation, lease_on

STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
OVER = b"event: over\ndata: \n\n"


@pytest.fixture
def later(monkeypatch):
    """Lets seconds pass for what is known of tokens."""
    passed = [0.0]
    monkeypatch.setattr(token_mirror, "_time", lambda: asyncio.get_running_loop().time() + passed[0])

    def pass_by(seconds=token_mirror.OLDEST_S + 0.1):
        passed[0] += seconds

    return pass_by


@pytest.fixture
def site(tmp_path):
    return made(tmp_path)


def revoke(site, headers):
    id = headers["Authorization"].split("_")[1]
    stored = site.connection.plan.state().tokens[id]
    fields = {"id": id, "digest": stored.digest, "name": stored.name, "scopes": list(stored.scopes), "revoked": True}
    site.connection.plan.ask("put_token", tokens=[fields])


def asked(app, headers, path="/v1/overview", method="GET", heard=lambda message: None):
    """All that one request is sent, until its answer ends."""
    sent = []
    whole = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive():
        if (message := next(whole, None)) is not None:
            return message
        return await asyncio.Event().wait()

    async def send(message):
        sent.append(message)
        heard(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "headers": [(b"host", b"127.0.0.1"), (b"accept", b"text/event-stream"),
                    *((name.lower().encode(), value.encode()) for name, value in headers.items())],
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 30))
    return sent


class Answering:
    """What stands for all routes: an answer in pieces, before each of which something happens."""

    def __init__(self, *acts, headers=()):
        self._acts = acts
        self._headers = headers
        self.ended = False

    async def __call__(self, scope, receive, send):
        try:
            if not self._headers:
                self._acts[0]()
            await send({"type": "http.response.start", "status": 200, "headers": [*self._headers]})
            for act in self._acts:
                act()
                await send({"type": "http.response.body", "body": b"piece", "more_body": True})
            await send({"type": "http.response.body", "body": b"end"})
        finally:
            self.ended = True


def behind(site, app):
    return Access(
        app, site.settings.api, TokenView(lambda: dict(site.connection.plan.state().tokens)), lambda entry: None
    )


def bodies(sent):
    return [message["body"] for message in sent if message["type"] == "http.response.body"]


def nothing():
    pass


def test_a_stream_ends_as_soon_as_its_token_is_known_to_be_revoked(site, later):
    headers = give(site, "read")
    app = Answering(nothing, lambda: (revoke(site, headers), later()), nothing, headers=STREAM)
    sent = asked(behind(site, app), headers)
    assert bodies(sent) == [b"piece", OVER]
    assert sent[-1]["more_body"] is False
    assert app.ended


def test_a_stream_that_has_nothing_to_say_ends_too(site, later, monkeypatch):
    monkeypatch.setattr(token_recheck, "_PAUSE_S", 0.01)
    headers, ended = give(site, "read"), []

    async def quiet(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": STREAM})
            revoke(site, headers)
            later()
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    assert bodies(asked(behind(site, quiet), headers)) == [OVER]
    assert ended == [True]


def test_a_stream_ends_when_its_token_expires(site, monkeypatch):
    headers = give(site, "read", expires=2 * 10**15)
    now = [10**15]
    monkeypatch.setattr(access, "now_us", lambda: now[0])
    sent = asked(behind(site, Answering(nothing, lambda: now.append(now.pop() * 2), headers=STREAM)), headers)
    assert bodies(sent) == [b"piece", OVER]


def test_a_stream_that_needed_no_token_ends_with_the_first_one_that_is_stored(site, later):
    app = Answering(nothing, lambda: (give(site, "read"), later()), headers=STREAM)
    assert bodies(asked(behind(site, app), {})) == [b"piece", OVER]


def test_a_stream_goes_on_as_long_as_its_token_holds(site, later):
    sent = asked(behind(site, Answering(nothing, later, later, headers=STREAM)), give(site, "read"))
    assert bodies(sent) == [b"piece"] * 3 + [b"end"]


def test_where_nobody_can_tell_who_may_come_in_a_stream_waits_and_loses_nothing(site, later, monkeypatch):
    monkeypatch.setattr(token_recheck, "_PAUSE_S", 0.0)
    headers, down = give(site, "read"), []
    state = site.connection.plan.state

    def read():
        if down:
            site.connection._unreachable()
        return state()

    monkeypatch.setattr(site.connection.plan, "state", read)
    app = behind(site, Answering(lambda: (down.append(1), later()), nothing, headers=STREAM))
    sent = asked(
        app, headers, heard=lambda message: down.clear() if message.get("body", b"").startswith(b":") else None
    )
    *waited, first, second, end = bodies(sent)
    assert set(waited) == {b": still here\n\n"}
    assert (first, second, end) == (b"piece", b"piece", b"end")


@pytest.mark.parametrize(("method", "status"), [("GET", 401), ("POST", 200)])
def test_what_only_tells_and_took_long_is_told_to_nobody_whose_token_no_longer_holds(
    site, later, monkeypatch, method, status
):
    monkeypatch.setattr(token_recheck, "OLDEST_S", 0.0)
    headers = give(site, "read")
    app = Answering(lambda: (revoke(site, headers), later()))
    sent = asked(behind(site, app), headers, method=method)
    assert [message["status"] for message in sent if "status" in message] == [status]
    assert (b"piece" in bodies(sent)) == (status == 200)
    assert app.ended


def test_the_overview_of_the_api_ends_with_its_token(site, later, monkeypatch):
    monkeypatch.setattr(overview, "_LEAST_US", 10_000)
    monkeypatch.setattr(overview, "_QUIET_S", 0.02)
    headers, revoked = give(site, "read"), []

    def heard(message):
        if message.get("body", b"").startswith(b":") and not revoked:
            revoked.append(1)
            revoke(site, headers)
            later()

    assert bodies(asked(guarded(site.app, site.settings), headers, heard=heard))[-1] == OVER


@pytest.mark.parametrize("path", ["/v1/queues/mail/leases", "/v1/workers/w/sync"])
@pytest.mark.parametrize("holds", [True, False])
def test_what_was_leased_goes_to_others_if_the_token_was_revoked_while_it_waited(site, later, path, holds):
    headers, calls = give(site, "lease:mail"), []

    async def call(asked):
        calls.append(asked)
        if not asked.wants:
            return Answer(0, tuple("ok" for _ in asked.reports))
        if not holds:
            revoke(site, headers)
        later()
        lease = lease_on("0." + "a" * 32, invocation(1, "o", "u", '"secret"', handler="", queue="mail"))
        return Answer(0, leases=(lease, lease._replace(token="")))

    site.app.state.api.leases.call = call
    want = {"wait_ms": 1_000} if path.endswith("leases") else {"seq": 1, "session": "s", "wait_ms": 1_000}
    body = want if path.endswith("leases") else want | {"want": [{"queue": "mail", "max": 1}]}
    with site.client() as client:
        answer = client.post(path, json=body, headers=headers)
    if holds:
        assert (answer.status_code, len(calls)) == (200, 1)
        return
    assert kind(answer) == MISSING
    assert "secret" not in answer.text
    assert [(report.token, report.outcome) for report in calls[1].reports] == [("0." + "a" * 32, YIELDED)]
