"""What the engine asks its shell to do."""

from __future__ import annotations

from typing import NamedTuple

from scylla_spark.core.fact import OutcomeRecord
from scylla_spark.core.key import TaskKey
from scylla_spark.core.task import Invocation


class Send(NamedTuple):
    """Append these records to a partition of `outcomes`, in order; answer with `sent`.

    Attributes:
        content: what the only record says, so that it need not be decoded when it is read back.
    """

    partition: int
    records: list[bytes]
    content: OutcomeRecord | None = None


class SendFence(NamedTuple):
    """Append a fence; its read-back, or a failed `sent`, is the answer."""

    partition: int
    record: bytes


class Confirm(NamedTuple):
    """Confirm group membership by a round trip and note the end of `tasks`; answer with `confirmed`."""

    partition: int


class Release(NamedTuple):
    """Hand these to the executor of that name."""

    executor: str
    invocations: list[Invocation]


class Kill(NamedTuple):
    """End these invocations."""

    executor: str
    ids: list[int]


class Lookup(NamedTuple):
    """Ask the tables which of these keys have completed; answer with `looked_up`."""

    partition: int
    keys: list[TaskKey]


class Reload(NamedTuple):
    """Read the next tasks of a lane past a key, at most so many; answer with `reloaded`."""

    partition: int
    ordering_id: str
    after: TaskKey
    most: int


class Left(NamedTuple):
    """The partition is no longer held; `clean` says that nothing of it runs and everything is recorded."""

    partition: int
    clean: bool


Action = Send | SendFence | Confirm | Release | Kill | Lookup | Reload | Left
