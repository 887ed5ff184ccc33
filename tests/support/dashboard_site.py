"""The dashboard in front of the API of `api_site`: a browser without scripts that keeps cookies and sends forms."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx

from scylla_spark.core.access.token_text import digest_of, new_token
from tests.support.api_site import Client, Site

ORIGIN = {"Origin": "http://127.0.0.1"}


def token_of(site: Site, *scopes: str) -> str:
    """Stores a token, and gives its text."""
    token = new_token()
    fields = {"id": token.id, "digest": digest_of(token), "name": "somebody", "scopes": list(scopes)}
    site.connection.plan.ask("put_token", tokens=[fields])
    return token.text


def form_token(page: httpx.Response, path: str = "") -> str:
    """Returns what a form of a page carries: that of a path; or any, where buttons say where they lead."""
    carried = r'name="form_token" value="(\w+)"'
    own = re.search(rf'action="{re.escape(path)}">\s*<input type="hidden" {carried}', page.text)
    found = own or re.search(carried, page.text)
    assert found is not None, page.text[:2000]
    return found[1]


def sent(client: Client, path: str, page: httpx.Response, **fields: Any) -> httpx.Response:
    """Sends a form as a page of ours would."""
    return client.post(path, data={"form_token": form_token(page, path)} | fields, headers=ORIGIN)


def seen(page: httpx.Response) -> str:
    """The text of a page, without its markup."""
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", page.text).split()))


class _Foreign(HTMLParser):
    """Collects elements that run or load something of another's."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = given.get("src") or (given.get("href") if tag == "link" else None) or ""
        bare = tag == "script" and not given.get("src")
        if (
            bare
            or (loads and not loads.startswith("/ui/"))
            or any(name.startswith("on") or name == "style" for name in given)
        ):
            self.found.append(str(self.get_starttag_text()))


def foreign(page: httpx.Response) -> list[str]:
    """Elements of a page that run or load something that is not ours."""
    parser = _Foreign()
    parser.feed(page.text)
    return parser.found
