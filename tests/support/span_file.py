"""An exporter of OpenTelemetry that appends spans to a file, and its installation as a package that offers it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

VARIABLE = "OTEL_SPAN_FILE"


class SpanFile(SpanExporter):
    """Writes each span as a line of JSON."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.writelines(json.dumps(json.loads(span.to_json())) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


def install(folder: Path) -> dict[str, str]:
    """Makes a package that offers the exporter; the environment variables that choose it."""
    package = folder / "span_file-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: span_file\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        f"[opentelemetry_traces_exporter]\nspan_file = {__name__}:{SpanFile.__name__}\n"
    )
    return {"OTEL_TRACES_EXPORTER": "span_file", VARIABLE: str(folder / "spans"), "OTEL_SERVICE_NAME": "shop"}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns what was sent so far, by name of the span and how it ended (the outcome of an attempt, or nothing)."""
    lines = (folder / "spans").read_text().splitlines() if (folder / "spans").exists() else []
    spans = [json.loads(line) for line in lines]
    return {f"{span['name']} {span['attributes'].get('scyllaspark.outcome', '')}".strip(): span for span in spans}
