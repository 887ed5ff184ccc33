"""Plays many seeds and says how many broke a promise: `python -m tests.simulation.run FIRST COUNT`."""

import sys

from tests.simulation.world import Violation, simulate


def main(first: int, count: int) -> int:
    """Plays seeds first … first + count - 1; prints violations as they are found, and a last line with the sums."""
    violations = 0
    for seed in range(first, first + count):
        try:
            simulate(seed)
        except Violation as violation:
            violations += 1
            print(violation, flush=True)
        if sys.stderr.isatty() and seed % 100 == 0:
            print(f"\r{seed - first + 1} of {count}", end="", file=sys.stderr)
    print(f"{count} seeds run (from {first}), {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
