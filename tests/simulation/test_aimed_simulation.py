"""Worlds aimed at what a hundred thousand seeds of the others showed ten times; a failing seed replays with `simulate(seed, profile)`."""

import os

import pytest

from tests.simulation.broken_rules import AIMED_RULES
from tests.simulation.profiles import AIMED_PROFILES
from tests.simulation.world import violation_of

SEEDS = int(os.environ.get("AIMED_SEEDS", "120"))
FIRST = int(os.environ.get("FIRST", "0"))
SEEN_LATE = {"forgets_vacancies"}
"""A rule of which it takes more seeds to see that it is broken than a test has time for: whatever starts later makes up for it."""


def play(seed, *broken):
    return violation_of(seed, AIMED_PROFILES[seed % len(AIMED_PROFILES)].breaking(*broken))


def test_no_seed_of_an_aimed_world_breaks_a_promise():
    assert [violation for seed in range(FIRST, FIRST + SEEDS) if (violation := play(seed))] == []


@pytest.mark.parametrize("switch", sorted(set(AIMED_RULES.values()) - SEEN_LATE))
def test_a_broken_rule_is_seen_in_an_aimed_world(switch):
    assert any(play(seed, switch) for seed in range(240))
