"""Records that belong together: who sent them hears once, whatever thread says what, and in which order."""

import sys
import threading

import pytest

from scylla_spark.services.dispatch.joint_acknowledgement import Acknowledgements


@pytest.fixture
def heard():
    return []


def test_all_are_acknowledged_when_the_last_is(heard):
    pending = Acknowledgements(2, heard.append)
    pending.acknowledged()
    assert heard == []
    pending.acknowledged()
    assert heard == [None]


@pytest.mark.parametrize("order", ["la", "al", "aal", "ll", "lla"])
def test_the_first_that_is_lost_is_told_and_nothing_else(heard, order):
    error = ConnectionError("gone")
    pending = Acknowledgements(3, heard.append)
    for what in order:
        pending.acknowledged() if what == "a" else pending.lost(error if error not in heard else OSError())
    assert heard == [error]


def test_what_is_lost_after_all_are_acknowledged_is_no_news(heard):
    pending = Acknowledgements(1, heard.append)
    pending.acknowledged()
    pending.lost(OSError())
    assert heard == [None]


def test_threads_that_speak_at_once_are_all_counted(heard):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        pending = Acknowledgements(8_000, heard.append)
        threads = [threading.Thread(target=lambda: [pending.acknowledged() for _ in range(1_000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert heard == [None]
