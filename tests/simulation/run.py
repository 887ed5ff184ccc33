"""Plays many seeds and says how many broke a promise: `python -m tests.simulation.run FIRST COUNT [--broken [SWITCH …]]`.

With `--broken` every rule is broken once, on purpose, and the table says how many seeds it took to see it.
"""

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.simulation.broken_rules import RULES
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.world import violation_of

_BLOCK = 100


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),))


def violations(first: int, count: int, profiles: Sequence[Profile] = PROFILES) -> Iterator[str]:
    """Plays seeds first … first + count - 1 on all cores; what was broken, by seed."""
    blocks = [range(seed, min(seed + _BLOCK, first + count)) for seed in range(first, first + count, _BLOCK)]
    with _pool() as pool:
        for block, found in zip(blocks, pool.map(partial(play, profiles=profiles), blocks), strict=True):
            if sys.stderr.isatty():
                print(f"\r{block.stop - first} of {count}", end="", file=sys.stderr)
            yield from found


def play(seeds: range, profiles: Sequence[Profile] = PROFILES) -> list[str]:
    """Plays seeds one after the other, in worlds of these kinds by turns; what was broken, by seed."""
    found = (violation_of(seed, profiles[seed % len(profiles)]) for seed in seeds)
    return [violation for violation in found if violation is not None]


def _end_with(parent: int) -> None:
    """A worker ends with the process that started it, however that one ends; what it has imported is no garbage."""
    gc.freeze()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(first: int, count: int) -> int:
    """Plays many seeds; prints violations as they are found, and a last line with the sums."""
    broken = 0
    for violation in violations(first, count):
        broken += 1
        print(violation, flush=True)
    print(f"{count} seeds run (from {first}), {broken} violations")
    return 1 if broken else 0


def seeds_needed(switch: str, first: int, count: int, profiles: Sequence[Profile] = PROFILES) -> tuple[int, str] | None:
    """How many seeds it takes to see that a rule is broken, and what is seen; None if none of them shows it."""
    for seed in range(first, first + count):
        found = violation_of(seed, profiles[seed % len(profiles)].breaking(*switch.split("+")))
        if found is not None:
            return seed - first + 1, found
    return None


def broken(first: int, count: int, switches: list[str]) -> int:
    """Breaks every rule, or some; prints a Markdown table, line by line as results come."""
    print("| broken on purpose | seeds until it is seen | what is seen |\n|---|---|---|", flush=True)
    chosen = {rule: switch for rule, switch in RULES.items() if not switches or switch in switches}
    unseen = 0
    with _pool() as pool:
        results = pool.map(partial(seeds_needed, first=first, count=count), chosen.values())
        for rule, found in zip(chosen, results, strict=True):
            unseen += found is None
            seeds, what = (str(found[0]), _told(found[1])) if found else (f"none of {count}", "")
            print(f"| {rule} | {seeds} | {what} |", flush=True)
    return 1 if unseen else 0


def _told(violation: str) -> str:
    """What was seen, without the keys."""
    text = violation.partition(": ")[2].partition(": ")[2]
    if text.startswith("TaskKey("):
        text = text.partition(")")[2]
    return text.partition("TaskKey")[0].partition(";")[0].strip()


if __name__ == "__main__":
    first, count, *rest = sys.argv[1:]
    if rest[:1] == ["--broken"]:
        sys.exit(broken(int(first), int(count), rest[1:]))
    sys.exit(main(int(first), int(count)))
