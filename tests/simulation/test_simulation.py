"""Dispatchers keep their promises in every simulated world; a failing seed replays with `simulate(seed)`."""

import os

import pytest

from tests.simulation.broken_rules import RULES
from tests.simulation.run import seeds_needed, violations

SEEDS = int(os.environ.get("SEEDS", "2000"))
FIRST = int(os.environ.get("FIRST", "0"))
SEEN_LATE = {"chokes_while_taking", "old_answers_count"}
"""Rules of which it takes more seeds to see that they are broken than a test has time for."""


def test_no_seed_breaks_a_promise():
    assert list(violations(FIRST, SEEDS)) == []


@pytest.mark.parametrize("switch", sorted(set(RULES.values()) - SEEN_LATE))
def test_a_broken_rule_is_seen(switch):
    assert seeds_needed(switch, 0, 100) is not None
