"""Lines that leased workers tell of their attempts, as they travel from the worker to the owner of the lease."""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_LINES: Final = 2_000  # of one request
LEVELS: Final = ("debug", "info", "warning", "error", "critical")


class LeasedLine(NamedTuple):
    """One line.

    Attributes:
        seq: its number within the attempt, from 1; what is missing in between is told by a marker.
        at_us: when it was written, microseconds since the epoch, by the clock of the worker.
        stream: stdout, stderr or logging.
        level: debug, info, warning, error or critical; None for what was printed.
        text: without the end of the line.
        fields: text of a JSON object; None: nothing.
    """

    seq: int
    at_us: int
    stream: str
    level: str | None
    text: str
    fields: str | None = None
