"""Writes deploy/monitoring/grafana.json, a dashboard with a panel for every metric; `make format` runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from reference_pages import metric_families

FILE: Final = Path(__file__).resolve().parents[1] / "deploy" / "monitoring" / "grafana.json"
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_OVER: Final = "without (instance, partition, pod, job)"
_LOWEST: Final = ("disk_free_bytes", "expires_timestamp_seconds")  # the lowest value is the one that matters
_WIDTH, _HEIGHT, _PER_ROW = 8, 7, 3


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it: a row per kind of process, a panel per metric."""
    panels, top = list[dict[str, Any]](), 0
    for title, families in metric_families().items():
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        top += 1
        for place, family in enumerate(sorted(families, key=lambda one: one.name)):
            x, y = place % _PER_ROW * _WIDTH, top + place // _PER_ROW * _HEIGHT
            panels.append(_panel(family) | {"gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}})
        top += -(-len(families) // _PER_ROW) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    source = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "title": "scylla-spark", "uid": "scylla-spark", "tags": ["scylla-spark"], "schemaVersion": 39, "editable": True,
        "refresh": "30s", "time": {"from": "now-3h", "to": "now"}, "templating": {"list": [source]}, "panels": panels,
    }  # fmt: skip


def _panel(family: Any) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for number, (expression, legend) in enumerate(_expressions(family))
    ]
    return {
        "type": "timeseries",
        "title": _title(family),
        "description": family.documentation.replace("seconds since the epoch", "shown as the time that is left"),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": _unit(family)}, "overrides": []},
        "targets": targets,
    }


def _expressions(family: Any) -> Iterator[tuple[str, str]]:
    """Yields PromQL expressions and their legends; `__auto` shows the labels."""
    name = family.name
    if family.type == "counter":
        yield f"sum {_OVER} (rate({name}_total[$__rate_interval]))", "__auto"
    elif family.type == "histogram":
        by, legend = ("le, tag", " {{tag}}") if "_tagged_" in name else ("le", "")
        for share in (0.5, 0.99):
            yield (
                f"histogram_quantile({share}, sum by ({by}) (rate({name}_bucket[$__rate_interval])))",
                f"p{share * 100:g}{legend}",
            )
    elif family.type == "summary":
        seconds, count = (f"sum {_OVER} (rate({name}_{part}[$__rate_interval]))" for part in ("sum", "count"))
        yield f"{seconds} / {count}", "__auto"
    elif name.endswith(_LOWEST):
        yield f"min {_OVER} ({name}){' - time()' if 'timestamp' in name else ''}", "__auto"
    else:
        yield f"{'max' if name.endswith('_seconds') else 'sum'} {_OVER} ({name})", "__auto"


def _title(family: Any) -> str:
    """Returns the title of a panel in words, without the unit, which is on the axis."""
    name = family.name.removeprefix("scyllaspark_").replace("expires_timestamp_seconds", "expires_in")
    words = name.removesuffix("_seconds").removesuffix("_bytes").replace("_", " ").replace("api ", "API ")
    return words[0].upper() + words[1:] + (" per second" if family.type == "counter" else "")


def _unit(family: Any) -> str:
    if family.type == "counter":
        return "cps"
    return "s" if family.name.endswith("_seconds") else "bytes" if family.name.endswith("_bytes") else "short"


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
