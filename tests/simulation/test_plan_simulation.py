"""Many stories of the planner: none breaks a promise, and each broken rule is seen in one of few."""

import pytest

from tests.simulation.plan_broken_rules import RULES
from tests.simulation.plan_judge import judge, pauses
from tests.simulation.plan_world import PlanWorld

SEEDS = 500
MOST_UNTIL_SEEN = 60


def story(seed: int) -> None:
    world = PlanWorld(seed)
    world.play()
    judge(world)
    pauses(world)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_no_seed_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            story(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[rule](monkeypatch)
    for seed in range(MOST_UNTIL_SEEN):
        try:
            story(seed)
        except Exception:
            return
    pytest.fail(f"{MOST_UNTIL_SEEN} stories do not show it")
