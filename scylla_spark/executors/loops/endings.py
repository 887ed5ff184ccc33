"""The outcome of a task whose child, which it shared with others, has died."""

from __future__ import annotations

from typing import Final

from scylla_spark.core.tasks.task import CHILD_DIED, FAILED, TIMED_OUT, Failure, Invocation, Outcome
from scylla_spark.executors.local.outcomes import ABANDONED, ABANDONED_TEXT, BROKE_PROTOCOL, Moment
from scylla_spark.executors.loops.child_handle import LoopChildHandle
from scylla_spark.io.host.exit_text import exit_text

STOPPED: Final = "executor_stopped"
IDLE: Final = "idle"


def lost(
    child: LoopChildHandle,
    number: int,
    item: Invocation,
    status: int,
    *,
    step: tuple[int, int],
    began_us: int,
    killed: bool,
    now: Moment,
) -> Outcome:
    """How a call ended that ran when its child died.

    Args:
        child: the child, as the pool sees it.
        number: of the call.
        item: what it ran.
        status: exit code, or a negative signal.
        step: the call whose code had the loop, and for how long (microseconds); (0, 0): none.
        began_us: when the call began (boot clock); 0: not known.
        killed: its end was asked for.
        now: of the pool.
    """
    finished = now.wall_us
    started = finished - (now.boot_us - began_us) if began_us else finished
    outcome, failure = _why(child, number, item, status, step)
    work = child.heard.pop(number)
    return Outcome(item.id, TIMED_OUT if killed else outcome, started, finished, failure=failure, work=work)


def _why(
    child: LoopChildHandle, number: int, item: Invocation, status: int, step: tuple[int, int]
) -> tuple[str, Failure]:
    if child.ending == BROKE_PROTOCOL:
        message = f"Its child process did what only user code in our place does ({child.fault}), and was killed."
        return FAILED, Failure(CHILD_DIED, message)
    if child.ending == ABANDONED:
        return FAILED, Failure(CHILD_DIED, ABANDONED_TEXT)
    if child.ending == STOPPED:
        return FAILED, Failure(STOPPED, "It was killed while it ran.")
    if child.ending and number in child.victims:
        seconds = f"{item.timeout_ms / 1000:g} s"
        message = f"It had not ended after {seconds}, did not obey its cancellation, and was killed with its child."
        return TIMED_OUT, Failure(TIMED_OUT, message)
    if child.ending:
        message = f"It shared its child process with a task that did not obey its cancellation; {_told(number, step)}"
        return FAILED, Failure(CHILD_DIED, message)
    had = step[0]
    whose = "while it had the event loop" if had == number else "which it shared with others, while it ran this task"
    return FAILED, Failure(CHILD_DIED, f"The child process {exit_text(status)}, {whose}.", child.slot.fault())


def _told(number: int, step: tuple[int, int]) -> str:
    had, held_us = step
    if had == number:
        return f"this one had held the event loop for {held_us / 1e6:.1f} s."
    return "the child was killed."
