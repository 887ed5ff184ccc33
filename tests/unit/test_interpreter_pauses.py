"""Pauses of the interpreter are counted, and a long one names the call that has caused it."""

import ctypes
import threading

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from scylla_spark.services.interpreter_pauses import InterpreterPauses
from tests.support.waiting import eventually

_NAME = "scyllaspark_interpreter_pause_seconds"


def keep_the_lock(milliseconds):
    """Sleeps in C without letting other threads run, as a native call does that waits for a network."""
    ctypes.PyDLL(None).usleep(milliseconds * 1000)


@pytest.mark.slow
def test_a_call_that_keeps_the_lock_is_counted_and_named_once():
    registry, ended = CollectorRegistry(), threading.Event()

    def above(seconds):
        return registry.get_sample_value(f"{_NAME}_count") - registry.get_sample_value(
            f"{_NAME}_bucket", {"le": seconds}
        )

    pauses = InterpreterPauses(registry, every_s=0.005)
    waiting = threading.Thread(target=ended.wait, name="waits-only", daemon=True)
    waiting.start()
    with capture_logs() as logged:
        pauses.start()
        eventually(lambda: registry.get_sample_value(f"{_NAME}_count") > 2, 10)
        for number in (1, 2):
            keep_the_lock(400)
            eventually(lambda number=number: above("0.25") >= number, 10, "the pause is counted")
        pauses.stop()
    ended.set()
    warnings = [one for one in logged if one["event"].startswith("no thread could run Python")]
    assert len(warnings) == 1
    assert 0.25 <= warnings[0]["seconds"] < 10
    assert any("keep_the_lock" in line for line in warnings[0]["stacks"]["MainThread"])
    assert "waits-only" not in warnings[0]["stacks"]
