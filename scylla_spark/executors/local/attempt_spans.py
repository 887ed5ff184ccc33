"""Spans of attempts, for traces: what is told of an attempt, and who makes its span. Nothing here imports OpenTelemetry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Final, NamedTuple, Protocol

from scylla_spark.core.key import TaskKey
from scylla_spark.core.task import FAILED, SUCCEEDED
from scylla_spark.errors import SetupError
from scylla_spark.executors.local.messages import TaskRow, Verdict

_log = logging.getLogger(__name__)

VARIABLES: Final = "OTEL_*"
"""The environment variables that say what becomes of spans."""


class Attempt(NamedTuple):
    """What a span tells of an attempt.

    Attributes:
        handler: its name.
        key: of the task.
        queue: of the task.
        number: of the attempt, from 1.
        traceparent: trace and span in which the task was enqueued; None: in none.
        started_us: wall clock.
    """

    handler: str
    key: TaskKey
    queue: str
    number: int
    traceparent: str | None
    started_us: int


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

    def begin(self, attempt: Attempt) -> CallSpan:
        """The span of a call for one task."""

    def begin_batch(self, attempts: Sequence[Attempt]) -> CallSpan:
        """The span of a call for several tasks."""


def opened() -> Spans:
    """What makes the spans of this process and of those that it forks, for who asks for spans: only this imports OpenTelemetry.

    Raises:
        SetupError: OpenTelemetry is not installed, or an exporter that its variables name.
    """
    try:
        module = import_module("scylla_spark.executors.local.opentelemetry_spans")
    except ImportError as error:
        raise SetupError(
            f"Spans need OpenTelemetry ({error}).",
            hint="Run: pip install 'scylla-spark[otel]', or set otel.enabled = false.",
        ) from error
    spans: Spans = module.opened()
    return _UnfailingSpans(spans)


class _UnfailingSpans:
    """Spans that cost no attempt anything: whatever breaks in them is logged once, and there is no span then.

    Args:
        spans: that may break, as exporters and processors of others do.
    """

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def begin(self, attempt: Attempt) -> CallSpan:
        """See `Spans`."""
        return _UnfailingSpan(lambda: self._spans.begin(attempt))

    def begin_batch(self, attempts: Sequence[Attempt]) -> CallSpan:
        """See `Spans`."""
        return _UnfailingSpan(lambda: self._spans.begin_batch(attempts))


class _UnfailingSpan:
    """A span that may not be there.

    Args:
        begin: makes it.
    """

    def __init__(self, begin: Callable[[], CallSpan]) -> None:
        self._span: CallSpan | None = None
        with _told_once():
            self._span = begin()

    def enter(self) -> None:
        """See `CallSpan`."""
        if self._span is not None:
            with _told_once():
                self._span.enter()

    def leave(self) -> None:
        """See `CallSpan`."""
        if self._span is not None:
            with _told_once():
                self._span.leave()

    def end(self, verdict: Verdict) -> None:
        """See `CallSpan`."""
        if self._span is not None:
            with _told_once():
                self._span.end(verdict)


_told: Final[list[bool]] = []  # of this process


@contextmanager
def _told_once() -> Iterator[None]:
    try:
        yield
    except Exception:
        if not _told:
            _told.append(True)
            _log.exception("spans of attempts break; attempts go on without them")


def whole(verdicts: Sequence[Verdict]) -> Verdict:
    """What a call for several tasks comes to: it has failed if one of them has, like the first of those.

    Args:
        verdicts: of the tasks.
    """
    return next((one._replace(outcome=FAILED) for one in verdicts if one.failure is not None), Verdict(SUCCEEDED))


def attempt_of(handler: str, row: TaskRow, started_us: int) -> Attempt:
    """What a span tells of the attempt of a row.

    Args:
        handler: its name.
        row: the task.
        started_us: wall clock.
    """
    key = TaskKey(row.time_us, row.ordering_id, row.uniqueness_key)
    return Attempt(handler, key, row.queue, row.attempt, row.traceparent, started_us)
