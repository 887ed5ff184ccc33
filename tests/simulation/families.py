"""Families of simulated worlds: which seeds the tests play, and which seed shows each rule that is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.simulation import broken_rules
from tests.simulation.profiles import (
    AIMED_PROFILES,
    ASKING_PROFILES,
    EXPIRING_PROFILES,
    LEASE_PROFILES,
    LIMITED_PROFILES,
    PROFILES,
    REDEFINED,
    UNIQUE_PROFILES,
    Profile,
)
from tests.simulation.world import World, simulate, violation_of


def _ended_as(outcome: str) -> Callable[[World], int]:
    return lambda world: sum(ended == outcome for ended, _ in world.judge.ended.values())


@dataclass(frozen=True, slots=True)
class Family:
    """Worlds of several kinds that show the same promises. Seed n plays in the world of kind n modulo the number of kinds.

    Attributes:
        profiles: the kinds of worlds.
        seeds: how many seeds the tests play.
        rules: description of each rule that can be broken → the switch that breaks it.
        shown_by: switch → a seed that shows the broken rule. A rule without a seed needs a search that is too long for a test.
        words: a violation shows a broken rule if it contains one of these words. Empty: every violation does.
        subjects: counts the events in a world that this family exists for.
        at_least: mean number of these events per seed.
    """

    profiles: Sequence[Profile]
    seeds: int
    rules: dict[str, str] = field(default_factory=dict)
    shown_by: dict[str, int] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    subjects: Callable[[World], int] = lambda _world: 1
    at_least: int = 1

    def profile(self, seed: int, *broken: str) -> Profile:
        """The kind of world in which a seed plays, with some rules broken."""
        return self.profiles[seed % len(self.profiles)].breaking(*broken)

    def play(self, seed: int) -> int:
        """Plays a seed and counts its subjects.

        Raises:
            Violation: a promise was broken.
        """
        return self.subjects(simulate(seed, self.profile(seed)))

    def violation(self, seed: int, switch: str) -> str | None:
        """Plays a seed with a broken rule; returns the violation that shows the rule, or None."""
        found = violation_of(seed, self.profile(seed, *switch.split("+")))
        return found if found and (not self.words or any(word in found for word in self.words)) else None


FAMILIES = {
    "engine": Family(
        PROFILES,
        195,
        broken_rules.RULES,
        {
            "acts_on_sends": 830, "answers_one": 6, "answers_outlive_tenures": 18, "bare_positions": 0,
            "counts_waiting_as_started": 2, "drops_its_own_fence": 2, "forgets_attempts": 1_156, "forgets_back_off": 0,
            "forgets_cancelled": 34, "forgets_ended": 6, "forgets_for_good": 21, "forgets_left_lanes": 0,
            "forgets_open_hours": 66, "forgets_timers": 2, "horizon_after_progress": 111, "ignores_clock_steps": 0,
            "ignores_cuts": 0, "ignores_limits": 0, "ingest_ignores_fences": 16, "late_starts": 16,
            "never_lets_go": 9, "no_lookup": 3, "offers_of_other_partitions": 5, "orphans": 43, "reads_too_early": 12,
            "resigns_owing_caution": 13, "revokes_at_once": 5, "scan_ignores_far_records": 6,
            "starts_behind_the_tail": 23, "starts_without_membership": 3, "takes_unread": 0, "trusts_failed_sends": 4,
            "waits_for_a_record": 18,
        },
    ),
    "redefined": Family(REDEFINED, 24),
    "aimed": Family(
        AIMED_PROFILES, 60, broken_rules.AIMED_RULES, {"forgets_closed_hours": 9, "takes_what_is_ahead": 2}
    ),
    "leases": Family(
        LEASE_PROFILES,
        36,
        broken_rules.LEASE_RULES,
        {"forgets_leases": 0, "ignores_calls": 0, "tells_before_the_fact": 0},
        subjects=lambda world: world.judge.leases.begun_leases,
        at_least=17,
    ),
    "follow-ups": Family(
        ASKING_PROFILES,
        35,
        broken_rules.FOLLOW_UP_RULES,
        {"ends_before_follow_ups": 2, "forgets_the_moment": 8, "sends_before_the_moment": 0},
        ("follow-up",),
        subjects=lambda world: len(world.judge.follow_ups),
        at_least=10,
    ),
    "expiry": Family(
        EXPIRING_PROFILES,
        35,
        broken_rules.EXPIRY_RULES,
        {"expires_what_has_begun": 0, "starts_expired": 0, "starts_whenever": 7},
        ("expired",),
        subjects=_ended_as("expired"),
        at_least=5,
    ),
    "limits": Family(
        LIMITED_PROFILES, 24, broken_rules.LIMIT_RULES, {"forgets_what_is_limited": 1, "ignores_rate_limits": 1}
    ),
    "unique": Family(
        UNIQUE_PROFILES,
        36,
        broken_rules.UNIQUE_RULES,
        {
            "asks_no_tables": 0, "asks_too_early": 5, "believes_what_comes_again": 3, "forgets_duplicates": 18,
            "forgets_the_first": 3, "looks_for_no_duplicates": 0, "trusts_the_owner_before": 0,
        },
        ("its name", "completed twice", "after its completion"),
        subjects=_ended_as("duplicate"),
        at_least=10,
    ),
}  # fmt: skip
