"""The conditions that a task meets before it starts; the reason why it does not run is the first one that it does not meet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Condition(NamedTuple):
    """One condition.

    Attributes:
        name: in words, as it is met.
        met: whether it is.
        detail: what is known of it.
        why: a sentence for a task that does not meet it; empty: another condition has one.
    """

    name: str
    met: bool
    detail: str = ""
    why: str = ""

    @property
    def view(self) -> dict[str, Any]:
        """The condition as a row of a table."""
        return {"name": self.name, "met": self.met, "detail": self.detail}


def first_reason(conditions: Iterable[Condition]) -> str:
    """The sentence of the first condition that is not met; empty: all are."""
    return next((one.why for one in conditions if not one.met and one.why), "")
