"""Handlers that enqueue tasks, in every simulated world: each parent has one, and has it before it has succeeded."""

import os

import pytest

from tests.simulation.broken_rules import FOLLOW_UP_RULES
from tests.simulation.judge import Violation
from tests.simulation.profiles import ASKING_PROFILES
from tests.simulation.world import simulate

SEEDS = int(os.environ.get("FOLLOW_UP_SEEDS", "70"))
FIRST = int(os.environ.get("FIRST", "0"))


def play(seed, *broken):
    return simulate(seed, ASKING_PROFILES[seed % len(ASKING_PROFILES)].breaking(*broken))


def test_no_seed_breaks_a_promise_to_who_enqueues():
    asked = [len(play(seed).judge.follow_ups) for seed in range(FIRST, FIRST + SEEDS)]
    assert sum(asked) > 10 * SEEDS


@pytest.mark.parametrize("switch", sorted(FOLLOW_UP_RULES.values()))
def test_a_broken_rule_of_follow_ups_is_seen(switch):
    assert any(_breaks(seed, switch) for seed in range(60))


def _breaks(seed, switch):
    try:
        play(seed, switch)
    except Violation as violation:
        return "follow-up" in str(violation)
    return False
