"""What is asked of the planner, checked before it is sent, and what it answers, as those who ask take it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.commands.plan_command import Refused, encode_command, read_command
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError, SchedulerError, WaitTimeoutError

_ERRORS: Final[dict[str, type[SchedulerError]]] = {
    "conflict": ConflictError, "not_found": NotFoundError, "argument": ArgumentError, "rejected": ArgumentError,
    "pending": WaitTimeoutError,
}  # fmt: skip
_HINTS: Final = {"too_large": "Send it in parts."}


class Answer(NamedTuple):
    """What the planner answered.

    Attributes:
        done: what was done, by name of schedule.
        offset: of the record in the planner's log.
    """

    done: dict[str, Any]
    offset: int


def checked_command(kind: str, **fields: Any) -> bytes:
    """The record of a command that the planner can read: what it would refuse for its form is refused here, before it is acknowledged.

    Args:
        kind: what is asked, such as "put".
        **fields: as they are called on the wire; those that are None are left out.

    Raises:
        ArgumentError: it would be refused.
    """
    try:
        value = encode_command(kind, **fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"The command is not JSON ({error}).", hint="Pass text, finite numbers, lists and mappings of them."
        ) from error
    read = read_command(value)
    if isinstance(read, Refused):
        raise ArgumentError(read.detail, hint=_HINTS.get(read.reason, "Change what it says, and ask again."))
    return value


def refusal(code: str, message: str, hint: str) -> SchedulerError | None:
    """The error that an answer of the planner stands for; None: what was asked is done.

    Args:
        code: as the planner answers.
        message: what went wrong.
        hint: what to do next.
    """
    return _ERRORS[code](message, hint=hint) if code in _ERRORS else None
