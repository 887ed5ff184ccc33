"""The check for requests that a browser sends for a page of another site. The API and the dashboard share it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OURS: Final = frozenset({"same-origin", "none"})


def is_foreign(host: str, origin: str | None, fetch_site: str | None, names: Iterable[str] = ()) -> bool:
    """Returns whether a page of another site sends this request, according to the headers of the browser.

    Browsers let any page send simple requests anywhere, and say so in headers that no script can set. Programs send neither.

    Args:
        host: the Host header.
        origin: the Origin header; None: there is none. `null`, of sandboxed and local pages, is foreign.
        fetch_site: the Sec-Fetch-Site header; None: there is none.
        names: further names under which people reach us, with their ports where these are not the usual ones.
    """
    if fetch_site is not None and fetch_site not in _OURS:
        return True
    return origin is not None and _place(origin) not in {host.lower(), *(name.lower() for name in names)} - {""}


def _place(origin: str) -> str:
    """Host and port of an origin; empty: it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
