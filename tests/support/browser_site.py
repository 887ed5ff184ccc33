"""The dashboard for a real browser: the API over tables without brokers, behind a real server, and the chromium of the system."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.support.missing_package import absent
from tests.support.served_site import served

__all__ = ["chromium_path", "opened", "served"]

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
    return found or absent("chromium is not installed (Debian: apt-get install chromium)")


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
