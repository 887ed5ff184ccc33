"""Leases keep their promises in every simulated world with workers; a failing seed replays with `simulate(seed, profile)`."""

import os

import pytest

from tests.simulation.broken_rules import LEASE_RULES
from tests.simulation.judge import Violation
from tests.simulation.profiles import LEASE_PROFILES
from tests.simulation.run import violations
from tests.simulation.world import simulate

SEEDS = int(os.environ.get("LEASE_SEEDS", "60"))
FIRST = int(os.environ.get("FIRST", "0"))
SEEN_LATE = {"promises_blindly", "reads_leased_in_turn", "no_stubs"}
"""Rules of which it takes hundreds of seeds to see that they are broken: more than a test has time for."""


def test_no_seed_breaks_a_promise_to_workers():
    assert list(violations(FIRST, SEEDS, LEASE_PROFILES)) == []


def test_workers_meet_all_that_may_happen_to_them():
    worlds = [simulate(seed, LEASE_PROFILES[seed % len(LEASE_PROFILES)]) for seed in range(6)]
    leases = [world.judge.leases for world in worlds]
    assert sum(each.begun_leases for each in leases) > 100
    assert all(sum(getattr(each, name) for each in leases) for name in ("expired", "given_back"))


@pytest.mark.parametrize("switch", sorted(set(LEASE_RULES.values()) - SEEN_LATE))
def test_a_broken_rule_of_leases_is_seen(switch):
    assert any(_breaks(seed, switch) for seed in range(30))


def _breaks(seed, switch):
    try:
        simulate(seed, LEASE_PROFILES[seed % len(LEASE_PROFILES)].breaking(switch))
    except Violation:
        return True
    return False
