"""Plays many seeds and says how many broke a promise: `python -m tests.simulation.run FIRST COUNT [--broken]`.

With `--broken` every rule is broken once, on purpose, and the table says how many seeds it took to see it.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from tests.simulation.world import RULES, Faults, Violation, simulate

HARSH = Faults(crash=0.05, pause=0.1, ambiguous_send=0.1, stale_scan=0.5, jump=0.5, pressed=0.3)
_BLOCK = 100


def faults_of(seed: int) -> Faults:
    """Every other hundred seeds play in a world where more goes wrong."""
    return HARSH if seed // 100 % 2 else Faults()


def violations(first: int, count: int) -> Iterator[str]:
    """Plays seeds first … first + count - 1 on all cores; what was broken, by seed."""
    blocks = [range(seed, min(seed + _BLOCK, first + count)) for seed in range(first, first + count, _BLOCK)]
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),)) as pool:
        for block, found in zip(blocks, pool.map(_play, blocks), strict=True):
            if sys.stderr.isatty():
                print(f"\r{block.stop - first} of {count}", end="", file=sys.stderr)
            yield from found


def _play(seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        try:
            simulate(seed, faults_of(seed))
        except Violation as violation:
            found.append(str(violation))
    return found


def _end_with(parent: int) -> None:
    """A worker ends with the process that started it, however that one ends."""

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


def seeds_needed(switch: str, first: int, count: int) -> tuple[int, str] | None:
    """How many seeds it takes to see that a rule is broken, and what is seen; None if none of them shows it."""
    for seed in range(first, first + count):
        try:
            simulate(seed, replace(HARSH, broken=frozenset({switch})))
        except Violation as violation:
            return seed - first + 1, str(violation)
    return None


def broken(first: int, count: int) -> int:
    """Breaks every rule; prints a Markdown table."""
    print("| broken on purpose | seeds until it is seen | what is seen |\n|---|---|---|")
    unseen = 0
    for rule, switch in RULES.items():
        found = seeds_needed(switch, first, count)
        unseen += found is None
        what = (
            found[1].partition("TaskKey")[2].partition(")")[2].split(";")[0].split(" TaskKey")[0].strip()
            if found
            else ""
        )
        print(f"| {rule} | {found[0] if found else f'none of {count}'} | {what} |", flush=True)
    return 1 if unseen else 0


if __name__ == "__main__":
    play = broken if "--broken" in sys.argv else main
    sys.exit(play(int(sys.argv[1]), int(sys.argv[2])))
