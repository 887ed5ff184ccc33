"""Which schedules are meant by what they have in common, and what is asked of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.core.plan.schedule_state import STATES, state_of
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.client.planner_interface import PlannerLink
    from scylla_spark.core.plan.state.plan_state import PlanState
    from scylla_spark.core.plan.state.schedule_entry import Entry

MOST_NAMES: Final = 2_000  # in one record, however long they are
KINDS: Final = {
    "time": "time",
    "event": "event:",
    "partitions": "dataset:",
    "table": "table:",
    "topic": "topic:",
    "after": "work:",
    "batch": "batch:",
    "manual": "manual",
}
"""To what a schedule listens → how its keys begin."""


class Selection(NamedTuple):
    """What must hold of a schedule, all of it; None does not restrict.

    Attributes:
        kind: to what it listens.
        state: "active", "paused" or "completed".
        tag: one of its tags.
        owner: whom to ask.
        changed_from_us: it was changed, paused or resumed last at or after this, microseconds since the epoch …
        changed_until_us: … and before this.
    """

    kind: str | None = None
    state: str | None = None
    tag: str | None = None
    owner: str | None = None
    changed_from_us: int | None = None
    changed_until_us: int | None = None

    @property
    def chooses(self) -> bool:
        """Returns True if it says more than a state, so that not all are meant by oversight."""
        return self._replace(state=None) != Selection()

    def has(self, entry: Entry) -> bool:
        """Returns True if a schedule is meant, whatever its state."""
        after, before = self.changed_from_us, self.changed_until_us
        return (
            (self.kind is None or any(key.startswith(KINDS[self.kind]) for key in entry.keys))
            and (self.tag is None or f"tag:{self.tag}" in entry.keys)
            and (self.owner is None or f"owner:{self.owner}" in entry.keys)
            and (after is None or entry.changed_us >= after)
            and (before is None or entry.changed_us < before)
        )


def chosen(plan: PlanState, wanted: Selection, now: int) -> list[Entry]:
    """Those that are meant, by name.

    Args:
        plan: all that the planner knows.
        wanted: what must hold of them.
        now: microseconds since the epoch.

    Raises:
        ArgumentError: there is no such kind or state.
    """
    for what, value, known in (("kind", wanted.kind, KINDS), ("state", wanted.state, STATES)):
        if value is not None and value not in known:
            raise ArgumentError(f"There is no {what} {value!r}.", hint=f"There are {', '.join(known)}.")
    found = (plan.entries[name] for name in sorted(plan.entries) if wanted.has(plan.entries[name]))
    return [entry for entry in found if wanted.state in (None, state_of(entry, plan.calendars, now))]


def to_steer(entries: Mapping[str, Entry], kind: str, wanted: Selection) -> list[Entry]:
    """The schedules that a pause, resume or delete of all that have something in common would change, by name.

    Args:
        entries: all that the planner knows.
        kind: "pause", "resume" or "delete".
        wanted: what they have in common.

    Raises:
        ArgumentError: nothing is said that they have in common.
    """
    if not wanted.chooses:
        raise ArgumentError("Which schedules?", hint="Pass a tag, or the time in which they were changed last.")
    unlike = {"pause": True, "resume": False}.get(kind)  # one that is completed can be paused, too
    found = (entries[name] for name in sorted(entries) if wanted.has(entries[name]))
    return [entry for entry in found if entry.paused is not unlike]


def steer(plan: PlannerLink, kind: str, names: Sequence[str], author: str, **more: Any) -> dict[str, str]:
    """Asks for a pause, resume or delete of many, in as many records as that takes; name → what became of it.

    Args:
        plan: asks the planner.
        kind: of the command.
        names: of the schedules.
        author: who wants it; "" for nobody.
        **more: fields of the command; those that are None are left out.

    Raises:
        ConflictError: there is nothing to be done to any of a record.
        NotFoundError: one of them is gone.
    """
    done: dict[str, str] = {}
    for start in range(0, len(names), MOST_NAMES):
        part = list(names[start : start + MOST_NAMES])
        done |= plan.ask(kind, names=part, author=author or None, **more).done
    return done


def is_now(begin: str) -> bool | None:
    """Whether a schedule that is resumed leaves out what has come to its tables meanwhile; None: it does not, and nothing is said.

    Args:
        begin: "pause" or "now".

    Raises:
        ArgumentError: it is neither.
    """
    if begin not in ("pause", "now"):
        raise ArgumentError(f"Nothing begins at {begin!r}.", hint='It is "pause" or "now".')
    return True if begin == "now" else None


def names_of(entries: Iterable[Entry]) -> list[str]:
    """Their names."""
    return [entry.name for entry in entries]
