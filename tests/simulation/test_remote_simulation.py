"""The pool of Spark workers against connections that break and stall and processes that freeze and die; seeds that show broken rules."""

from __future__ import annotations

import pytest

from scylla_spark.handlers.framing import ProtocolError
from tests.simulation.judge import Violation
from tests.simulation.remote_broken_rules import BROKEN
from tests.simulation.remote_world import Rules, play

SEEDS = 60
PER_TEST = 10
SHOWN_BY = {
    "a closed connection counts as the end of a worker": 5,
    "a silent worker gets leases": 0,
    "what was sent to a lost worker and did not report its start is free": 0,
    "each attempt that was lost before its start uses up a retry": 0,
    "no attempt that was lost before its start uses up a retry": 25,
    "reported starts do not count when a worker is lost": 0,
    "a worker runs on without a lease": 11,
    "nothing kills the handlers of a frozen worker": 11,
    "what was lost with a connection is not sent again": 6,
    "a repeated frame is taken twice": 14,
    "clocks are off by more than is known": 0,
    "a part of a lane is recalled": 55,
}


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_every_attempt_ends_once_and_no_lane_overlaps(first: int) -> None:
    assert sum(play(seed) for seed in range(first, first + PER_TEST)) > 0, "no attempt was lost with its worker"


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_seen(rule: str) -> None:
    with pytest.raises((Violation, ProtocolError)):
        play(SHOWN_BY[rule], BROKEN[rule])


def test_the_seeds_of_broken_rules_break_no_promise_by_themselves() -> None:
    for seed, faults in sorted({(SHOWN_BY[rule], BROKEN[rule].faults) for rule in BROKEN}):
        play(seed, Rules(faults=faults))
