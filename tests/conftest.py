"""Shared by all tests: markers by folder, one broker per run, and the core-seconds that each file costs."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from scylla_spark.io.host.broker import EmbeddedBroker
from tests.support.costs import Costs
from tests.support.leftovers import Leftovers
from tests.support.shared_broker import SharedBroker, ask

TESTS = Path(__file__).parent
_BROKER = pytest.StashKey[SharedBroker]()

# A machine can be slow for seconds. A test that hangs is seen by the time of the whole run.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for the number of files in the list of costs."""
    parser.addoption(
        "--costs", type=int, default=0, metavar="N", help="print the core-seconds of the run and of its N dearest files"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers a marker per folder, starts to measure where that is asked for, and offers a broker to the test processes of xdist."""
    for folder in sorted({folder for path in TESTS.rglob("test_*.py") for folder in _folders(path)}):
        config.addinivalue_line("markers", f"{folder}: is in a folder of this name (set by itself)")
    config.pluginmanager.register(Leftovers())
    if shown := config.getoption("--costs"):
        config.pluginmanager.register(Costs(shown))
    if config.getoption("numprocesses", None):
        config.stash[_BROKER] = SharedBroker()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the shared broker."""
    if (broker := config.stash.get(_BROKER, None)) is not None:
        broker.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Tells a test process of xdist where to ask for the broker."""
    node.workerinput["broker"] = node.config.stash[_BROKER].socket  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Chooses what runs in one process together, where `--dist loadscope` is asked for."""
    if config.getoption("dist") != "loadscope":
        return None
    from tests.support.xdist_folders import Folders

    return Folders(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects without garbage collection: what is imported and collected lives as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with the names of its folders, before tests are chosen by their markers, and puts tests of single parts first.

    So these depend on no Spark session, Kafka client or logging that others leave in their process.
    """
    for item in items:
        for folder in _folders(item.path):
            item.add_marker(folder)
    items.sort(key=lambda item: not {"unit", "tables"}.intersection(_folders(item.path)))


def _folders(path: Path) -> tuple[str, ...]:
    return path.relative_to(TESTS).parts[:-1]


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the broker that all tests of a run share; see `settings_on` for topics of one's own."""
    workerinput = getattr(request.config, "workerinput", None)
    if workerinput is not None:
        yield ask(workerinput["broker"])
        return
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap
