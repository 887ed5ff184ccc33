"""An engine alone keeps its promises, in whatever order answers come; a failing seed replays with `live(seed, mode)`."""

from typing import get_args

import pytest

from scylla_spark.core.engine import action
from tests.simulation.lone_run import MODES, SHOWN_BY, live, violation_of

SEEDS = 6


def test_no_seed_breaks_a_promise_and_lives_meet_all_that_may_happen():
    outcomes, asked = set(), set()
    for mode in MODES:
        for seed in range(SEEDS):
            life = live(seed, mode)
            outcomes |= {fact.outcome for record in life.tables.outcomes for fact in record.facts}
            asked |= life.asked.keys()
    ends = {"succeeded", "failed", "yielded", "timed_out", "cancelled", "expired", "duplicate"}
    assert {"started", "too_late", *ends} <= outcomes
    assert asked == set(get_args(action.Action)) - {action.SendFollowUps}


@pytest.mark.parametrize("switch", SHOWN_BY)
def test_a_broken_rule_is_seen(switch):
    mode, seed = SHOWN_BY[switch]
    search = f"python -m tests.simulation.lone_run 0 100 {mode} --broken {switch}"
    assert violation_of(seed, mode, switch), f"Seed {seed} does not show it any more. Find another seed: {search}"
