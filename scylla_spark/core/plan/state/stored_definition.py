"""What the planner holds of one queue or notification rule, and how a change of it stands in the planner's log.

Dispatchers follow the log, too, for changes of queues alone.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.state.plan_log import Change

QUEUE: Final = "queue"
"""Kind of the change by which the definition of a queue is put, or deleted."""
QUEUE_ENTRY: Final = "queue_entry"
"""Kind of the part of a snapshot that repeats one."""


class StoredDefinition(NamedTuple):
    """A definition that was put.

    Attributes:
        text: the definition, a JSON object that the model of its kind reads.
        revision: of all queues, or all rules, together, and it only grows: no two definitions of a kind have the same.
        author: who put it.
        changed_us: when, microseconds since the epoch.
    """

    text: str
    revision: int
    author: str
    changed_us: int


class DefinitionChange(NamedTuple):
    """A change as it was recorded.

    Attributes:
        name: of the queue, or the rule.
        revision: by this change.
        stored: what is stored now; None: nothing any more.
        author: who asked for it.
        changed_us: when it was decided.
        request: id of the request; empty: it had none.
    """

    name: str
    revision: int
    stored: StoredDefinition | None
    author: str
    changed_us: int
    request: str

    def logged(self, kind: str) -> Change:
        """The change as it stands in the log, as one of that kind."""
        fields: dict[str, Any] = {
            "text": self.stored.text if self.stored is not None else None, "revision": self.revision, "author": self.author,
            "changed_us": self.changed_us, "request": self.request,
        }  # fmt: skip
        return [kind, self.name, fields]


class StoredDefinitions(dict[str, StoredDefinition]):
    """All definitions of one kind, by name.

    Attributes:
        revision: of the newest change of any of them.
    """

    revision = 0

    def take(self, change: DefinitionChange) -> None:
        """Stores what a change says."""
        self.is_at(change.revision)
        if change.stored is not None:
            self[change.name] = change.stored
        else:
            self.pop(change.name, None)

    def is_at(self, revision: int) -> None:
        """A change of that revision was made."""
        self.revision = max(self.revision, revision)


def read_definition_change(change: Change) -> DefinitionChange:
    """A change of a definition, or the part of a snapshot that repeats one.

    Raises:
        KeyError: a field is missing: no planner wrote it. TypeError, IndexError: likewise.
    """
    name, fields = change[1], change[2]
    text, revision, author, changed_us = (fields[field] for field in ("text", "revision", "author", "changed_us"))
    if not isinstance(name, str) or not isinstance(text, str | None) or type(revision) is not int:
        raise TypeError("a change of a definition has a name, a text and a number")
    stored = StoredDefinition(text, revision, author, changed_us) if text is not None else None
    return DefinitionChange(name, revision, stored, author, changed_us, fields.get("request", ""))
