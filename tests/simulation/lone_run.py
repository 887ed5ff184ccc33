"""Plays the lives of lone engines: `python -m tests.simulation.lone_run FIRST COUNT [MODE …] [--broken RULE …]` tells what was broken."""

from __future__ import annotations

import sys

from structlog.testing import capture_logs

from tests.simulation import broken_rules
from tests.simulation.judge import Violation
from tests.simulation.lone_callers import Mode
from tests.simulation.lone_engine import Life
from tests.simulation.world import no_look_for_cycles

MODES = {
    "usual": Mode(),
    "slow": Mode(slow=True),
    "forgetful": Mode(forgetful=True),
    "mixed": Mode(mixed=True),
    "sessions": Mode(sessions=True),
    "unique": Mode(unique=True),
    "leased": Mode(leased=True),
}
"""What lives are about, by name."""

SHOWN_BY = {
    "keeps_notes_of_loaded": ("leased", 250),
    "cuts_what_was_left": ("forgetful", 3),
    "forgets_places": ("slow", 0),
}
"""Switch of a rule that can be broken → mode and seed that show it."""


def live(seed: int, name: str, *broken: str) -> Life:
    """Plays a life; raises Violation with its seed and mode in the text.

    Args:
        seed: of it.
        name: of its mode.
        broken: rules that are broken on purpose.
    """
    mode = MODES[name]
    with (
        no_look_for_cycles(), capture_logs(),
        broken_rules.of_classes(frozenset(broken)), broken_rules.remembering(5 if mode.forgetful else 60),
    ):  # fmt: skip
        try:
            life = Life(seed, mode)
            life.play()
        except (AssertionError, KeyError, IndexError, AttributeError, TypeError) as error:
            raise Violation(f"seed {seed} ({name}): {type(error).__name__}: {error}") from error
    return life


def violation_of(seed: int, name: str, *broken: str) -> str | None:
    """Plays a life; what was broken, if anything."""
    try:
        live(seed, name, *broken)
    except Violation as violation:
        return str(violation)
    return None


def main(first: int, count: int, names: list[str], broken: list[str]) -> int:
    """Plays lives of each mode, or some; prints what was broken as it is found, and a last line with the sums."""
    found = 0
    for name in names or MODES:
        for seed in range(first, first + count):
            if (violation := violation_of(seed, name, *broken)) is not None:
                found += 1
                print(violation, flush=True)
    print(f"{count * len(names or MODES)} lives lived (seeds from {first}), {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    first, count, *rest = sys.argv[1:]
    border = rest.index("--broken") if "--broken" in rest else len(rest)
    sys.exit(main(int(first), int(count), rest[:border], rest[border + 1 :]))
