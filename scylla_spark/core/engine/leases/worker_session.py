"""A lease, and one run of a worker as the engine knows it: what it holds, what it was given, which call of it waits."""

from __future__ import annotations

from typing import Final, NamedTuple

from scylla_spark.core.engine.bounds import LEASED
from scylla_spark.core.engine.lane import Entry, Lane
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.queue import Gate
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.leases.messages import Call, Want
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import Invocation, Outcome, Retry


class Lease:
    """One lease.

    Attributes:
        run: the attempt that it is.
        note: as recorded, with what its worker has told since.
        digest: of the token.
        token: None: of an earlier owner, who alone knew it, and not shown since.
        session: that keeps it alive; None: whoever shows its token.
        held: its fact counts.
        confirmed: its worker has said to have got it.
        number: grows with every lease; the more urgent ones of a call come first.
        want: that it is given for; None: of an earlier owner.
        heard_us: when its worker gave the last sign of life, microseconds since the epoch; 0: none yet, to this owner.
        deadline_us: when it ends without a sign of life, microseconds since the epoch.
    """

    __slots__ = (
        "confirmed",
        "deadline_us",
        "digest",
        "heard_us",
        "held",
        "note",
        "number",
        "run",
        "session",
        "token",
        "want",
    )

    def __init__(self, run: Run, note: WorkNote, digest: str, token: str | None, session: WorkerSession | None) -> None:
        self.run = run
        self.note = note
        self.digest = digest
        self.token = token
        self.session = session
        self.held = False
        self.confirmed = False
        self.heard_us = 0
        self.deadline_us = NEVER
        self.number = 0
        self.want: Want | None = None

    def extend(self, now: int) -> None:
        """A sign of life."""
        self.heard_us = now
        self.deadline_us = min(now + self.note.lease_ms * 1000, self.note.until_us)


class EndedLease(NamedTuple):
    """A lease that its worker had got, and that is over.

    Attributes:
        invocation: the attempt that it was.
        outcome: how it ended.
        given_here: False where an earlier owner gave it, so that when it was to start is not known.
    """

    invocation: Invocation
    outcome: Outcome
    given_here: bool


class Told(NamedTuple):
    """What the last answer told: tokens of lost leases, those of them whose tasks were cancelled, and whether an order was new."""

    lost: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    ordered: bool = False


NOTHING_TOLD: Final = Told()


class WorkerSession:
    """What is known of one run of a worker, or of one call of somebody without a session.

    Args:
        worker: its name.
        name: of the session; empty: a single call.

    Attributes:
        sequence: of the last call.
        call: that waits for its answer.
        looked: whether the queues have been looked at since the call came.
        statuses: of the call's reports and signs, so far.
        pending: reports of the call whose facts are being written.
        reserved: leases that are being written.
        bytes: of what is to be told of those, and of `fresh`.
        fresh: leases that count and have not been told.
        missed: what leases were given for that ended before their answer.
        given: those that the last answer told.
        held: digest → lease, of all that count and are its own.
        lost: tokens of leases that it does not know to be over.
        cancelled: those of them whose tasks were cancelled.
        told: what the last answer told to be over.
        order: what an operator wants it to do: DRAIN or STOP; empty: to go on. Nothing is leased to it then.
        ordered: it was not told of that yet.
        seen_us: when it called last, microseconds since the epoch.
        about: JSON object of what it says of itself.
    """

    __slots__ = (
        "about",
        "bytes",
        "call",
        "cancelled",
        "fresh",
        "given",
        "held",
        "looked",
        "lost",
        "missed",
        "name",
        "order",
        "ordered",
        "pending",
        "reserved",
        "seen_us",
        "sequence",
        "statuses",
        "told",
        "worker",
    )

    def __init__(self, worker: str, name: str) -> None:
        self.worker = worker
        self.name = name
        self.sequence = 0
        self.call: Call | None = None
        self.looked = False
        self.statuses: list[str] = []
        self.pending = 0
        self.reserved = 0
        self.bytes = 0
        self.fresh: list[Lease] = []
        self.missed: list[Want] = []
        self.given: list[Lease] = []
        self.held: dict[str, Lease] = {}
        self.lost: list[str] = []
        self.cancelled: list[str] = []
        self.told = NOTHING_TOLD
        self.order = ""
        self.ordered = False
        self.seen_us = 0
        self.about: str | None = None

    @property
    def idle(self) -> bool:
        """Returns True if it waits for nothing and holds nothing."""
        return self.call is None and not self.held and not self.reserved

    def tell(self) -> None:
        """All that is new is being told."""
        self.given, self.fresh, self.bytes = sorted(self.fresh, key=lambda lease: lease.number), [], 0
        self.told = Told(tuple(self.lost), tuple(self.cancelled), self.ordered)
        self.lost, self.cancelled, self.ordered = [], [], False

    def ask_again(self) -> None:
        """What the last answer told is new again."""
        self.fresh, self.given = self.given + self.fresh, []
        self.lost[:0], self.cancelled[:0] = self.told.lost, self.told.cancelled
        self.ordered = self.ordered or self.told.ordered
        self.told = NOTHING_TOLD

    def granted(self, lease: Lease) -> None:
        """A lease that was reserved counts."""
        self.reserved -= 1
        self.fresh.append(lease)
        if lease.token:
            self.held[lease.digest] = lease

    def let_go(self, lease: Lease) -> None:
        """A lease is no longer its own."""
        if not lease.held:
            self.reserved -= 1
        elif self.held.pop(lease.digest, None) is not None and lease in self.fresh:
            self.fresh.remove(lease)
        else:
            return
        if lease.want is not None:
            self.missed.append(lease.want)

    def knows(self, lease: Lease) -> bool:
        """Returns True if it was told of a lease, and not of its end."""
        return lease.digest in self.held and lease not in self.fresh

    def settle(self, statuses: list[str], index: int, status: str) -> None:
        """A report of a call has its answer; does nothing if the session has called again."""
        if statuses is self.statuses:
            self.pending -= 1
            statuses[index] = status


def leased_run(partition: Partition, lane: Lane, entry: Entry, attempt: int, gate: Gate, retry: Retry) -> Run:
    """An attempt that a worker has, or is about to get."""
    assert partition.mine is not None
    invocation = entry.data.invocation(
        0, attempt, partition.mine.epoch, entry.planned_us, handler="", timeout_ms=0, last_error=entry.error
    )
    return Run(partition, lane, entry, invocation, LEASED, gate, retry)
