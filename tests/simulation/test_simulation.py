"""The engine keeps its promises in every simulated world; a failing seed replays with `simulate(seed)`."""

import os

import pytest

from tests.simulation.run import seeds_needed, violations

SEEDS = int(os.environ.get("SEEDS", "2000"))
FIRST = int(os.environ.get("FIRST", "0"))


def test_no_seed_breaks_a_promise():
    assert list(violations(FIRST, SEEDS)) == []


@pytest.mark.parametrize(
    "switch",
    [
        "bare_positions",
        "ignores_clock_steps",
        "no_lookup",
        "ignores_cuts",
        "forgets_timers",
        "acts_on_sends",
        "offers_of_other_partitions",
        "answers_outlive_tenures",
        "forgets_back_off",
    ],
)
def test_a_broken_rule_is_seen(switch):
    assert seeds_needed(switch, 0, 200) is not None
