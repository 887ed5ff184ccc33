"""Stories of the planner: none breaks a promise, and each broken rule is seen in one of few. `make simulate` plays many more."""

import pytest

from tests.simulation.plan_broken_rules import RULES
from tests.simulation.plan_run import shown_by, story

SEEDS = 80
MOST_UNTIL_SEEN = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_no_seed_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            story(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_seen(rule: str) -> None:
    assert shown_by(rule, range(MOST_UNTIL_SEEN)) is not None, f"{MOST_UNTIL_SEEN} stories do not show it"
