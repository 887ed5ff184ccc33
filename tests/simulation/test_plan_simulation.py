"""Stories of the planner: none breaks a promise, and each broken rule is seen. `make simulate` plays many more."""

import pytest

from tests.simulation.plan_broken_rules import RULES
from tests.simulation.plan_run import SHOWN_BY, SHOWN_BY_WHOLE, shown_by, story
from tests.simulation.plan_world import TAGS_FROM

SHORT_STORIES = 36
WHOLE_STORIES = 12
PROMISED = range(1_000, 1_006)


@pytest.mark.parametrize("first", range(0, SHORT_STORIES, 12))
def test_no_short_story_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 12):
        story(seed, short=True)


@pytest.mark.parametrize("first", range(TAGS_FROM, TAGS_FROM + 8, 4))
def test_no_short_story_with_limits_by_tags_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + 4):
        story(seed, short=True)


@pytest.mark.parametrize("seed", range(WHOLE_STORIES))
def test_no_whole_story_breaks_a_promise(seed: int) -> None:
    story(seed)


@pytest.mark.promise
@pytest.mark.parametrize("seed", PROMISED)
def test_no_story_beyond_those_breaks_a_promise(seed: int) -> None:
    story(seed, short=True)


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_seen(rule: str) -> None:
    short = rule not in SHOWN_BY_WHOLE
    seed = SHOWN_BY.get(rule, 0) if short else SHOWN_BY_WHOLE[rule]
    search = f"python -m tests.simulation.plan_run 0 60 {'--short ' * short}--broken {rule}"
    shown = shown_by(rule, range(seed, seed + 1), short=short)
    assert shown == seed, f"Story {seed} does not show it any more. Find another one: {search}"
