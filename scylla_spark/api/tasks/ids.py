"""The name of a task in the path of a request; see `TaskKey.parse`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

TaskId = Annotated[
    str,
    Path(
        min_length=1,
        description="The `id` of an answer (base64url of the JSON list of the key's parts), or the parts themselves, "
        "each percent-encoded and set apart by commas: 2026-01-31T09:00:00Z,cust-9,inv-17",
        examples=["2026-01-31T09:00:00Z,cust-9,inv-17"],
    ),
]
