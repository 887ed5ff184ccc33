"""One site per module for tests that change nothing; the module says with `made(folder)` what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_site import Site


@pytest.fixture(scope="module")
def looked_at(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site of tests that change nothing."""
    return request.module.made(tmp_path_factory.mktemp("looked-at"))


@pytest.fixture(scope="module")
def look(looked_at: Site) -> Iterator[Any]:
    """A client of the site of tests that change nothing."""
    with looked_at.client() as client:
        yield client
