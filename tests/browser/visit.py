"""A visit of the dashboard that writes down what must not happen: errors of scripts, breaches of the policy, requests to others."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request

_AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text()
_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


@contextmanager
def new_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a browser context of its own, which closes with it."""
    context = browser.new_context(reduced_motion="reduce", **options)
    try:
        yield context.new_page()
    finally:
        context.close()


class Visit:
    """What one test does with a page.

    Attributes:
        page: of Playwright.
        address: of the site.
        faults: what must not happen and did.
        expected: parts of console messages that are no faults.
        requests: addresses that the page has asked for.
    """

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.faults: list[str] = []
        self.expected: tuple[str, ...] = ()
        self.requests: list[str] = []
        self._listeners = {
            "console": self._said,
            "pageerror": lambda error: self.faults.append(f"script: {error}"),
            "request": self._asked,
            "dialog": lambda dialog: self.faults.append(f"dialog: {dialog.message}"),
        }

    @classmethod
    @contextmanager
    def begun(cls, page: Page, address: str, width: int = 1280, scheme: Any = "light") -> Iterator[Visit]:
        """A visit by a browser that knows nothing of earlier ones; afterwards the page is empty.

        Args:
            page: may have been visited before.
            address: of the site.
            width: of the window, in pixels.
            scheme: "light" or "dark".
        """
        visit = cls(page, address)
        page.context.clear_cookies()
        visit.look(width, scheme)
        for event, listener in visit._listeners.items():
            page.on(event, listener)
        try:
            yield visit
        finally:
            for event, listener in visit._listeners.items():
                page.remove_listener(event, listener)
            page.unroute_all()
            page.goto("about:blank")

    def open(self, path: str) -> Page:
        """Goes to a page, and waits until it is whole; event streams stay open, so there is no waiting for silence."""
        self.page.goto(f"{self.address}{path}", wait_until="load")
        return self.page

    def weight(self) -> int:
        """Bytes of the page and of all that it has loaded, compressed; of streams only what has ended counts."""
        loaded = "performance.getEntriesByType('resource').reduce((sum, one) => sum + one.encodedBodySize, 0)"
        return len(gzip.compress(self.page.content().encode())) + int(self.page.evaluate(loaded))

    def look(self, width: int, scheme: Any) -> None:
        """Opens pages in another width and scheme from now on; a browser context of its own would cost a process each.

        Args:
            width: of the window, in pixels.
            scheme: "light" or "dark".
        """
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(color_scheme=scheme)

    def is_too_wide(self) -> bool:
        """Returns True if the page as a whole must be moved sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def hindrances(self) -> list[str]:
        """Returns what axe-core finds that hinders people seriously."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(f"() => {{ {_AXE} }}")
        found = self.page.evaluate("tags => axe.run({runOnly: tags, resultTypes: ['violations']})", _TAGS)
        return [
            f"{one['id']}: {node['html'][:200]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"][:3]
        ]

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(one in message.text for one in self.expected):
            self.faults.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc:
            self.faults.append(f"another host: {request.url}")
