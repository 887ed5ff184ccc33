"""Plays many stories of the planner: `python -m tests.simulation.plan_run FIRST COUNT [--short] [--broken [RULE …]]`.

With `--short`, stories last 100 s instead of 270 s. With `--broken`, each rule is broken on purpose, and the table says which story is the
first that shows it.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from scylla_spark.core.plan.state import schedule_entry
from tests.simulation.plan_broken_rules import RULES
from tests.simulation.plan_judge import judge, pauses
from tests.simulation.plan_world import SECOND, PlanWorld

_BLOCK = 20
_SHORT = 60 * SECOND, 40 * SECOND  # with faults, and without

SHOWN_BY = {
    "fences_are_ignored": 13, "positions_apart_from_changes": 4, "runs_go_with_their_schedules": 5, "a_pause_leaves_what_is_ahead": 5,
    "missed_times_are_dropped": 1, "a_group_never_ends_in_the_midst": 1,
    "what_is_to_be_dropped_waits": 1, "watchers_are_called_between_changes": 1,
    "what_waits_for_a_place_was_missed": 3, "there_is_always_a_place": 2, "starts_are_not_written": 1,
    "a_set_clock_goes_unnoticed": 13, "a_fence_shows_nothing_of_the_clock": 11,
    "claims_of_a_replaced_table_are_kept": 3, "trouble_is_told_with_every_look": 3,
    "a_pause_of_a_backfill_is_answered_at_once": 8, "what_a_pause_has_taken_back_is_lost": 12,
    "a_table_that_was_missing_is_not_believed": 1, "a_delete_is_answered_at_once": 5, "a_paused_backfill_goes_on": 2,
    "a_change_forgets_where_tables_stand": 2, "a_claim_is_of_one_id": 2, "versions_keep_the_id_of_before": 5,
    "runs_of_tags_are_not_counted": 5_000, "launches_under_tags_are_not_counted": 5_000,
    "what_waits_is_forgotten": 1, "a_delete_leaves_what_is_ahead": 5,
}  # fmt: skip
"""Rule → a short story that shows that it is broken, unless story 0 does."""
SHOWN_BY_WHOLE = {"a_partition_alone_takes_back_what_others_have": 33}
"""Rule that no short story shows → a whole story that shows it."""


def story(seed: int, *, short: bool = False) -> None:
    """Plays one seed.

    Raises:
        PlanViolation: a promise was broken.
    """
    world = PlanWorld(seed, *_SHORT) if short else PlanWorld(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_entry, "MOST_JOBS", world.most_jobs)
        world.play()
        judge(world)
        pauses(world)


def shown_by(rule: str, seeds: range, *, short: bool = False) -> int | None:
    """The first of some stories that shows that a rule is broken; None: none does."""
    with pytest.MonkeyPatch.context() as patch:
        RULES[rule](patch)
        return next((seed for seed in seeds if _fails(seed, short=short)), None)


def _fails(seed: int, *, short: bool) -> bool:
    try:
        story(seed, short=short)
    except Exception:
        return True
    return False


def _violations(seeds: range, *, short: bool) -> list[str]:
    found = []
    for seed in seeds:
        try:
            story(seed, short=short)
        except Exception as error:
            found.append(f"seed {seed}: {type(error).__name__}: {error}")
    return found


def main(first: int, count: int, *, short: bool) -> int:
    """Plays stories on all cores; prints violations as they are found, and a last line with the sums."""
    blocks = [range(seed, min(seed + _BLOCK, first + count)) for seed in range(first, first + count, _BLOCK)]
    broken = 0
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for found in pool.map(partial(_violations, short=short), blocks):
            broken += len(found)
            for violation in found:
                print(violation, flush=True)
    print(f"{count} stories of the planner (from {first}), {broken} violations")
    return 1 if broken else 0


def broken(first: int, count: int, rules: list[str], *, short: bool) -> int:
    """Breaks every rule, or some; prints a Markdown table."""
    chosen = [rule for rule in RULES if not rules or rule in rules]
    print("| broken on purpose | story that shows it |\n|---|---|", flush=True)
    unseen = 0
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = pool.map(partial(shown_by, seeds=range(first, first + count), short=short), chosen)
        for rule, seed in zip(chosen, found, strict=True):
            unseen += seed is None
            print(f"| {rule} | {seed if seed is not None else f'none of {count}'} |", flush=True)
    return 1 if unseen else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.plan_run")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--broken", nargs="*", metavar="RULE")
    asked = parser.parse_args()
    if asked.broken is None:
        sys.exit(main(asked.first, asked.count, short=asked.short))
    sys.exit(broken(asked.first, asked.count, asked.broken, short=asked.short))
