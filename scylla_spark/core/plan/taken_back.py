"""Which ends of runs the planner has asked for itself, and which of these runs are to be launched again later."""

from __future__ import annotations

from typing import Final

from scylla_spark.core.plan.state.plan_log import END, Change
from scylla_spark.core.plan.state.schedule_entry import Entry, Run
from scylla_spark.core.plan.state.unwritten_changes import fire_of
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.task import CANCELLED

ASKS: Final = "planner"
"""Id of the requests by which the planner takes a run back: if it is too late, that is answered, and the key says of which run."""
_KILLED: Final = "killed"  # kind of the failure of an attempt that an executor has ended because it was told to


def is_our_cancel(run: Run, fact: Fact) -> bool:
    """Returns True if a run was cancelled because the planner has asked for that, and nobody else.

    A dispatcher that tells the planner that it is too late keeps the cancel in mind: an attempt that fails later is not tried again, and
    ends so without the id of a request. Who cancels a single task asks with an id of his own.

    Args:
        run: that has ended.
        fact: its end.
    """
    return run.cancelled and fact.outcome == CANCELLED and fact.request_id in (None, ASKS)


def is_run_later(entry: Entry, run: Run, fact: Fact) -> bool:
    """Returns True if a run that has ended goes back to what its backfill has left, so that it is as if it had never been launched.

    It does not matter whether an attempt was under way: what a worker had leased at a pause, or an attempt that failed after it and
    is not tried again, is run again, too. What a person has cancelled is not: whoever asks without an id, for many tasks at once, can
    end one that runs by a grace only, and a backfill never does.

    Args:
        entry: of the schedule.
        run: of it, before its end is written.
        fact: the end.
    """
    killed = fact.failure is not None and fact.failure.kind == _KILLED
    return is_our_cancel(run, fact) and not killed and is_left_over(entry, run)


def is_left_over(entry: Entry, run: Run) -> bool:
    """Returns True if a run is one of a backfill that is not over, so that it may go back to what that has left."""
    return any(run.generation in one.running and not one.is_over for one in entry.backfills.values())


def ends(name: str, run: Run, outcome: str, started_us: int, finished_us: int, *, runs_later: bool) -> Change:
    """The change by which a run ends.

    Args:
        name: of the schedule.
        run: of it.
        outcome: of its task.
        started_us: when its last attempt began, microseconds since the epoch; 0: none did.
        finished_us: when it ended, likewise.
        runs_later: it goes back to what its backfill has left.
    """
    change = (END, name, run.generation, outcome, started_us, finished_us, run.key)
    return (*change, True) if runs_later else change


def closes_launch(entry: Entry, run: Run, now: int) -> list[Change]:
    """The row of `fires` by which a run that was taken back has never begun: with its key, beside that of its launch.

    Args:
        entry: of the schedule.
        run: of it.
        now: microseconds since the epoch.

    Returns:
        Nothing, if it was not taken back, or an older planner did so, which noted no reason.
    """
    if not isinstance(run.cancelled, tuple):
        return []
    verdict, why = run.cancelled
    by_hand = {"by_hand": True} if run.by_hand else {}
    return [
        fire_of(
            entry,
            generation=run.generation,
            planned_us=run.planned_us,
            at_us=now,
            verdict=verdict,
            why=why,
            key=run.key,
            ends_job=False,
            **by_hand,
        )
    ]
