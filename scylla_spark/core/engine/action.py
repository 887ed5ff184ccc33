"""What the engine asks its shell to do."""

from __future__ import annotations

from typing import NamedTuple

from scylla_spark.core.leases.messages import Answer
from scylla_spark.core.records.fact import Fence, OutcomeRecord
from scylla_spark.core.tables.progress import Tenure
from scylla_spark.core.tasks.follow_up import FollowUp
from scylla_spark.core.tasks.key import Name, TaskKey
from scylla_spark.core.tasks.task import Invocation


class Send(NamedTuple):
    """Append these records to a partition of `outcomes`, in order; answer with `sent`.

    Attributes:
        fence: under which they are written.
        content: what the only record says, so that it need not be decoded when it is read back.
    """

    tenure: Tenure
    fence: Fence
    records: list[bytes]
    content: OutcomeRecord | None = None


class SendFence(NamedTuple):
    """Append a fence; its read-back, or a failed `sent`, is the answer."""

    tenure: Tenure
    fence: Fence
    record: bytes


class Confirm(NamedTuple):
    """Confirm group membership by a round trip that begins now, and note the end of `tasks`; answer with `confirmed`."""

    tenure: Tenure
    fence: Fence


class Release(NamedTuple):
    """Hand these to the executor of that name."""

    executor: str
    invocations: list[Invocation]


class Kill(NamedTuple):
    """End these invocations.

    Attributes:
        grace_ms: how long those that run are only asked to.
    """

    executor: str
    ids: list[int]
    grace_ms: int = 0


class Lookup(NamedTuple):
    """Ask the tables which of these keys have completed; answer with `looked_up`."""

    tenure: Tenure
    keys: list[TaskKey]


class AskNames(NamedTuple):
    """Ask the tables which open tasks bear these names; answer with `named`.

    Attributes:
        names: of one partition; None: all names that an open task wants to be unique and that another open task bears, too.
        covering: the tables must hold this offset of `tasks` when they are read.
    """

    tenure: Tenure
    names: list[Name] | None
    covering: int = -1


class Reload(NamedTuple):
    """Read the next tasks of a lane past a key; answer with `reloaded`.

    Attributes:
        after: only greater keys.
        until_us: only scheduled times up to this, microseconds since the epoch.
        most: rows.
        covering: the tables must hold this offset of `tasks` when they are read.
    """

    tenure: Tenure
    ordering_id: str
    after: TaskKey
    until_us: int
    most: int
    covering: int = -1


class Left(NamedTuple):
    """The partition is no longer held; `clean` says that nothing of it runs and everything is recorded."""

    tenure: Tenure
    clean: bool


class Answered(NamedTuple):
    """Tell a worker what its call is answered."""

    answer: Answer


class Listen(NamedTuple):
    """See to it that all that workers have sent by now is taken; answer with `listened` when it was."""

    number: int


class LookAgain(NamedTuple):
    """Look at the lanes that were left to the tables: some of them may start now."""


class SendFollowUps(NamedTuple):
    """Send what an attempt that has succeeded asked for, in order; answer with `followed_up` when all is acknowledged.

    Attributes:
        number: id of the invocation.
        key: of its task.
        decided_us: when it was decided, microseconds since the epoch; times are counted from there.
    """

    number: int
    key: TaskKey
    decided_us: int
    follow_ups: tuple[FollowUp, ...]


Action = (
    Send
    | SendFence
    | Confirm
    | Release
    | Kill
    | Lookup
    | AskNames
    | Reload
    | Left
    | Answered
    | Listen
    | LookAgain
    | SendFollowUps
)
