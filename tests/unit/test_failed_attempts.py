"""Attempts that fail are lines of the dispatcher's log, a bounded number of them."""

from __future__ import annotations

import pytest
import structlog.testing

from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import ABORTED, FAILED, SUCCEEDED, TIMED_OUT, YIELDED, Failure, Invocation, Outcome
from scylla_spark.services.dispatch import failed_attempts
from scylla_spark.services.dispatch.failed_attempts import FailedAttempts
from scylla_spark.services.dispatch.metrics import DispatchMetrics
from tests.support.waiting import eventually

KEY = TaskKey(1_000_000, "a", "u")


def invocation(number: int) -> Invocation:
    return Invocation(number, KEY, number, 1, "remind", "q", "{}", 0, 0, 5000)


def outcome(kind: str, failure: Failure | None = None) -> Outcome:
    return Outcome(1, kind, 1, 2, failure=failure)


@pytest.fixture
def failed(monkeypatch):
    monkeypatch.setattr(failed_attempts, "_PAUSE_S", 0.01)
    found = FailedAttempts()
    yield found
    found.stop()


def test_an_attempt_that_fails_is_a_line_with_handler_task_attempt_and_error(failed):
    failed.report(invocation(1), outcome(FAILED, Failure("ValueError", "no address\nmore", "Traceback")))
    failed.report(invocation(2), outcome(TIMED_OUT))
    failed.report(invocation(3), outcome(ABORTED, Failure("Abort", "")))
    failed.report(invocation(4), outcome(SUCCEEDED))
    failed.report(invocation(5), outcome(YIELDED))
    with structlog.testing.capture_logs() as lines:
        failed.start()
        eventually(lambda: len(lines) == 3, 10, "three lines", lambda: lines)
    assert [(line["attempt"], line["error"]) for line in lines] == [
        (1, "ValueError: no address"),
        (2, TIMED_OUT),
        (3, "Abort"),
    ]
    assert {(line["event"], line["log_level"], line["handler"], line["task"]) for line in lines} == {
        ("attempt failed", "warning", "remind", str(KEY))
    }


def test_a_flood_of_failures_is_counted_and_never_blocks(failed):
    for number in range(1000):
        failed.report(invocation(number), outcome(FAILED))
    with structlog.testing.capture_logs() as lines:
        failed.start()
        eventually(lambda: len(lines) == 11, 10, "ten lines and a count", lambda: lines)
    assert (lines[-1]["event"], lines[-1]["attempts"]) == ("more attempts failed", 990)


def test_attempts_of_this_process_and_of_workers_are_seen():
    seen = []
    measures = DispatchMetrics(watch=lambda *one: seen.append(one))
    one, end = invocation(1), outcome(FAILED)
    run = type("Run", (), {"invocation": one, "limits": QueueLimits()})()
    measures.finished([end], {1: run})
    measures.leased([type("Ended", (), {"invocation": one, "outcome": end, "given_here": False})()])
    assert seen == [(one, end)] * 2
