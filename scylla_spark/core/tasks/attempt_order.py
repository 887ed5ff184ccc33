"""Which of the recorded attempts of a task is the newest: one order, for Python, Spark and polars.

By attempt; of one attempt its end comes after its start, whatever records they stand in (a start and its failure may share one);
then by place in the log.
"""

from __future__ import annotations

from typing import Final

from scylla_spark.core.tasks.task import STARTED

SETTLED_SQL: Final = f"outcome <> '{STARTED}'"
"""Whether a row says how its attempt ended, as SQL that Spark and polars read alike."""
ATTEMPT_ORDER_SQL: Final = ("attempt", SETTLED_SQL, "fact_offset")
"""What rows of `attempts` are sorted by, the newest last."""


def attempt_order(attempt: int, outcome: str, fact_offset: int) -> tuple[int, bool, int]:
    """What attempts are sorted by in Python, the newest last.

    Args:
        attempt: its number.
        outcome: what its fact says.
        fact_offset: where that stands in `outcomes`.
    """
    return attempt, outcome != STARTED, fact_offset
