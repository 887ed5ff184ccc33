"""Plays many stories of the planner: `python -m tests.simulation.plan_run FIRST COUNT [--broken [RULE …]]`.

With `--broken` every rule is broken once, on purpose, and the table says which is the first story that shows it.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from scylla_spark.core.plan.state import schedule_entry
from tests.simulation.plan_broken_rules import RULES
from tests.simulation.plan_judge import judge, pauses
from tests.simulation.plan_world import PlanWorld

_BLOCK = 20


def story(seed: int) -> None:
    """Plays one seed.

    Raises:
        PlanViolation: a promise was broken.
    """
    world = PlanWorld(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_entry, "MOST_JOBS", world.most_jobs)
        world.play()
        judge(world)
        pauses(world)


def shown_by(rule: str, seeds: range) -> int | None:
    """The first of some stories that shows that a rule is broken; None: none does."""
    with pytest.MonkeyPatch.context() as patch:
        RULES[rule](patch)
        return next((seed for seed in seeds if _fails(seed)), None)


def _fails(seed: int) -> bool:
    try:
        story(seed)
    except Exception:
        return True
    return False


def _violations(seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        try:
            story(seed)
        except Exception as error:
            found.append(f"seed {seed}: {type(error).__name__}: {error}")
    return found


def main(first: int, count: int) -> int:
    """Plays stories on all cores; prints violations as they are found, and a last line with the sums."""
    blocks = [range(seed, min(seed + _BLOCK, first + count)) for seed in range(first, first + count, _BLOCK)]
    broken = 0
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for found in pool.map(_violations, blocks):
            broken += len(found)
            for violation in found:
                print(violation, flush=True)
    print(f"{count} stories of the planner (from {first}), {broken} violations")
    return 1 if broken else 0


def broken(first: int, count: int, rules: list[str]) -> int:
    """Breaks every rule, or some; prints a Markdown table."""
    chosen = [rule for rule in RULES if not rules or rule in rules]
    print("| broken on purpose | story that shows it |\n|---|---|", flush=True)
    unseen = 0
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for rule, seed in zip(
            chosen, pool.map(partial(shown_by, seeds=range(first, first + count)), chosen), strict=True
        ):
            unseen += seed is None
            print(f"| {rule} | {seed if seed is not None else f'none of {count}'} |", flush=True)
    return 1 if unseen else 0


if __name__ == "__main__":
    begin, number, *more = sys.argv[1:]
    if more[:1] == ["--broken"]:
        sys.exit(broken(int(begin), int(number), more[1:]))
    sys.exit(main(int(begin), int(number)))
