"""One browser, one page and one site that is only read, for all tests of this folder; a site of its own for each test that acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page

from scylla_spark.client.handlers import gathered
from scylla_spark.clock import now_us
from scylla_spark.dashboard.value_texts import segment
from tests.api.test_handler_catalogue import row
from tests.api.test_payload_form import SCHEMA
from tests.browser.visit import Visit, new_page
from tests.support.api_site import Site
from tests.support.browser_site import opened, served
from tests.support.dashboard_tables import fill
from tests.support.planning_tables import planned, watched

SCHEDULE = "team-a/x:y@" + "z" * 180


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with this folder, because the event loop of its driver would disturb tests that run their own."""
    with opened() as browser:
        yield browser


@contextmanager
def filled(folder: Path) -> Iterator[Site]:
    """A site that has a bit of everything."""
    keys = fill(f"{folder}/tables")
    site = Site(str(folder))
    site.keys = keys
    told = gathered([("http://127.0.0.1:1", {"handlers": [row(name="remind", payload=SCHEMA, about="Reminds.")]})])
    site.app.state.api.handlers._look = lambda: told
    planned(site, now_us())
    watched(site, now_us())
    with served(site) as address:
        site.address = address
        fields = {"handler": "report", "cron": "30 2 * * *", "tz": "Europe/Berlin"}
        httpx.put(f"{address}/v1/schedules/{segment(SCHEDULE)}", json=fields).raise_for_status()
        yield site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with filled(tmp_path) as site:
        yield site


@pytest.fixture(scope="package")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site for tests that only look at it."""
    with filled(tmp_path_factory.mktemp("looked-at")) as site:
        yield site


@pytest.fixture(scope="package")
def page(browser: Browser) -> Iterator[Page]:
    """The page of all visits: another one would cost a process, which loads and compiles everything again."""
    with new_page(browser) as page:
        yield page


@pytest.fixture(scope="package")
def page_with_clock(browser: Browser) -> Iterator[Page]:
    """A page whose timers a test can move forward: a browser cannot take its clock back."""
    with new_page(browser) as page:
        page.clock.install()
        yield page


@pytest.fixture(scope="package")
def page_without_scripts(browser: Browser) -> Iterator[Page]:
    """A page in which no script runs."""
    with new_page(browser, java_script_enabled=False) as page:
        yield page


@pytest.fixture
def look(page: Page, looked_at: Site) -> Iterator[Visit]:
    """A visit of the site that is only looked at, at 1280 pixels in light."""
    with Visit.begun(page, looked_at.address) as visit:
        yield visit


@pytest.fixture
def visit(page: Page, site: Site) -> Iterator[Visit]:
    """A visit of a site of its own, at 1280 pixels in light."""
    with Visit.begun(page, site.address) as visit:
        yield visit


@pytest.fixture
def visit_with_clock(page_with_clock: Page, site: Site) -> Iterator[Visit]:
    """A visit of a site of its own, whose `page.clock` the test moves."""
    with Visit.begun(page_with_clock, site.address) as visit:
        yield visit


@pytest.fixture
def look_without_scripts(page_without_scripts: Page, looked_at: Site) -> Iterator[Visit]:
    """A visit of the site that is only looked at, in which no script runs."""
    with Visit.begun(page_without_scripts, looked_at.address) as visit:
        yield visit
