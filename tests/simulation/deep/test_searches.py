"""Searches through many seeds: none breaks a promise, and each broken rule is seen by one of the first. `make simulate` plays more."""

import pytest

from tests.simulation.families import FAMILIES
from tests.simulation.lone_run import MODES, SHOWN_BY, violation_of
from tests.simulation.plan_broken_rules import RULES
from tests.simulation.plan_run import shown_by, story
from tests.simulation.run import seeds_needed, violations

MANY_SEEDS = 700
MANY_STORIES = 80
MANY_LIVES = 24
BROKEN = [(family, switch) for family, worlds in FAMILIES.items() for switch in sorted(worlds.shown_by)]
SEEN_LATE = {"acts_on_sends": 900, "forgets_attempts": 1_200}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_seed_breaks_a_promise(family):
    assert list(violations(FAMILIES[family].seeds, MANY_SEEDS, family)) == []


@pytest.mark.parametrize(("family", "switch"), BROKEN)
def test_a_broken_rule_is_seen(family, switch):
    assert seeds_needed(switch, 0, SEEN_LATE.get(switch, 130), family)


@pytest.mark.parametrize("mode", MODES)
def test_no_life_of_a_lone_engine_breaks_a_promise(mode):
    assert [violation for seed in range(MANY_LIVES) if (violation := violation_of(seed, mode))] == []


@pytest.mark.parametrize("switch", SHOWN_BY)
def test_a_broken_rule_is_seen_by_a_lone_engine(switch):
    assert any(violation_of(seed, mode, switch) for seed in range(100) for mode in MODES)


@pytest.mark.parametrize("first", range(0, MANY_STORIES, 20))
def test_no_story_breaks_a_promise(first):
    for seed in range(first, first + 20):
        story(seed)


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_seen_by_a_story(rule):
    assert shown_by(rule, range(60)) is not None
