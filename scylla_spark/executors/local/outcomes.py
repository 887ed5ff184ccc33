"""From what a child reported, or how it died, to outcomes."""

from __future__ import annotations

from collections.abc import Container
from signal import SIGXCPU
from typing import Final, NamedTuple

from scylla_spark.core.tasks.task import CHILD_DIED, FAILED, TIMED_OUT, Failure, Outcome
from scylla_spark.executors.local.child_handle import Call, ChildHandle, timeout_us
from scylla_spark.executors.local.report import Report
from scylla_spark.handlers.isolation import CPU_EXCEEDED
from scylla_spark.handlers.messages import CANCELLED
from scylla_spark.io.host.exit_text import exit_text

BROKE_PROTOCOL: Final = "broke_protocol"
KILLED: Final = "killed"
STOPPED: Final = "executor_stopped"
IDLE: Final = "idle"
ABANDONED: Final = "abandoned"
"""Of a child: it ends with its forkserver."""
ABANDONED_TEXT: Final = (
    "Its child process was ended with the process that starts children, which had ended or did not answer."
)
_PLAUSIBLE_US: Final = 10_000_000  # a record may be this old when it is read; beyond, one of the clocks was set
_SKEW_US: Final = 1_000_000


class Moment(NamedTuple):
    """One moment on both clocks."""

    wall_us: int
    boot_us: int


def reported(call: Call, report: Report, now: Moment) -> list[Outcome]:
    """The outcomes of a call from the child's report of it.

    Args:
        call: what the child was given.
        report: what it said of it.
        now: when that was read, on both clocks.
    """
    started = _started_us(report, now)
    ended, work, asked = started + report.duration_us, report.work, report.follow_ups
    if len(call) == 1:  # nearly all are like this: no time to lose
        one = report.verdicts[0]
        return [
            Outcome(
                call[0].id, one.outcome, started, ended, one.result, one.failure, one.after_ms, None, work, False, asked
            )
        ]  # fmt: skip
    return [
        Outcome(item.id, one.outcome, started, ended, one.result, one.failure, one.after_ms)
        for item, one in zip(call, report.verdicts, strict=True)
    ]


def ended(child: ChildHandle, call: Call, report: Report, now: Moment) -> list[Outcome]:
    """The outcomes of a call that ended by itself, possibly after its time was over or after it was cancelled.

    Args:
        child: that ran it.
        call: what it was given.
        report: what it said of it.
        now: when that was read, on both clocks.
    """
    timed_out = child.ending == TIMED_OUT and report.number in child.victims
    why = report.verdicts[0].failure if child.on_loop else None
    if why is not None:
        timed_out = timed_out or why.kind == TIMED_OUT
        if why.kind == CANCELLED:
            killed = Failure(KILLED, "It was cancelled while it ran.")
            return [one._replace(outcome=TIMED_OUT, failure=killed) for one in reported(call, report, now)]
    return (late if timed_out and report.duration_us >= timeout_us(call) else reported)(call, report, now)


def late(call: Call, report: Report, now: Moment) -> list[Outcome]:
    """The outcomes of a call that ended by itself, but only after it was told to because its time was over.

    Args:
        call: what the child was given.
        report: what it said of it.
        now: when that was read, on both clocks.
    """
    started = _started_us(report, now)
    failure = Failure(TIMED_OUT, f"It had not ended after {timeout_us(call) / 1e6:g} s.")
    ended = started + report.duration_us
    return [Outcome(item.id, TIMED_OUT, started, ended, failure=failure, work=report.work) for item in call]


def _started_us(report: Report, now: Moment) -> int:
    """Returns when a reported call began: what the child's wall clock said, unless ours makes that impossible."""
    latest = now.wall_us - report.duration_us
    return report.started_us if latest - _PLAUSIBLE_US < report.started_us <= latest + _SKEW_US else latest


def lost(
    child: ChildHandle, number: int, call: Call, status: int, *, killed: Container[int], began_us: int, now: Moment
) -> list[Outcome]:
    """The outcomes of a call that ran when its child died.

    Args:
        child: the child, as the pool sees it.
        number: of the call.
        call: its invocations.
        status: exit code, or a negative signal.
        killed: ids whose end was asked for.
        began_us: boot clock when the call began; 0: not known.
        now: of the pool.
    """
    finished = now.wall_us
    started = finished - (now.boot_us - began_us) if began_us else finished
    outcome, failure = _why(child, number, call, status, now.boot_us)
    work = child.heard.pop(number)
    return [
        Outcome(item.id, TIMED_OUT if item.id in killed else outcome, started, finished, failure=failure, work=work)
        for item in call
    ]


def _why(child: ChildHandle, number: int, call: Call, status: int, now: int) -> tuple[str, Failure]:
    if child.ending == BROKE_PROTOCOL:
        message = f"Its child process did what only user code in our place does ({child.fault}), and was killed."
        return FAILED, Failure(CHILD_DIED, message)
    if child.ending == ABANDONED:
        return FAILED, Failure(CHILD_DIED, ABANDONED_TEXT)
    if number in child.victims and child.ending != TIMED_OUT:
        return FAILED, Failure(child.ending, "It was killed while it ran.")
    if number in child.victims:
        how = ", did not obey its cancellation, and was killed with its child." if child.on_loop else " and was killed."
        return TIMED_OUT, Failure(TIMED_OUT, f"It had not ended after {timeout_us(call) / 1e6:g} s{how}")
    holder, since = child.holder(now) if child.on_loop else (number, 0)
    if child.on_loop and child.ending:
        held = (
            f"this one had held the event loop for {(now - since) / 1e6:.1f} s."
            if holder == number
            else "it was killed."
        )
        message = f"It shared its child process with a task that did not obey its cancellation; {held}"
        return FAILED, Failure(CHILD_DIED, message)
    whose = " while it ran this task"
    if child.on_loop:
        whose = ", while it had the event loop" if holder == number else f", which it shared with others,{whose}"
    kind = CPU_EXCEEDED if status == -SIGXCPU else CHILD_DIED
    return FAILED, Failure(kind, f"The child process {exit_text(status)}{whose}.", child.slot.fault())
