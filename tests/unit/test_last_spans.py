"""Spans that are sent at the end of a process: a receiver that never answers does not keep the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from scylla_spark.handlers import opentelemetry_spans


class Silent(SpanExporter):
    """Waits for a receiver."""

    def __init__(self, answers: threading.Event) -> None:
        self.begun = threading.Event()
        self._answers = answers

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Waits."""
        self.begun.set()
        self._answers.wait()
        return SpanExportResult.SUCCESS


@pytest.mark.parametrize("given", [True, False], ids=["a provider of the handlers", "our own"])
def test_last_spans_are_given_up_where_their_receiver_does_not_answer(monkeypatch, given: bool) -> None:
    answers = threading.Event()
    exporter = Silent(answers)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (opentelemetry_spans, "_is_given", lambda: given), (opentelemetry_spans, "_made", lambda: provider),
        (trace, "set_tracer_provider", lambda _: None), (trace, "get_tracer_provider", lambda: provider),
    ]  # fmt: skip
    for where, name, instead in replaced:
        monkeypatch.setattr(where, name, instead)
    monkeypatch.setattr(opentelemetry_spans, "_LAST_S", 0.1)
    making = opentelemetry_spans._tracer._make()
    next(making).start_span("attempt").end()
    ended = threading.Thread(target=lambda: next(making, None), daemon=True)
    ended.start()
    try:
        assert exporter.begun.wait(10)
        ended.join(10)
        assert not ended.is_alive(), "the process would wait for the receiver"
    finally:
        answers.set()
