"""What a handler wants sent once its attempt has succeeded: further tasks, and events for the planner."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from scylla_spark.core.tasks.key import TaskKey

TASK: Final = "task"
EVENT: Final = "event"
KINDS: Final = frozenset({TASK, EVENT})
MAX_FOLLOW_UPS: Final = 1_000
"""Most follow-ups of one attempt."""
MAX_FOLLOW_UP_CHARS: Final = 1024 * 1024
"""Most characters that the records of all follow-ups of one attempt have together."""
MAX_NAME_CHARS: Final = 200
_DIGEST_BYTES: Final = 16


class FollowUp(NamedTuple):
    """A task or an event that a handler asks for; it is sent when the attempt has succeeded, and not otherwise.

    Attributes:
        kind: "task" or "event".
        name: tells the follow-ups of one attempt apart; the last of a name counts.
        record: JSON text: of a task its record on `tasks`, but for its time; of an event an object with `name` and `fields`.
        delay_us: a task is due so long after its parent has succeeded.
        at_us: and not before this, microseconds since the epoch.
    """

    kind: str
    name: str
    record: str
    delay_us: int = 0
    at_us: int = 0


class FollowUps:
    """The follow-ups of one attempt, of each name the last; bounded, since user code asks for them."""

    __slots__ = ("_by_name", "_chars")

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], FollowUp] = {}
        self._chars = 0

    def add(self, one: FollowUp) -> bool:
        """Takes one; False: it would be too many, or too large together, and is not taken."""
        before = self._by_name.get((one.kind, one.name))
        chars = self._chars + len(one.record) - (len(before.record) if before is not None else 0)
        if chars > MAX_FOLLOW_UP_CHARS or (before is None and len(self._by_name) >= MAX_FOLLOW_UPS):
            return False
        self._by_name[one.kind, one.name], self._chars = one, chars
        return True

    def all(self) -> tuple[FollowUp, ...]:
        """In the order in which their names were said first."""
        return tuple(self._by_name.values())


def unique_key(parent: TaskKey, name: str) -> str:
    """The uniqueness key of a task that another enqueues: the same in every attempt of its parent.

    Args:
        parent: key of the task whose handler enqueues it.
        name: that the handler gives it, or a number.
    """
    text = str(parent).encode(errors="replace")
    return f"{blake2b(text, digest_size=_DIGEST_BYTES, person=b'ss follow up').hexdigest()}/{name}"
