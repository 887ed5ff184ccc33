"""Spans of attempts, made with OpenTelemetry and sent to wherever its environment variables say.

A process makes its provider with its first span, so each child has one of its own, and a thread of OpenTelemetry that sends. Where the
handlers' modules have set a provider, that one is used. What has not been sent is sent when the process ends, within three seconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Token
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from scylla_spark.core.tasks.state import lateness_us
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.errors import SetupError
from scylla_spark.handlers.messages import Verdict
from scylla_spark.handlers.shared_resources import setup

_EXPORTERS: Final = "opentelemetry_traces_exporter"  # the group of entry points in which packages offer them
_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_LAST_S: Final = 3.0
_CUT_OFF: Final = "cut_off"
_open: Final[set[AttemptSpan]] = set()
_propagator: Final = TraceContextTextMapPropagator()


def opened() -> OpenTelemetrySpans:
    """Returns what makes the spans of this process and of those that it forks.

    Raises:
        SetupError: the variables name an exporter that is not installed.
    """
    if not _is_given():
        _exporters()  # imported now, once, and not in every child
    return OpenTelemetrySpans()


class OpenTelemetrySpans:
    """Makes the spans of a process."""

    def begin(self, tasks: Sequence[Invocation], started_us: int) -> AttemptSpan:
        """The span of a call; see `Spans.begin`.

        That for one task is a child of the span in which the task was enqueued. That for several tasks begins a trace of its own,
        with links to the spans in which they were enqueued.
        """
        first = tasks[0]
        told: dict[str, Any] = {"queue": first.queue}
        if len(tasks) > 1:
            parents = [trace.get_current_span(_context_of(one)).get_span_context() for one in tasks if one.traceparent]
            links = [Link(parent) for parent in parents if parent.is_valid]
            return _begun(first.handler, started_us, Context(), told | {"tasks": len(tasks)}, links)
        told |= {"key": str(first.key), "attempt": first.attempt}
        if first.attempt == 1 and first.planned_us:
            told["lateness_ms"] = lateness_us(started_us, first.planned_us) / 1000
        return _begun(first.handler, started_us, _context_of(first), told, [])


class AttemptSpan:
    """The span of one call of a handler; it has begun.

    Args:
        span: of OpenTelemetry.
        around: the context in which it has begun.
    """

    def __init__(self, span: trace.Span, around: Context) -> None:
        self._span = span
        self._around = around
        self._token: Token[Context] | None = None
        _open.add(self)

    def enter(self) -> None:
        """Makes it the current span of this context."""
        self._token = context.attach(trace.set_span_in_context(self._span, self._around))

    def leave(self) -> None:
        """Undoes `enter`, in the same context."""
        if self._token is not None:
            context.detach(self._token)

    def end(self, verdict: Verdict) -> None:
        """The call has ended."""
        self._span.set_attribute("scyllaspark.outcome", verdict.outcome)
        if verdict.failure is not None:
            self._span.set_attribute("error.type", verdict.failure[0])
            self._span.set_status(Status(StatusCode.ERROR, verdict.failure[1]))
        self._close()

    def cut_off(self) -> None:
        """The process ends while the call runs."""
        self._span.set_attribute("scyllaspark.outcome", _CUT_OFF)
        self._span.set_status(Status(StatusCode.ERROR, "Its process was ended while it ran."))
        self._close()

    def _close(self) -> None:
        _open.discard(self)
        self._span.end()


def _begun(name: str, started_us: int, around: Context, told: Mapping[str, Any], links: list[Link]) -> AttemptSpan:
    span = _tracer().start_span(
        name,
        around,
        SpanKind.CONSUMER,
        {f"scyllaspark.{name}": value for name, value in told.items()},
        links,
        start_time=started_us * 1000,
    )
    return AttemptSpan(span, around)


def _context_of(item: Invocation) -> Context:
    """The span in which the task was enqueued, or none."""
    carrier = {} if item.traceparent is None else {"traceparent": item.traceparent}
    return _propagator.extract(carrier, Context())


@setup
def _tracer() -> Iterator[trace.Tracer]:
    """The tracer of this process. When that ends, its spans are sent: also those of calls that are being cut off."""
    given = _is_given()
    if not given:
        trace.set_tracer_provider(_made())
    provider: Any = trace.get_tracer_provider()
    yield provider.get_tracer("scylla_spark")
    for span in list(_open):
        span.cut_off()
    _at_last(provider.force_flush if given else provider.shutdown)


def _at_last(send: Callable[[], object]) -> None:
    """Sends what has not been sent; it is given up if its receiver does not answer, as exporters wait for half a minute."""
    thread = threading.Thread(target=send, name="last-spans", daemon=True)
    thread.start()
    thread.join(_LAST_S)


def _is_given() -> bool:
    """Returns True if somebody has set a provider, whose spans go where that one sends them."""
    return hasattr(trace.get_tracer_provider(), "force_flush")


def _made() -> TracerProvider:
    """A provider as the variables say: its resource, its sampler, its limits and its exporters."""
    provider = TracerProvider()
    for make in _exporters():
        provider.add_span_processor(BatchSpanProcessor(make()))
    return provider


def _exporters() -> list[Callable[[], SpanExporter]]:
    """Returns what makes the exporters that OTEL_TRACES_EXPORTER names.

    Raises:
        SetupError: one is not installed.
    """
    names = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    return [_exporter(name) for name in names if name not in ("", "none")]


def _exporter(name: str) -> Callable[[], SpanExporter]:
    for known in _otlp() if name == "otlp" else [name]:
        found: list[EntryPoint] = list(entry_points(group=_EXPORTERS, name=known))
        if found:
            made: Callable[[], SpanExporter] = found[0].load()
            return made
    raise SetupError(
        f"OTEL_TRACES_EXPORTER is {name!r}, for which no package is installed.",
        hint="Such as: pip install opentelemetry-exporter-otlp-proto-http",
    )


def _otlp() -> list[str]:
    """Returns which exporters may be meant by `otlp`, the preferred first."""
    asked = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL)
    return list(_PROTOCOLS.values()) if not asked else [_PROTOCOLS.get(asked, asked)]
