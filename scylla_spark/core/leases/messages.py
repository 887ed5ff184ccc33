"""What passes between workers and the engine: what they want, what they report, what they are given.

A *token* names a lease and proves that it was given: `PARTITION.RANDOM`, of which the logs and tables hold a digest only. The last
eight characters are hexadecimal; both sides fold those of all leases that they take for held (exclusive or of the numbers), and
compare.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey, key_view
from scylla_spark.core.tasks.task import AS_ENQUEUED, Failure, Invocation

MOST_WANTED: Final = 1_000  # leases that one call may ask for
OK: Final = "ok"
LOST: Final = "lease_lost"  # it ran out, was given up, or never was
CANCELLED: Final = "task_cancelled"
ENDED: Final = "lease_ended"  # it was reported before, with another outcome
FOREIGN: Final = "lease_of_another_worker"
OUTPUTS_FULL: Final = "outputs_full"  # with this file the attempt would leave more behind than it may
UNAVAILABLE: Final = "unavailable"  # the partition has no owner at the moment: ask again
DRAIN: Final = "drain"  # a worker leases nothing more, finishes what it holds, and ends
STOP: Final = "stop"  # a worker gives back what it holds, and ends
_TOKEN: Final = re.compile(r"(\d{1,9})\.[0-9a-f]{32}", re.ASCII)


class Want(NamedTuple):
    """What a worker would like to lease.

    Attributes:
        queue: of which queue.
        most: leases.
        handlers: only tasks of these handlers; None: whichever, and tasks without one.
        lease_ms: how long a lease lasts without a sign of life; None: as the queue says; 0: the task ends with being handed over.
        key: this task, and no other.
    """

    queue: str
    most: int = 1
    handlers: frozenset[str] | None = None
    lease_ms: int | None = None
    key: TaskKey | None = None


class Report(NamedTuple):
    """How a worker says that a lease ends.

    Attributes:
        token: of the lease.
        outcome: succeeded, failed, aborted or yielded.
        result: JSON text.
        failure: why it did not succeed.
        after_ms: wait before the next attempt; None: as the retry policy says (failed), none at all (yielded).
        checkpoint: JSON text from which the next attempt can go on.
        metrics: JSON text.
    """

    token: str
    outcome: str
    result: str | None = None
    failure: Failure | None = None
    after_ms: int | None = None
    checkpoint: str | None = None
    metrics: str | None = None


class Sign(NamedTuple):
    """A sign of life of one lease, and what its worker says of the work; see `WorkNote.heard`."""

    token: str
    note: WorkNote


class Call(NamedTuple):
    """One call of a worker. What it holds is kept alive by it.

    Attributes:
        number: of the call, for its answer.
        worker: its name.
        session: one run of it; empty: a caller without a session, who holds each lease by its token alone.
        sequence: grows by one with every call of a session; the same again gets the same answer. 0 without a session.
        until_us: how long the call may wait for leases, microseconds since the epoch.
        wants: in order of preference.
        reports: of leases that end.
        signs: of leases that go on.
        held: all leases that it takes for its own; None: it does not say.
        about: JSON object of what it says of itself.
        request: name of a call without a session: the same again gets the same answer; empty: it has none.
    """

    number: int
    worker: str
    session: str = ""
    sequence: int = 0
    until_us: int = 0
    wants: tuple[Want, ...] = ()
    reports: tuple[Report, ...] = ()
    signs: tuple[Sign, ...] = ()
    held: tuple[str, ...] | None = None
    about: str | None = None
    request: str = ""


class Granted(NamedTuple):
    """A leased task, as it is handed to its worker.

    Attributes:
        token: what proves the lease; empty: the task has ended with this.
        task: the attempt; its handler is empty where the task names none.
        lease_ms: how long the lease lasts after each sign of life.
        until_us: how long it can be kept at most.
    """

    token: str
    task: Invocation
    lease_ms: int
    until_us: int


class Scarcity(NamedTuple):
    """What a queue has for workers here.

    Attributes:
        queue: its name.
        ready: about how many lanes of it could be worked on now.
        oldest_us: the scheduled time of the most urgent of them, microseconds since the epoch; None: there is none.
        limit: why none may be handed out although there are some: paused, concurrency, rate or group; push: they are not for
            workers; tables: what is due waits for a scan of the tables; empty: nothing.
    """

    queue: str
    ready: int
    oldest_us: int | None
    limit: str


class Answer(NamedTuple):
    """What a call is answered.

    Attributes:
        number: of the call.
        statuses: of each report and sign, in order: OK, or why not.
        leases: new ones.
        lost: tokens that the session held and holds no more.
        cancelled: those of them whose tasks were cancelled.
        held: how many leases the session has here …
        digest: … and the exclusive or of the numbers at their tokens' ends.
        queues: for each wanted queue.
        refusal: why nothing was done, as a stable code; empty: it was done.
        order: what an operator wants the session to do: DRAIN or STOP; empty: to go on.
        known: the request was given something, now or before, that it keeps: it is to be given nothing more.
    """

    number: int
    statuses: tuple[str, ...] = ()
    leases: tuple[Granted, ...] = ()
    lost: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    held: int = 0
    digest: int = 0
    queues: tuple[Scarcity, ...] = ()
    refusal: str = ""
    order: str = ""
    known: bool = False


def new_token(partition: int, rng: random.Random) -> str:
    """A token that nobody can guess, as long as the source of randomness is a secure one."""
    return f"{partition}.{rng.getrandbits(128):032x}"


def partition_of_token(token: str) -> int | None:
    """The partition whose owner knows the lease; None: it is no token."""
    found = _TOKEN.fullmatch(token)
    return int(found[1]) if found is not None else None


def digest_of_token(token: str) -> str:
    """Returns what logs and tables hold of a token."""
    return hashlib.blake2b(token.encode(errors="replace"), digest_size=16).hexdigest()


def folded(tokens: Iterable[str]) -> int:
    """The exclusive or of the numbers at the ends of tokens."""
    number = 0
    for token in tokens:
        number ^= int(token[-8:], 16)
    return number


MOST_LINES: Final = 2_000  # of one request
LEVELS: Final = ("debug", "info", "warning", "error", "critical")


class LeasedLine(NamedTuple):
    """One line.

    Attributes:
        seq: its number within the attempt, from 1; what is missing in between is told by a marker.
        at_us: when it was written, microseconds since the epoch, by the clock of the worker.
        stream: stdout, stderr or logging.
        level: debug, info, warning, error or critical; None for what was printed.
        text: without the end of the line.
        fields: text of a JSON object; None: nothing.
    """

    seq: int
    at_us: int
    stream: str
    level: str | None
    text: str
    fields: str | None = None


def lease_view(granted: Granted) -> dict[str, Any]:
    """A lease, as its worker is told of it.

    Args:
        granted: what it is; its `until_us` is how long it can be kept from now on, microseconds.
    """
    item = granted.task
    task = (
        key_view(item.key)
        | {name: getattr(item, name) for name in AS_ENQUEUED}
        | {
            "handler": item.handler or None,
            "payload": json.loads(item.payload),
            "attempt": item.attempt,
            "epoch": str(item.epoch),
            "checkpoint": None if item.checkpoint is None else json.loads(item.checkpoint),
            "last_error": None if item.last_error is None else item.last_error._asdict(),
            "tags": list(item.tags),
            "missing": list(item.missing),
            "due_at": iso(item.planned_us),
        }
    )
    return {
        "lease": granted.token,
        "expires_in_ms": granted.lease_ms,
        "beat_every_ms": max(granted.lease_ms // 3, 50),
        "max_ms": granted.until_us // 1000,
        "task": task,
    }
