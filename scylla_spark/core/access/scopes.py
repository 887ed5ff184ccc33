"""Scopes: what the owner of a token may do; and namespaces, beginnings of the names of queues that exist for him at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scylla_spark.errors import ArgumentError
from scylla_spark.name import is_name

READ: Final = "read"
TASKS_WRITE: Final = "tasks:write"
LEASE: Final = "lease"
SCHEDULES_WRITE: Final = "schedules:write"
QUEUES_WRITE: Final = "queues:write"
ADMIN: Final = "admin"
PLAIN: Final = (READ, TASKS_WRITE, LEASE, SCHEDULES_WRITE, QUEUES_WRITE, ADMIN)
"""Scopes for all queues."""
_OF_QUEUE: Final = ((TASKS_WRITE, f"{TASKS_WRITE}:queue="), (LEASE, f"{LEASE}:"))
_HINT: Final = f"Scopes: {', '.join(PLAIN)}; of one queue tasks:write:queue=NAME, lease:NAME."


class QueueBounds(NamedTuple):
    """Which queues a request is about: what it lists, counts or acts on has to be in one of them.

    Attributes:
        beginnings: of the names of these queues; empty: any.
        names: of these queues; None: any.
    """

    beginnings: tuple[str, ...] = ()
    names: frozenset[str] | None = None

    def has(self, queue: str | None) -> bool:
        """Returns True if a queue is one of them; None is a queue that nobody knows, and so foreign to everybody who is bounded."""
        if self == ALL_QUEUES:
            return True
        if queue is None or (self.names is not None and queue not in self.names):
            return False
        return not self.beginnings or queue.startswith(self.beginnings)

    def to_wire(self) -> dict[str, list[str]] | None:
        """The bounds as a field of a command to the planner; None for all queues."""
        if self == ALL_QUEUES:
            return None
        names = {} if self.names is None else {"names": sorted(self.names)}
        return {"beginnings": list(self.beginnings)} | names

    @classmethod
    def of_wire(cls, value: Mapping[str, Sequence[str]] | None) -> QueueBounds:
        """The bounds of such a field; without the field, all queues."""
        if value is None:
            return ALL_QUEUES
        return cls(tuple(value.get("beginnings", ())), frozenset(value["names"]) if "names" in value else None)


ALL_QUEUES: Final = QueueBounds()


@dataclass(frozen=True)
class Rights:
    """What somebody may do.

    Attributes:
        everywhere: scopes that hold for all queues that exist for him.
        of_queues: (scope, queue): those that hold for one queue.
        namespaces: beginnings of the names of the queues that exist for him; empty: all do.
    """

    everywhere: frozenset[str] = frozenset()
    of_queues: frozenset[tuple[str, str]] = frozenset()
    namespaces: tuple[str, ...] = ()

    @property
    def bounded(self) -> bool:
        """Returns True if some queues do not exist for him."""
        return bool(self.namespaces)

    def sees(self, queue: str) -> bool:
        """Returns True if a queue exists for him."""
        return not self.namespaces or queue.startswith(self.namespaces)

    def has(self, scope: str) -> bool:
        """Returns True if a scope is his for all queues that he sees."""
        return scope in self.everywhere or ADMIN in self.everywhere

    def has_some(self, scope: str) -> bool:
        """Returns True if a scope is his for one queue at least."""
        return self.has(scope) or any(one == scope for one, _ in self.of_queues)

    def has_for(self, scope: str, queue: str) -> bool:
        """Returns True if a scope is his for a queue."""
        return self.sees(queue) and (self.has(scope) or (scope, queue) in self.of_queues)

    def bounds(self, scope: str) -> QueueBounds:
        """The queues for which a scope is his: those of which `has_for` is true."""
        own = None if self.has(scope) else frozenset(queue for one, queue in self.of_queues if one == scope)
        return QueueBounds(self.namespaces, own)


EVERYTHING: Final = Rights(frozenset({ADMIN}))


def read_rights(scopes: Iterable[str], namespaces: Iterable[str]) -> Rights:
    """The rights of a token.

    Args:
        scopes: their texts.
        namespaces: beginnings of names of queues.

    Raises:
        ArgumentError: a text is no scope, or no name of a queue begins so.
    """
    everywhere, of_queues = set(), set()
    for text in scopes:
        if text in PLAIN:
            everywhere.add(text)
        else:
            of_queues.add(_of_queue(text))
    prefixes = tuple(dict.fromkeys(namespaces))
    for prefix in prefixes:
        if not is_name(prefix):
            raise ArgumentError(f"No queue has a name that begins with {prefix[:200]!r}.", hint="Such as team-a/.")
    return Rights(frozenset(everywhere), frozenset(of_queues), prefixes)


def _of_queue(text: str) -> tuple[str, str]:
    for scope, beginning in _OF_QUEUE:
        if text.startswith(beginning) and is_name(text.removeprefix(beginning)):
            return scope, text.removeprefix(beginning)
    raise ArgumentError(f"{text[:200]!r} is no scope.", hint=_HINT)
