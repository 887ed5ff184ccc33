"""The engine keeps its promises in every simulated world; a failing seed replays with `simulate(seed)`."""

import os

import pytest

from tests.simulation.run import faults_of, seeds_needed
from tests.simulation.world import simulate

SEEDS = int(os.environ.get("SEEDS", "2000"))
FIRST = int(os.environ.get("FIRST", "0"))
BLOCK = 100


@pytest.mark.parametrize("block", range(0, SEEDS, BLOCK))
def test_no_seed_breaks_a_promise(block):
    for seed in range(FIRST + block, FIRST + min(block + BLOCK, SEEDS)):
        simulate(seed, faults_of(seed))


@pytest.mark.parametrize(
    "switch", ["bare_positions", "ignores_clock_steps", "no_lookup", "ignores_cuts", "orphans", "forgets_timers"]
)
def test_a_broken_rule_is_seen(switch):
    assert seeds_needed(switch, 0, 200) is not None
