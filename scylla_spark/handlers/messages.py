"""What a pool and its children say to each other: JSON lists on the wire, these records on both sides.

A child runs user code, so the pool reads what comes from there with `report.read`, which believes nothing. What is written are lists
and not the records themselves: JSON of a named tuple takes four times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from scylla_spark.core.tasks.task import Invocation

RETURNED: Final = "returned"  # the outcome of a call that a child hands back unrun
NOTE: Final = "note"  # begins what a call says of its work while it runs: [NOTE, number, progress, checkpoint, words]
FOLLOW_UP: Final = "follow_up"  # begins what a call asks to be sent: [FOLLOW_UP, number, *FollowUp]
OUTPUT: Final = "output"  # begins what a call says of a file that it has stored: [OUTPUT, number, *OutputLink]
EXTEND: Final = "extend"  # begins what a call says that needs longer: [EXTEND, number, milliseconds from its start]
CANCELLED: Final = "cancelled_by_pool"  # the kind of the failure of a call on an event loop that the pool had cancelled
BATCH: Final = "batch"  # the outcome of a call of many tasks; its result is a list of theirs


class Order(NamedTuple):
    """One call, from the pool to a child.

    Attributes:
        number: of the call, from 1; a child gets them in order.
        handler: its name.
        start_by_us: boot clock after which it must not begin.
        follows: it may run only if the call before succeeded.
        longest_ms: from its start, if it asks for longer than its timeout.
        tasks: more than one for batch handlers only.
    """

    number: int
    handler: str
    start_by_us: int
    follows: bool
    longest_ms: int
    tasks: list[Invocation]


class Verdict(NamedTuple):
    """How one task of a call ended, from a child.

    Attributes:
        result: JSON text.
        failure: kind, message and stack.
        after_ms: wait after a yield.
    """

    outcome: str
    result: str | None = None
    failure: tuple[str, str, str] | None = None
    after_ms: int = 0


class CallRecord(NamedTuple):
    """How a call ended, from a child.

    Attributes:
        number: of the call.
        outcome: of its only task, or BATCH, or RETURNED.
        started_us: wall clock.
        duration_us: from start to end.
        result: JSON text; of BATCH: a list of verdicts.
        failure: kind, message and stack.
        after_ms: wait after a yield.
    """

    number: int
    outcome: str
    started_us: int = 0
    duration_us: int = 0
    result: Any = None
    failure: tuple[str, str, str] | None = None
    after_ms: int = 0


class ForkserverOrder(NamedTuple):
    """From the pool to the forkserver.

    Attributes:
        verb: "fork" (two to four file descriptors come along) or "kill".
        number: of the child.
        grace_ms: of a kill: from SIGTERM to SIGKILL.
        logs: whether the third descriptor is the memory for its lines.
        hands_over: whether the last one is the socket on which it hands over files.
        on_loop: whether its calls run on an event loop.
    """

    verb: str
    number: int
    grace_ms: int = 0
    logs: bool = False
    hands_over: bool = False
    on_loop: bool = False


def order_fields(
    number: int, start_by_us: int, follows: bool, call: Sequence[Invocation], longest_ms: int
) -> list[Any]:
    """The fields of an `Order`, as they are written.

    Args:
        number: of the call.
        start_by_us: boot clock after which it must not begin.
        follows: it may run only if the call before succeeded.
        call: its invocations, all of one handler.
        longest_ms: how long one may run at most if it asks for longer than its timeout.
    """
    return [number, call[0].handler, start_by_us, follows, longest_ms, [item.fields for item in call]]


def read_order(fields: list[Any]) -> Order:
    """The order that was written so."""
    fields[-1] = [Invocation.read(task) for task in fields[-1]]
    return Order(*fields)


def extended(call: list[Invocation], asked_ms: int, longest_ms: int) -> list[Invocation]:
    """A call that asks for longer, as it is from now on; one of several tasks stays as it is.

    Args:
        call: its invocations.
        asked_ms: until when it wants to run, from its start.
        longest_ms: until when it may, if its timeout is shorter.
    """
    if len(call) != 1:
        return call
    return [call[0]._replace(timeout_ms=max(call[0].timeout_ms, min(asked_ms, longest_ms)))]
