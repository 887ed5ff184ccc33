"""Trace context as the W3C defines it (Trace Context, version 00): by which trace a task was enqueued."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Final

from pydantic import Field

PATTERN: Final = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
_VALID: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Traceparent = Annotated[str, Field(pattern=PATTERN)]
"""The value of a field `traceparent`, as it is read."""


def is_traceparent(text: str) -> bool:
    """Returns True if a text names a trace and a span: version 00, and neither is zero."""
    return _VALID.fullmatch(text) is not None


def current_trace() -> str | None:
    """The span of OpenTelemetry in which this thread is; None: it is in none, or nobody here uses OpenTelemetry.

    Whoever has opened a span has imported the package, so that nothing is imported for this.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
