"""Unique names, in every simulated world: of the open tasks of a name only the first starts, and who is refused is refused rightly."""

import os

import pytest

from tests.simulation.broken_rules import UNIQUE_RULES
from tests.simulation.judge import Violation
from tests.simulation.profiles import UNIQUE_PROFILES
from tests.simulation.world import simulate

SEEDS = int(os.environ.get("UNIQUE_SEEDS", "72"))
FIRST = int(os.environ.get("FIRST", "0"))


def play(seed, *broken):
    return simulate(seed, UNIQUE_PROFILES[seed % len(UNIQUE_PROFILES)].breaking(*broken))


def test_no_seed_breaks_a_promise_while_many_send_the_same_names():
    refused = 0
    for seed in range(FIRST, FIRST + SEEDS):
        refused += sum(outcome == "duplicate" for outcome, _ in play(seed).judge.ended.values())
    assert refused > 10 * SEEDS


@pytest.mark.parametrize("switch", sorted(UNIQUE_RULES.values()))
def test_a_broken_rule_of_unique_names_is_seen(switch):
    seeds = (18, *range(108, 228)) if switch == "forgets_duplicates" else range(24)
    assert any(_breaks(seed, switch) for seed in seeds)


def _breaks(seed, switch):
    try:
        play(seed, switch)
    except Violation as violation:
        return any(words in str(violation) for words in ("its name", "completed twice", "after its completion"))
    return False
