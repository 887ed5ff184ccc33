"""The documentation site in a browser that reaches no other host: every page, its pictures, and the search."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser.visit import Visit

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"

pytestmark = pytest.mark.deep  # `make docs` installs the tools of the site


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""


@pytest.fixture(scope="module")
def documentation() -> Iterator[str]:
    """The address of the site, on loopback."""
    built = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_every_page_shows_its_diagrams_and_asks_no_other_host(page, documentation):
    with Visit.begun(page, documentation) as visit:
        page.route(lambda url: not url.startswith(f"{documentation}/"), lambda route: route.abort())
        for path in sorted(SITE.rglob("*.html")):
            wanted = path.read_text().count('<pre class="mermaid">')
            shown = visit.open(f"/{path.relative_to(SITE)}")
            shown.wait_for_function(
                "wanted => document.querySelectorAll('div.mermaid').length === wanted"
                " && !document.querySelector('pre.mermaid')",
                arg=wanted,
            )
            heights = shown.locator("div.mermaid").evaluate_all("all => all.map(one => one.offsetHeight)")
            assert all(height > 60 for height in heights), (path.name, heights)
            assert not visit.is_too_wide(), path.name
        assert visit.faults == []


def test_the_search_finds_a_page_by_a_word(page, documentation):
    with Visit.begun(page, documentation) as visit:
        shown = visit.open("/index.html")
        shown.locator("label.md-search__icon[for=__search]").first.click(force=True)
        shown.locator("input.md-search__input").fill("backfill")
        shown.locator(".md-search-result__item a").first.wait_for()
        assert "schedules.html" in shown.locator(".md-search-result__list").inner_html()
        assert visit.faults == []
