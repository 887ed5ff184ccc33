"""What is left of a trigger when a work that it waits for is gone (after CDAP): a lone trigger and an AND go, an OR loses a branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def without_work(trigger: Mapping[str, Any], work: str) -> Mapping[str, Any] | None:
    """A trigger, as JSON, without what waits for a work; None: nothing of it can hold any more.

    Args:
        trigger: as `trigger_format` reads it.
        work: name of a schedule or handler that is gone.
    """
    kind = trigger.get("kind")
    if kind == "after":
        return None if trigger["work"] == work else trigger
    if kind == "absent":
        return trigger if without_work(trigger["of"], work) is not None else None
    if kind not in ("all", "any"):
        return trigger
    branches = [without_work(branch, work) for branch in trigger["of"]]
    left = [branch for branch in branches if branch is not None]
    least = len(branches) if kind == "all" else trigger.get("atLeast", 1)
    if len(left) < least:
        return None
    if len(left) == 1:
        return left[0]
    return {**trigger, "of": left}
