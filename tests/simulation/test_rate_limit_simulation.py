"""Rate limits that tasks run into, in every simulated world: what shares one waits for it, and everything ends all the same."""

import os

import pytest

from tests.simulation.broken_rules import LIMIT_RULES
from tests.simulation.judge import Violation
from tests.simulation.profiles import LIMITED_PROFILES
from tests.simulation.world import simulate

SEEDS = int(os.environ.get("LIMIT_SEEDS", "40"))
FIRST = int(os.environ.get("FIRST", "0"))


def play(seed, *broken):
    return simulate(seed, LIMITED_PROFILES[seed % len(LIMITED_PROFILES)].breaking(*broken))


def test_no_seed_breaks_a_promise_while_tasks_share_rate_limits():
    for seed in range(FIRST, FIRST + SEEDS):
        play(seed)


@pytest.mark.parametrize("switch", sorted(LIMIT_RULES.values()))
def test_a_broken_rule_of_rate_limits_is_seen(switch):
    assert any(_breaks(seed, switch) for seed in range(40))


def _breaks(seed, switch):
    try:
        play(seed, switch)
    except Violation:
        return True
    return False
