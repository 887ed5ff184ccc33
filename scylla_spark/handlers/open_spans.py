"""Opens what makes the spans of a process: only this imports OpenTelemetry, and only where spans are wanted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from scylla_spark.core.tasks.task import Invocation
from scylla_spark.errors import SetupError
from scylla_spark.handlers.messages import Verdict
from scylla_spark.handlers.spans import CallSpan, Spans

_log = logging.getLogger(__name__)


def opened() -> Spans:
    """Returns what makes the spans of this process and of those that it forks, for who asks for spans: only this imports OpenTelemetry.

    Raises:
        SetupError: OpenTelemetry is not installed, or an exporter that its variables name.
    """
    try:
        module = import_module("scylla_spark.handlers.opentelemetry_spans")
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

    def begin(self, tasks: Sequence[Invocation], started_us: int) -> CallSpan:
        """See `Spans`."""
        return _UnfailingSpan(lambda: self._spans.begin(tasks, started_us))


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
