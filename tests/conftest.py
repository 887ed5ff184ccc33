"""What all tests share: hypothesis waits, and at the end the core-seconds are told that they and their processes have cost."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.costs import Costs

settings.register_profile(
    "busy", deadline=None
)  # machines are slow for seconds at a time; what hangs is seen by the time of the run
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much is told of what tests cost."""
    parser.addoption("--costs", type=int, default=0, metavar="N", help="tell the core-seconds of the N dearest files")


def pytest_configure(config: pytest.Config) -> None:
    """Counts what tests cost."""
    config.pluginmanager.register(Costs(config.getoption("--costs")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Who runs what, where `--dist loadscope` is asked for (make test WORKERS=2)."""
    if config.getoption("dist") != "loadscope":
        return None
    from tests.support.xdist_folders import Folders

    return Folders(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected lives as long as the process: nobody looks for garbage meanwhile, nor through all of it later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
