"""Tasks that expire, in every simulated world: none begins too late, none expires too early or once it has begun."""

import os

import pytest

from tests.simulation.broken_rules import EXPIRY_RULES
from tests.simulation.judge import Violation
from tests.simulation.profiles import EXPIRING_PROFILES
from tests.simulation.world import simulate

SEEDS = int(os.environ.get("EXPIRY_SEEDS", "70"))
FIRST = int(os.environ.get("FIRST", "0"))


def play(seed, *broken):
    return simulate(seed, EXPIRING_PROFILES[seed % len(EXPIRING_PROFILES)].breaking(*broken))


def test_no_seed_breaks_a_promise_while_tasks_expire():
    expired = 0
    for seed in range(FIRST, FIRST + SEEDS):
        expired += sum(outcome == "expired" for outcome, _ in play(seed).judge.ended.values())
    assert expired > 5 * SEEDS


@pytest.mark.parametrize("switch", sorted(EXPIRY_RULES.values()))
def test_a_broken_rule_of_expiring_is_seen(switch):
    assert any(_breaks(seed, switch) for seed in range(60))


def _breaks(seed, switch):
    try:
        play(seed, switch)
    except Violation as violation:
        return "expired" in str(violation)
    return False
