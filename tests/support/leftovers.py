"""Reports a test that leaves a Spark session, a handler of the root logger or a thread behind: later tests would run beside it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog

_CHECKED: Final = ("tests/unit/", "tests/tables/", "tests/simulation/", "tests/fuzz/")
"""Folders whose files share nothing. A session or a deployment of other folders lives until the run ends."""
_ENDING_S: Final = 10.0  # a thread that was told to end may take this long


class Leftovers:
    """Compares the state of the process at the end of a test file with the state at its begin."""

    def __init__(self) -> None:
        self._before: set[object] = set()
        self._left_by: dict[object, str] = {}
        self._file: Path | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Notes the state when a file begins."""
        if item.path != self._file:
            self._file, self._before = item.path, set(_present())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Notes leftovers of a test, and fails the last test of a file if one is left when the file ends."""
        result = yield
        for one in _present():
            if one not in self._before:
                self._left_by.setdefault(one, item.nodeid)
        if nextitem is None or nextitem.path != item.path:
            structlog.reset_defaults()  # `capture_logs` leaves it configured
            left_by, self._left_by = self._left_by, {}
            if item.nodeid.startswith(_CHECKED):
                _check(left_by)
        return result


def _check(left_by: dict[object, str]) -> None:
    for one in left_by:
        if isinstance(one, threading.Thread):
            one.join(_ENDING_S)
    there = set(_present())
    if left := [f"{name} leaves {one!r}" for one, name in left_by.items() if one in there]:
        pytest.fail("\n".join(left), pytrace=False)


def _present() -> Iterator[object]:
    """Yields the Spark context, the handlers of the root logger, and all threads that keep the process alive."""
    if "pyspark" in sys.modules:
        from pyspark import SparkContext

        if SparkContext._active_spark_context is not None:
            yield SparkContext._active_spark_context
    yield from logging.getLogger().handlers
    yield from (thread for thread in threading.enumerate() if not thread.daemon)
