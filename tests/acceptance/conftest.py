"""One deployment shared by all tests that leave it running, and directories of their own for those that do not."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.acceptance.place import Foreign, Place, Process
from tests.support.waiting import eventually


class Shared(Place):
    """The deployment that is up while tests ask for `deployment`."""

    process: Process | None = None
    kafka = metrics = api = ""

    def start(self) -> None:
        self.process = self.up("--schedules")
        facts = self.process.ready()
        self.kafka, self.metrics, self.api = facts["kafka"], facts["metrics"], facts["api"]

    def stop(self) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            assert process.stop() == 0, process.told()[-3000:]
            eventually(lambda: not self.left(), 10, "nothing is left after a stop", self.left)


_shared: list[Shared] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Stops the shared deployment once tests follow that do not use it: its JVM would take half a core from them."""
    result = yield
    if nextitem is not None and "deployment" not in getattr(nextitem, "fixturenames", ()):
        for one in _shared:
            one.stop()
    return result


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """The shared deployment, which runs only while tests ask for it."""
    found = Shared(tmp_path_factory.mktemp("shared"))
    _shared.append(found)
    yield found
    try:
        found.stop()
    finally:
        found.clear()


@pytest.fixture
def deployment(shared: Shared) -> Shared:
    """The shared deployment, running."""
    if shared.process is None or not shared.process.running:
        shared.start()
    return shared


@pytest.fixture
def scheduler(deployment: Shared):
    """A client of the shared deployment."""
    with deployment.client() as client:
        yield client


@pytest.fixture
def foreign(deployment: Shared) -> Iterator[Foreign]:
    """A plain Kafka producer to the shared deployment."""
    producer = Foreign(deployment.kafka, linger_ms=5)
    yield producer
    producer.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An empty directory."""
    place = Place(tmp_path)
    yield place
    place.clear()
