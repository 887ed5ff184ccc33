"""The deployment that the tests of this folder kill and stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.acceptance.crash.crash_site import EVENTS, CrashSite
from tests.support.webhook_receiver import Receiver, receiving


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    """Receives notifications; refuses the first."""
    with receiving(503, 204) as receiver:
        yield receiver


@pytest.fixture(scope="session")
def crash_site(
    request: pytest.FixtureRequest, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CrashSite]:
    """The deployment, with all chosen tests that cross its events."""
    stories: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENTS}
    for item in request.session.items:
        if (crossing := _crossing(item)) is not None:
            stories[crossing[0]].append(crossing[2])
    site = CrashSite(tmp_path_factory.mktemp("crash"), receiver, stories)
    yield site
    site.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts tests that cross an event in the order of the events, and before those that come after all events."""
    here = [index for index, item in enumerate(items) if "crash_site" in getattr(item, "fixturenames", ())]
    ordered = sorted((items[index] for index in here), key=_turn)
    for index, item in zip(here, ordered, strict=True):
        items[index] = item


def _turn(item: pytest.Item) -> tuple[int, int]:
    crossing = _crossing(item)
    return (len(EVENTS), 0) if crossing is None else (EVENTS.index(crossing[0]), crossing[1])


def _crossing(item: pytest.Item) -> tuple[str, int, Callable[..., Any]] | None:
    return getattr(getattr(item, "function", None), "crosses", None)
