"""Spans of attempts, for traces: what is told of an attempt, and the interface of what makes its span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from scylla_spark.core.tasks.task import FAILED, SUCCEEDED, Invocation
from scylla_spark.handlers.messages import Verdict

VARIABLES: Final = "OTEL_*"
"""The environment variables that say what becomes of spans."""


class CallSpan(Protocol):
    """The span of one call of a handler; it has begun."""

    def enter(self) -> None:
        """Makes it the current span of this context."""

    def leave(self) -> None:
        """Undoes `enter`, in the same context."""

    def end(self, verdict: Verdict) -> None:
        """The call has ended."""


class Spans(Protocol):
    """Makes the spans of a process."""

    def begin(self, tasks: Sequence[Invocation], started_us: int) -> CallSpan:
        """The span of a call.

        Args:
            tasks: of the call; more than one for batch handlers only.
            started_us: when it begins, microseconds since the epoch.
        """


def whole(verdicts: Sequence[Verdict]) -> Verdict:
    """Returns what a call for several tasks comes to: it has failed if one of them has, like the first of those.

    Args:
        verdicts: of the tasks.
    """
    return next((one._replace(outcome=FAILED) for one in verdicts if one.failure is not None), Verdict(SUCCEEDED))
