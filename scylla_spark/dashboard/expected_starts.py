"""The expected start of each task of a lane, estimated from the tasks in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.dashboard.value_texts import instant_of


class Known(NamedTuple):
    """Whatever tells when the tasks of a lane will start.

    Attributes:
        head_began_us: since when the head runs, microseconds since the epoch; None: it does not, or nobody says.
        handlers: id of a task → name of its handler.
        typical_us: handler → how long it usually takes, microseconds.
    """

    head_began_us: int | None
    handlers: Mapping[str, str]
    typical_us: Mapping[str, int]


def expected_starts(tasks: list[dict[str, Any]], known: Known, now: int, head: str | None) -> list[dict[str, Any]]:
    """The tasks of a lane, each with its expected start: never before the end of the one in front of it.

    A start is only a bound ("not before") from the first task on of which nobody knows how long it will take: its handler has not run
    lately, it has run for longer than usual, it is due and waits for something that has no time, or the head is not for this reader to see.

    Args:
        tasks: in the order of the lane, as the API shows them.
        known: what tells when they will start.
        now: microseconds since the epoch.
        head: id of the head of the lane; None: it is not one of these tasks.

    Returns:
        Each task with `is_head`, `expected_at`, and `about`, which is false where that is only a bound; of a head that runs `runs_since`
        and `ends_at` (None: nobody knows).
    """
    found: list[dict[str, Any]] = []
    bound_us, free_us, about = now, now, head is not None
    for number, task in enumerate(tasks):
        typical = known.typical_us.get(known.handlers.get(task["id"], ""))
        took = 0 if task["cancelled"] else typical
        if number == 0 and known.head_began_us is not None:
            end_us = None if typical is None else known.head_began_us + typical
            about = end_us is not None and end_us >= now
            free_us = end_us if end_us is not None and about else now
            runs = {"runs_since": iso(known.head_began_us), "ends_at": iso(free_us) if about else None}
            found.append(task | runs | {"is_head": True, "expected_at": None, "about": about})
            continue
        bound_us = max(instant_of(task["next_start"] or "") or 0, bound_us)
        start_us = max(bound_us, free_us)
        if number == 0:
            about = about and start_us > now  # what is due waits for something else
        is_about = about and number > 0
        expected_at = iso(start_us if is_about else bound_us)
        found.append(
            task | {"runs_since": None, "is_head": task["id"] == head, "expected_at": expected_at, "about": is_about}
        )
        about = about and took is not None
        free_us = start_us + (took or 0)
    return found
