"""From what a child reported, or how it died, to outcomes."""

from __future__ import annotations

import signal
from collections.abc import Container
from typing import Any, Final

from scylla_spark.core.task import FAILED, TIMED_OUT, Failure, Outcome
from scylla_spark.executors.child import BATCH
from scylla_spark.executors.member import Call, Member

CHILD_DIED: Final = "child_died"


def timeout_us(call: Call) -> int:
    """How long a call may run: the longest timeout of its tasks."""
    return max(item.timeout_ms for item in call) * 1000


def reported(call: Call, record: list[Any]) -> list[Outcome]:
    """The outcomes of a call from the child's record of it (see `child`)."""
    _, outcome, started, duration, result, failure, after_ms, _ = record
    ended = started + duration
    if outcome != BATCH:
        why = Failure(*failure) if failure else None
        return [Outcome(call[0].id, outcome, started, ended, result, why, after_ms)]
    return [
        Outcome(item.id, one, started, ended, value, Failure(*why) if why else None, after)
        for item, (one, value, why, after) in zip(call, result, strict=True)
    ]


def late(call: Call, record: list[Any]) -> list[Outcome]:
    """The outcomes of a call that ended by itself, but only after it was told to because its time was over."""
    started, ended = record[2], record[2] + record[3]
    failure = Failure(TIMED_OUT, f"It had not ended after {timeout_us(call) / 1e6:g} s.")
    return [Outcome(item.id, TIMED_OUT, started, ended, failure=failure) for item in call]


def lost(
    member: Member, number: int, call: Call, status: int, killed: Container[int], now: tuple[int, int]
) -> list[Outcome]:
    """The outcomes of a call that ran when its child died.

    Args:
        member: the child's member, with its shared memory.
        number: of the call.
        call: its invocations.
        status: exit code, or a negative signal.
        killed: ids whose end was asked for.
        now: wall clock and boot clock.
    """
    finished, boot = now
    started = finished - (boot - member.slot.started_us) if member.slot.started_us else finished
    if number != member.victim:
        message = f"The child process {exit_text(status)} while it ran this task."
        failure, outcome = Failure(CHILD_DIED, message, member.slot.fault()), FAILED
    elif member.ending == TIMED_OUT:
        message = f"It had not ended after {timeout_us(call) / 1e6:g} s and was killed."
        failure, outcome = Failure(TIMED_OUT, message), TIMED_OUT
    else:
        failure, outcome = Failure(member.ending, "It was killed while it ran."), FAILED
    return [
        Outcome(item.id, TIMED_OUT if item.id in killed else outcome, started, finished, failure=failure)
        for item in call
    ]


def exit_text(status: int) -> str:
    """What an exit status says: negative is a signal."""
    if status >= 0:
        return f"exited with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "signal"
    hint = " (out of memory?)" if -status == signal.SIGKILL else ""
    return f"was killed by {name} ({-status}){hint}"
