"""The state of a task, the order of its attempts, and the conditions that it meets before it starts.

Rules that frames follow, too, are also there as SQL text, which Spark and polars read alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from scylla_spark.core.records.fact import TOO_LATE, Fact
from scylla_spark.core.tasks.task import STARTED

SETTLED_SQL: Final = f"outcome <> '{STARTED}'"
"""Whether a row says how its attempt ended, as SQL that Spark and polars read alike."""
ATTEMPT_ORDER_SQL: Final = ("attempt", SETTLED_SQL, "fact_offset")
"""What rows of `attempts` are sorted by, the newest last."""


def attempt_order(attempt: int, outcome: str, fact_offset: int) -> tuple[int, bool, int]:
    """Returns what attempts are sorted by in Python, the newest last.

    Args:
        attempt: its number.
        outcome: what its fact says.
        fact_offset: where that stands in `outcomes`.
    """
    return attempt, outcome != STARTED, fact_offset


SCHEDULED: Final = "scheduled"
READY: Final = "ready"
RUNNING: Final = "running"
RETRY_WAIT: Final = "retry_wait"
NO_HANDLER: Final = "no_handler"
"""Why a due task waits: no dispatcher has its handler, or the executor of the handler is off."""
NO_WORKER: Final = "no_worker"
"""Why a due task waits: its handler runs on Spark workers, and there is none."""

STATE_SQL: Final = f"""
CASE WHEN ended IS NOT NULL THEN ended
     WHEN last_outcome = '{STARTED}' THEN '{RUNNING}'
     WHEN next_attempt_at > as_of AND last_outcome IS NOT NULL THEN '{RETRY_WAIT}'
     WHEN next_attempt_at > as_of THEN '{SCHEDULED}'
     ELSE '{READY}' END
"""
"""The state as SQL over the columns `ended` (outcome of the completion), `last_outcome` (of the newest attempt),
`next_attempt_at` and `as_of`."""


def state_of(ended: str | None, last_outcome: str | None, next_us: int, now: int) -> str:
    """The state of one task; the same rule as `STATE_SQL`.

    Args:
        ended: outcome of its completion, or None.
        last_outcome: outcome of its newest attempt ("started" while it runs), or None before any.
        next_us: when its next attempt may start; the scheduled time before any.
        now: microseconds since the epoch.
    """
    if ended is not None:
        return ended
    if last_outcome == STARTED:
        return RUNNING
    if next_us > now:
        return SCHEDULED if last_outcome is None else RETRY_WAIT
    return READY


def attempts_of(facts: Iterable[Fact], newest: int | None = None, before: int | None = None) -> list[Fact]:
    """One fact per attempt of a task, in order: how it ended, or that it started.

    Args:
        facts: everything known of one key, or of the attempts that are asked for, from tables and logs, in their order; repeats included.
        newest: only so many, the last ones; None: all.
        before: only those with smaller numbers.
    """
    best: dict[int, Fact] = {}
    for fact in facts:
        if fact.outcome != TOO_LATE and fact.attempt > 0 and _is_newer(fact, best.get(fact.attempt)):
            best[fact.attempt] = fact
    numbers = sorted(number for number in best if before is None or number < before)
    return [best[number] for number in (numbers if newest is None else numbers[-newest:])]


def _is_newer(fact: Fact, known: Fact | None) -> bool:
    """Returns True if a fact tells more of its attempt than one that stands before it in the log.

    A cancel that ends the task after an attempt has ended bears the number of that attempt, and says nothing of it.
    """
    if known is None:
        return True
    settled = known.outcome != STARTED
    return not (settled and fact.terminal) and attempt_order(fact.attempt, fact.outcome, 1) > attempt_order(
        known.attempt, known.outcome, 0
    )


def completion_of(facts: Iterable[Fact]) -> Fact | None:
    """The fact that ended the task, if any did; the first one counts."""
    return next((fact for fact in facts if fact.terminal), None)


class Condition(NamedTuple):
    """One condition.

    Attributes:
        name: in words, as it is met.
        met: whether it is.
        detail: what is known of it.
        why: a sentence for a task that does not meet it; empty: another condition has one.
    """

    name: str
    met: bool
    detail: str = ""
    why: str = ""

    @property
    def view(self) -> dict[str, Any]:
        """The condition as a row of a table."""
        return {"name": self.name, "met": self.met, "detail": self.detail}


def first_reason(conditions: Iterable[Condition]) -> str:
    """The sentence of the first condition that is not met; empty: all are."""
    return next((one.why for one in conditions if not one.met and one.why), "")


def could_start_us(due_us: int, enqueued_us: int) -> int:
    """Returns when an attempt could start at the earliest: when it was due, or at the enqueueing of its task if that was later.

    Args:
        due_us: scheduled time of its task, or the end of the wait after the attempt before.
        enqueued_us: newest enqueueing of its task; 0: not known.
    """
    return max(due_us, enqueued_us)


def lateness_us(at_us: int, planned_us: int) -> int:
    """Returns how late an attempt is that starts at an instant; 0 where the clocks of two machines make it early.

    Args:
        at_us: its start, or now for one that has not started.
        planned_us: when it could start at the earliest, see `could_start_us`.
    """
    return max(at_us - planned_us, 0)
