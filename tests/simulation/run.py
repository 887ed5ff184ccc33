"""Plays many seeds and prints how many broke a promise.

`python -m tests.simulation.run FIRST COUNT [--worlds FAMILY] [--broken [SWITCH …]]`. With `--broken`, each rule is broken on purpose, and
the table says how many seeds it takes to show that.
"""

import argparse
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.simulation.families import FAMILIES
from tests.simulation.world import violation_of

_BLOCK = 100
_AN_ID = re.compile(r"[^ ]+Z,[^ ,]+,[^ ]+ ?")


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),))


def violations(first: int, count: int, worlds: str) -> Iterator[str]:
    """Plays seeds first … first + count - 1 of a family on all cores; yields violations, ordered by seed."""
    blocks = [range(seed, min(seed + _BLOCK, first + count)) for seed in range(first, first + count, _BLOCK)]
    with _pool() as pool:
        for block, found in zip(blocks, pool.map(partial(play, worlds=worlds), blocks), strict=True):
            if sys.stderr.isatty():
                print(f"\r{block.stop - first} of {count}", end="", file=sys.stderr)
            yield from found


def play(seeds: range, worlds: str) -> list[str]:
    """Plays seeds of a family one after the other; returns violations."""
    found = (violation_of(seed, FAMILIES[worlds].profile(seed)) for seed in seeds)
    return [violation for violation in found if violation is not None]


def _end_with(parent: int) -> None:
    """A worker ends with the process that started it, however that one ends; what it has imported is no garbage."""
    gc.freeze()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(first: int, count: int, worlds: str) -> int:
    """Plays many seeds; prints violations as they are found, and a last line with the sums."""
    broken = 0
    for violation in violations(first, count, worlds):
        broken += 1
        print(violation, flush=True)
    print(f"{count} seeds run (from {first}), {broken} violations")
    return 1 if broken else 0


def seeds_needed(switch: str, first: int, count: int, worlds: str) -> tuple[int, str] | None:
    """Returns how many seeds it takes to show that a rule is broken, and the violation; None if none of them shows it."""
    for seed in range(first, first + count):
        found = FAMILIES[worlds].violation(seed, switch)
        if found is not None:
            return seed - first + 1, found
    return None


def broken(first: int, count: int, switches: list[str], worlds: str) -> int:
    """Breaks every rule of a family, or some; prints a Markdown table, line by line as results come."""
    print("| broken on purpose | seeds until it is seen | what is seen |\n|---|---|---|", flush=True)
    rules = FAMILIES[worlds].rules
    chosen = {rule: switch for rule, switch in rules.items() if not switches or switch in switches}
    unseen = 0
    with _pool() as pool:
        results = pool.map(partial(seeds_needed, first=first, count=count, worlds=worlds), chosen.values())
        for rule, found in zip(chosen, results, strict=True):
            unseen += found is None
            seeds, what = (str(found[0]), _told(found[1])) if found else (f"none of {count}", "")
            print(f"| {rule} | {seeds} | {what} |", flush=True)
    return 1 if unseen else 0


def _told(violation: str) -> str:
    """Returns what was seen, without the keys."""
    text = violation.partition(": ")[2].partition(": ")[2]
    return _AN_ID.sub("", text).partition(";")[0].strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--worlds", choices=FAMILIES, default="engine")
    parser.add_argument("--broken", nargs="*", metavar="SWITCH")
    asked = parser.parse_args()
    if asked.broken is None:
        sys.exit(main(asked.first, asked.count, asked.worlds))
    sys.exit(broken(asked.first, asked.count, asked.broken, asked.worlds))
