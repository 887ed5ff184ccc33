"""Dispatchers keep their promises in every kind of simulated world; a failing seed replays with `FAMILIES[family].play(seed)`."""

import pytest

from tests.simulation.families import FAMILIES
from tests.simulation.world import simulate

BROKEN = [(family, switch) for family, worlds in FAMILIES.items() for switch in sorted(worlds.shown_by)]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_seed_breaks_a_promise(family):
    worlds = FAMILIES[family]
    subjects = sum(worlds.play(seed) for seed in range(worlds.seeds))
    assert subjects >= worlds.at_least * worlds.seeds


@pytest.mark.promise
@pytest.mark.parametrize("family", ["engine", "redefined", "leases", "unique"])
def test_one_seed_of_each_kind_of_world_breaks_no_promise(family):
    worlds = FAMILIES[family]
    for seed in range(worlds.seeds, worlds.seeds + len(worlds.profiles)):
        worlds.play(seed)


def test_leases_expire_and_are_given_back():
    worlds = FAMILIES["leases"]
    judges = [simulate(seed, worlds.profile(seed)).judge.leases for seed in range(len(worlds.profiles))]
    assert sum(judge.expired for judge in judges) > 0
    assert sum(judge.given_back for judge in judges) > 0


@pytest.mark.parametrize(("family", "switch"), BROKEN)
def test_a_broken_rule_is_seen(family, switch):
    seed = FAMILIES[family].shown_by[switch]
    search = f"python -m tests.simulation.run 0 300 --worlds {family} --broken {switch}"
    assert FAMILIES[family].violation(seed, switch), (
        f"Seed {seed} does not show it any more. Find another seed: {search}"
    )
