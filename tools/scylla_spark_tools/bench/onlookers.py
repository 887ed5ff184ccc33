"""People who look at the dashboard in a benchmark: open screens as browsers hold them, and a real browser that says when it paints."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

from scylla_spark.config.settings import Settings
from scylla_spark_tools.bench.helper_process import Channel

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_PAINTED: Final = "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)"
_WAIT_MS: Final = 10_000
_LOOKS: Final = 5


def onlookers(channel: Channel, _settings: Settings, *, api: str, count: int) -> dict[str, int]:
    """Open Now screens, until the parent says that it is enough.

    Args:
        channel: to the process that measures; it hears when all are open.
        api: address of the API.
        count: how many screens.

    Returns:
        How many `events` came, and in how many `bytes`.
    """
    seen: Counter[str] = Counter()
    opened = [threading.Event() for _ in range(count)]
    for first in opened:
        threading.Thread(target=_look, args=(api, seen, first), daemon=True).start()
    for first in opened:
        first.wait(60)
    channel.tell("ready")
    channel.hear()
    return {name: seen[name] for name in ("events", "bytes")}


def _look(api: str, seen: Counter[str], first: threading.Event) -> None:
    """One screen: the page, then all that its stream says; the script of the page asks for nothing else."""
    connection = HTTPConnection(urlsplit(api).netloc, timeout=600)
    connection.request("GET", "/ui/now")
    connection.getresponse().read()
    connection.request("GET", "/ui/now/live")
    for line in connection.getresponse():
        seen["bytes"] += len(line)
        if line.startswith(b"event: "):
            seen["events"] += 1
            first.set()


def first_paint(_channel: Channel, _settings: Settings, *, api: str) -> float | None:
    """Milliseconds until the slower of Now and Tasks shows something, the middle of some looks; None: there is no browser.

    Args:
        _channel: to the process that measures.
        api: address of the API.
    """
    path = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if path is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            return max(_usually(browser, f"{api}{place}") for place in ("/ui/now", "/ui/tasks"))
        finally:
            browser.close()


def _usually(browser: Any, address: str) -> float:
    """The middle of some looks."""
    return sorted(_painted(browser, address) for _ in range(_LOOKS))[_LOOKS // 2]


def _painted(browser: Any, address: str) -> float:
    """Of a browser that has seen nothing of ours yet."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(address, wait_until="load")
    for _ in range(_WAIT_MS // 50):
        if painted := page.evaluate(_PAINTED):
            break
        page.wait_for_timeout(50)
    context.close()
    return float(painted[0]) if painted else float(_WAIT_MS)
