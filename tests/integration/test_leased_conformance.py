"""Handlers find at a leased worker what they find at a dispatcher; what only dispatchers have is refused and said to be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.executor_conformance import HANDLERS, ChildConformance, Running
from tests.support.leased_executor import LeasedExecutor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running():
    executor = LeasedExecutor([HANDLERS])
    yield Running(executor, slack_s=60)
    executor.stop(drain_s=0)
    sys.modules.pop(
        Path(HANDLERS).stem, None
    )  # a worker imports its handlers; a pool of the tests behind this must not have


class TestLeasedWorkersConform(ChildConformance):
    """In a child process; batches, sandboxes and Spark are left to dispatchers, and lanes are the server's."""


def test_a_leased_handler_that_enqueues_or_emits_is_told_that_it_cannot(running):
    outcome = running.one("asks")
    assert (outcome.outcome, outcome.failure.kind) == ("failed", "ArgumentError")
    assert "leased worker cannot enqueue" in outcome.failure.message


def test_a_lease_is_kept_as_long_as_it_can_be_without_being_asked(running):
    assert running.one("extends", 0.01).result == "[false,true]"


def test_time_out_of_a_leased_handler_moves_when_it_asks_but_never_beyond_the_lease(running):
    outcome = running.one("extends_briefly")
    assert (outcome.outcome, outcome.result) == ("succeeded", "[true,true,true]")


def test_time_out_of_a_leased_handler_ends_it(running):
    outcome = running.one("hangs_briefly")
    assert (outcome.outcome, outcome.failure.kind) == ("failed", "timed_out")
    assert "after 0.7 s" in outcome.failure.message


def test_nothing_is_written_into_files_that_a_leased_handler_opens_in_place_of_our_descriptors(running, tmp_path):
    outcome = running.one("close_and_open", str(tmp_path))
    assert (outcome.outcome, outcome.failure) == ("succeeded", None)
    assert [file.name for file in tmp_path.iterdir() if file.stat().st_size] == []


def test_leased_task_whose_child_dies_of_a_signal_has_failed_and_names_it(running):
    outcome = running.one("segfault")
    assert (outcome.outcome, outcome.failure.kind) == ("failed", "child_died")
    assert "SIGSEGV" in outcome.failure.message
