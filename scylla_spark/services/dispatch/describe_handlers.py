"""What a dispatcher tells of the handlers that it can run: enough to list them, and to make a form for their payloads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from scylla_spark.clock import iso
from scylla_spark.handlers.description import HandlerForm, HandlerInfo
from scylla_spark.services.dispatch.executor_catalog import BUILT_IN

MOST_SCHEMAS: Final = 2 * 1024 * 1024
"""Characters of all schemas together: whoever asks reads no more than four MiB. Handlers behind that are told of without them."""


def describe_handlers(handlers: Mapping[str, HandlerInfo], since_us: int) -> dict[str, Any]:
    """All handlers that tasks may name, by name; those of the scheduler itself are left out.

    Args:
        handlers: by every name that tasks may use.
        since_us: since when this dispatcher has had them, microseconds since the epoch.
    """
    left, rows = MOST_SCHEMAS, []
    for name, info in sorted(handlers.items()):
        if info.runs_on in BUILT_IN:
            continue
        form = info.form or HandlerForm()
        left -= len(form.payload or "") + len(form.result or "")
        rows.append(_row(name, info, form if left >= 0 else form._replace(payload=None, result=None)))
    return {"since": iso(since_us), "handlers": rows}


def _row(name: str, info: HandlerInfo, form: HandlerForm) -> dict[str, Any]:
    retry = info.retry
    return {
        "name": name, "registered_as": info.name, "runs_on": info.runs_on, "max_batch": info.max_batch,
        "concurrency": info.concurrency, "rate_keys": list(info.rate_keys), "timeout_ms": info.timeout_ms,
        "isolation": info.isolation.level if info.isolation is not None else None,
        "retry": None if retry is None else {
            "max_retries": retry.max_retries, "base_ms": None if retry.base is None else retry.base_ms,
            "cap_ms": None if retry.cap is None else retry.cap_ms,
        },
        "module": form.module, "function": form.function, "about": form.about,
        "payload": json.loads(form.payload) if form.payload is not None else None,
        "result": json.loads(form.result) if form.result is not None else None,
    }  # fmt: skip
