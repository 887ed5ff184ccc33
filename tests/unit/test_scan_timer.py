"""What calls the scan where there is no streaming query to do it."""

import threading
from datetime import timedelta

import pytest

from scylla_spark.services.dispatch.reader_scan import ScanTimer

DEADLINE_S = 30


def test_it_calls_again_and_again_until_it_is_stopped():
    enough, calls = threading.Event(), []

    def tick():
        calls.append(threading.current_thread().name)
        if len(calls) == 3:
            enough.set()

    timer = ScanTimer(timedelta(milliseconds=1))
    timer.start(tick)
    assert enough.wait(DEADLINE_S)
    assert timer.alive()
    timer.stop()
    assert not timer.alive()
    assert set(calls) == {"scan-timer"}


def test_it_tells_what_ended_it():
    timer = ScanTimer(timedelta(milliseconds=1))
    called = threading.Event()

    def tick():
        called.set()
        raise ValueError("the tables are gone")

    timer.start(tick)
    assert called.wait(DEADLINE_S)
    timer.stop()
    with pytest.raises(ValueError, match="the tables are gone"):
        timer.alive()
