"""Pages of other sites command nothing, even where nobody needs a token: their visitors' browsers say whose page it is."""

from __future__ import annotations

import re
from http import HTTPStatus

import pytest

from scylla_spark.api.http.origins import is_foreign
from tests.support.api_site import Site, kind
from tests.support.delta_tables import make

FOREIGN = [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "http://127.0.0.1:3000"},
    {"origin": "http://["}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    {"origin": "http://127.0.0.1", "sec-fetch-site": "cross-site"},
]  # fmt: skip
OURS = [{}, {"origin": "http://127.0.0.1"}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}]


@pytest.fixture
def site(tmp_path):
    make(f"{tmp_path}/tables")
    return Site(str(tmp_path), public_url="https://tasks.example/scylla", allowed_hosts=("inner.example",))


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def changing(site: Site) -> list[tuple[str, str]]:
    """Every operation that is not a look: method and path, with something in its places."""
    found = [
        (method, re.sub(r"\{\w+\}", "x", route.path))
        for route in site.app.routes
        for method in sorted(getattr(route, "methods", None) or ())
        if method not in ("GET", "HEAD", "OPTIONS")
    ]
    assert len(found) > 30
    return found


@pytest.mark.parametrize("headers", FOREIGN)
def test_no_page_of_another_site_changes_anything(site, client, headers):
    form = {"content-type": "application/x-www-form-urlencoded"}
    paths = [("POST", "/ui/now:pause"), ("POST", "/v1/tasks:cancel?filter=state:open")]
    if headers == FOREIGN[0]:  # all operations stand behind one check
        paths += changing(site)
    for method, path in paths:
        answer = client.request(method, path, headers=form | headers)
        assert (answer.status_code, kind(answer)) == (HTTPStatus.FORBIDDEN, "/problems/foreign-site"), path
    assert site.connection.sent == []


@pytest.mark.parametrize("headers", [*OURS, {"origin": "https://tasks.example"}, {"origin": "https://inner.example"}])
def test_pages_of_ours_and_programs_are_obeyed(site, client, headers):
    assert client.post("/v1/tasks", json={"handler": "h"}, headers=headers).status_code == HTTPStatus.ACCEPTED
    assert len(site.connection.sent) == 1


def test_links_from_other_sites_may_be_followed(client):
    assert client.get("/healthz", headers=FOREIGN[-1]).status_code == HTTPStatus.OK


@pytest.mark.parametrize("headers", [{}, {"content-type": ""}, {"content-type": "text/plain"}])
def test_a_bulk_needs_a_media_type_that_no_form_can_have(site, client, headers):
    answer = client.post("/v1/tasks:bulk", content=b'{"handler": "h"}\n', headers=headers)
    assert kind(answer) == "/problems/wrong-media-type"
    assert site.connection.sender.records == []


def test_a_host_is_compared_in_letters_of_any_size_and_with_its_port():
    assert not is_foreign("Tasks.Example:81", "https://tasks.example:81", None)
    assert is_foreign("tasks.example:81", "https://tasks.example", None)
    assert is_foreign("", "https://", None)
