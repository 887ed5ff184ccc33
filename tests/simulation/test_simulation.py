"""The engine keeps its promises in every simulated world; a failing seed replays with `simulate(seed)`."""

import os

import pytest

from tests.simulation.world import simulate

SEEDS = int(os.environ.get("SEEDS", "100"))
FIRST = int(os.environ.get("FIRST", "0"))


@pytest.mark.parametrize("block", range(0, SEEDS, 50))
def test_no_seed_breaks_a_promise(block):
    for seed in range(FIRST + block, FIRST + min(block + 50, SEEDS)):
        simulate(seed)
