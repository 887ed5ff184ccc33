"""What is promised of leases, checked as their facts land and as workers are told of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from scylla_spark.core.leases.messages import Granted, digest_of_token
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import CANCELLED, STARTED

if TYPE_CHECKING:
    from tests.simulation.workers import ModelWorker


class LeaseJudge:
    """The truth about leases: which facts stand, and what workers were told."""

    def __init__(self, violation: type[AssertionError]) -> None:
        self._violation = violation
        self._open: dict[str, tuple[TaskKey, int, str]] = {}  # lane → its lease in the log
        self._stands: dict[tuple[TaskKey, int], str] = {}  # lease in the log → digest
        self._ends: dict[tuple[TaskKey, int], list[str]] = defaultdict(list)
        self.begun_leases = 0
        self.expired = 0
        self.given_back = 0

    def is_open(self, granted: Granted) -> bool:
        """Returns True if a lease is in force, as the log says."""
        open_lease = self._open.get(granted.task.key.ordering_id)
        return open_lease is not None and open_lease[:2] == (granted.task.key, granted.task.attempt)

    def note(self, fact: Fact) -> None:
        """A fact of a lease counts, or the end of a task: of a lane one lease is open at a time."""
        key, attempt, digest = fact.key, fact.attempt, (fact.work.lease if fact.work is not None else None) or ""
        lane = key.ordering_id
        known = self._open.get(lane)
        if fact.terminal and not (known is not None and known[0] == key):
            return
        if fact.outcome == STARTED:
            if known is not None and known != (key, attempt, digest):
                raise self._violation(f"{key} attempt {attempt} is leased while {known} is")
            self._open[lane] = key, attempt, digest
            self._stands[key, attempt] = digest
            return
        cancelled = fact.outcome == CANCELLED and known is not None and known[0] == key  # also one that was not loaded
        if not cancelled and (known is None or known[:2] != (key, attempt)):
            raise self._violation(f"{fact.outcome} of {key} attempt {attempt}, which is not leased: {known}")
        del self._open[lane]
        self._ends[key, known[1] if known is not None else attempt].append(fact.outcome)
        kind = fact.failure.kind if fact.failure is not None else ""
        self.expired += kind == "lease_expired"
        self.given_back += kind == "lease_unconfirmed"

    def begun(self, worker: ModelWorker, granted: Granted) -> None:
        """A worker was told of a lease: it stands in the log."""
        digest = self._stands.get((granted.task.key, granted.task.attempt))
        if digest != digest_of_token(granted.token):
            raise self._violation(
                f"{worker.name} was told of a lease of {granted.task.key} that does not stand in the log"
            )
        self.begun_leases += 1

    def reported(self, granted: Granted, outcome: str) -> None:
        """A worker was told that its report counts: so it does."""
        ends = self._ends[granted.task.key, granted.task.attempt]
        if not ends or (ends[0] != outcome and not (outcome == "failed" and ends[0] in ("failed", "cancelled"))):
            raise self._violation(
                f"{outcome} of {granted.task.key} attempt {granted.task.attempt} was accepted, but the log says {ends}"
            )
