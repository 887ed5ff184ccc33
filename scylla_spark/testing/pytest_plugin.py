"""Fixtures of pytest: `scylla_world`, and two that a test folder may define anew to say what stands in it.

pytest loads this in every run of who has installed scylla-spark, so it imports nothing before a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from datetime import datetime

    from scylla_spark.testing.virtual_world import World


@pytest.fixture
def scylla_handlers() -> Any:
    """Returns what may run in `scylla_world`; None: every handler that is registered in this process."""
    return None


@pytest.fixture
def scylla_now() -> datetime:
    """Returns what time it is in `scylla_world` at first."""
    from scylla_spark.testing.virtual_world import START

    return START


@pytest.fixture
def scylla_world(scylla_handlers: Any, scylla_now: datetime) -> Iterator[World]:
    """A world on virtual time, new for each test."""
    from scylla_spark.testing.virtual_world import world

    with world(scylla_handlers, scylla_now) as made:
        yield made
