"""A task in the path of a request, by its id or its name; see `TaskKey.parse` and `name_in`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

TaskId = Annotated[
    str,
    Path(
        min_length=1,
        description="The `id` of an answer (base64url of the JSON list of the key's parts), or the parts themselves, "
        "each percent-encoded and set apart by commas: 2026-01-31T09:00:00Z,cust-9,inv-17. Of a task that exists also its name, "
        "name:cust-9,inv-17, or name:inv-17 if its lane has the name of its key; 409 with `tasks` if several tasks have the name",
        examples=["2026-01-31T09:00:00Z,cust-9,inv-17"],
    ),
]
