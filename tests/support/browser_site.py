"""The dashboard for a real browser: the API over tables without brokers, behind a real server, and the chromium of the system."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from playwright.sync_api import Browser, sync_playwright

from scylla_spark.services.api.app import guarded
from tests.support.api_site import Site
from tests.support.waiting import eventually

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
]


def chromium_path() -> str:
    """The browser of the system; without one tests are skipped, and in CI they fail."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None and not os.environ.get("CI"):
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    assert found is not None, "chromium is not installed"
    return found


@contextmanager
def opened() -> Iterator[Browser]:
    """The browser, headless."""
    path = chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(site: Site) -> Iterator[str]:
    """Serves a site; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        guarded(site.app, site.settings), ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started, within=20, what="the server")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
