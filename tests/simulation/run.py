"""Plays many seeds and says how many broke a promise: `python -m tests.simulation.run FIRST COUNT [--broken]`.

With `--broken` every rule is broken once, on purpose, and the table says how many seeds it took to see it.
"""

import sys
from dataclasses import replace

from tests.simulation.world import RULES, Faults, Violation, simulate

HARSH = Faults(crash=0.05, pause=0.1, ambiguous_send=0.1, stale_scan=0.5, slow_ingest=0.4)


def faults_of(seed: int) -> Faults:
    """Every other hundred seeds play in a world where more goes wrong."""
    return HARSH if seed // 100 % 2 else Faults()


def main(first: int, count: int) -> int:
    """Plays seeds first … first + count - 1; prints violations as they are found, and a last line with the sums."""
    violations = 0
    for seed in range(first, first + count):
        try:
            simulate(seed, faults_of(seed))
        except Violation as violation:
            violations += 1
            print(violation, flush=True)
        if sys.stderr.isatty() and seed % 100 == 0:
            print(f"\r{seed - first + 1} of {count}", end="", file=sys.stderr)
    print(f"{count} seeds run (from {first}), {violations} violations")
    return 1 if violations else 0


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
