"""The record format of the `outcomes` topic: fences, resignations and groups of facts, and the rule that says which count.

A fence *holds* if its epoch exceeds that of all fences before it in the log. A fact *counts* if its (epoch, nonce) is that
of the last holding fence. Log order alone decides, so every reader (owner, ingest, waiting client) comes to the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from scylla_spark.core import quick
from scylla_spark.core.key import TaskKey
from scylla_spark.core.task import TERMINAL, Failure

VERSION: Final = 1
TOO_LATE: Final = "too_late"  # the answer to a cancel that came after the end or while an attempt runs
MAX_GROUP_BYTES: Final = 512 * 1024
_FACT_CHARS: Final = 250  # of a fact without result and failure


class Fence(NamedTuple):
    """The mark of one take of a partition: a growing number, and a random text that tells two takers apart."""

    epoch: int
    nonce: str


NO_FENCE: Final = Fence(0, "")


class Fact(NamedTuple):
    """Something that happened to a task.

    Attributes:
        attempt: number of the attempt it concerns; 0 for a cancel before any.
        outcome: an outcome, "started", or "too_late" (an answer to a cancel).
        started_us: start of the attempt, microseconds since the epoch; 0 if it never began.
        finished_us: its end; 0 for "started".
        planned_us: when the attempt was to start.
        used: attempts that count against the retry policy, this one included.
        next_us: earliest next start; None where the task ended (or for "started").
        result: JSON text.
        failure: why it failed.
        request_id: the request this answers.
    """

    key: TaskKey
    attempt: int
    outcome: str
    started_us: int = 0
    finished_us: int = 0
    planned_us: int = 0
    used: int = 0
    next_us: int | None = None
    result: str | None = None
    failure: Failure | None = None
    request_id: str | None = None

    @property
    def terminal(self) -> bool:
        """Whether this is the completion of the task."""
        return self.next_us is None and self.outcome in TERMINAL


class OutcomeRecord(NamedTuple):
    """One decoded record of the `outcomes` topic.

    Attributes:
        fence: who wrote it.
        kind: "fence", "facts" or "resign".
        facts: for "facts".
        address: for "fence": where the owner serves its state.
    """

    fence: Fence
    kind: str
    facts: tuple[Fact, ...] = ()
    address: str = ""


class Unreadable(NamedTuple):
    """Why a record of the topic says nothing."""

    reason: str
    detail: str


class FenceLog:
    """The fence rule, applied in log order to one partition.

    Args:
        fence: the last holding fence before the position from which records will be given.
    """

    __slots__ = ("fence", "resigned")

    def __init__(self, fence: Fence = NO_FENCE) -> None:
        self.fence = fence
        self.resigned = fence == NO_FENCE

    def admit(self, record: OutcomeRecord) -> bool:
        """Takes the next record; says whether it holds (a fence) or counts (facts, resignation)."""
        if record.kind == "fence":
            if record.fence.epoch <= self.fence.epoch:
                return False
            self.fence, self.resigned = record.fence, False
            return True
        counts = record.fence == self.fence
        if counts and record.kind == "resign":
            self.resigned = True
        return counts


def encode_fence(fence: Fence, address: str, at_us: int) -> bytes:
    """A fence record; `address` is where the owner serves its state over HTTP."""
    return _dump({"v": VERSION, "epoch": fence.epoch, "nonce": fence.nonce, "fence": {"address": address, "at": at_us}})


def encode_resign(fence: Fence) -> bytes:
    """Says that the owner stopped cleanly: nothing of it runs any more."""
    return _dump({"v": VERSION, "epoch": fence.epoch, "nonce": fence.nonce, "resign": True})


def encode_facts(fence: Fence, facts: Sequence[Fact]) -> list[bytes]:
    """Groups facts into records of at most about half a MiB."""
    groups: list[list[Fact]] = [[]]
    size = 0
    for fact in facts:
        length = _FACT_CHARS
        if fact.result is not None or fact.failure is not None:
            length += len(fact.result or "") + sum(map(len, fact.failure or ()))
        if groups[-1] and size + length > MAX_GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(fact)
        size += length
    head = {"v": VERSION, "epoch": fence.epoch, "nonce": fence.nonce}
    return [quick.dump(head | {"facts": [(*fact.key, *fact[1:]) for fact in group]}) for group in groups if group]


def decode(value: bytes | None) -> OutcomeRecord | Unreadable:
    """Reads a record."""
    try:
        record = json.loads(value or b"")
        if record["v"] != VERSION:
            return Unreadable("version", "")
        fence = Fence(int(record["epoch"]), str(record["nonce"]))
        if "fence" in record:
            return OutcomeRecord(fence, "fence", address=str(record["fence"]["address"]))
        if "facts" in record:
            return OutcomeRecord(fence, "facts", tuple([_fact(row) for row in record["facts"]]))
        return OutcomeRecord(fence, "resign") if record.get("resign") is True else Unreadable("kind", "")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return Unreadable("wrong", "")


def _fact(row: list[Any]) -> Fact:
    time_us, ordering_id, uniqueness_key, *rest = row
    fact = Fact(TaskKey(int(time_us), str(ordering_id), str(uniqueness_key)), *rest)
    return fact._replace(failure=Failure(*fact.failure)) if fact.failure is not None else fact


def _dump(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()
