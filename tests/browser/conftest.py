"""One browser and one site for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from scylla_spark.client.handlers import gathered
from scylla_spark.services.dashboard.value_texts import segment
from tests.api.test_handler_catalogue import row
from tests.api.test_payload_form import SCHEMA
from tests.browser.visit import Visit
from tests.support.api_site import Site
from tests.support.browser_site import opened, served
from tests.support.dashboard_tables import fill

SCHEDULE = "team-a/x:y@" + "z" * 180


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all screens; it goes with them, since its event loop would stand in the way of tests that run their own."""
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
    with served(site) as address:
        site.address = address
        for name in ("nightly", SCHEDULE):
            fields = {"handler": "report", "cron": "30 2 * * *", "tz": "Europe/Berlin"}
            httpx.put(f"{address}/v1/schedules/{segment(name)}", json=fields).raise_for_status()
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


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Visit]:
    """A page of 1280 pixels in light."""
    with Visit.begun(browser, site.address) as visit:
        yield visit
