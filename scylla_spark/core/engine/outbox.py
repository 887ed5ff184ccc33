"""Facts of one partition that were decided and are not read back yet: waiting to be sent, under way, or of unknown fate."""

from __future__ import annotations

from collections import deque

from scylla_spark.core.engine.memory_use import fact_bytes
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey

NEVER = 1 << 62

FactIdentity = tuple[TaskKey, int, str, str | None]


def identity_of(fact: Fact) -> FactIdentity:
    """Returns what tells the facts of a partition apart that are being written."""
    return fact.key, fact.attempt, fact.outcome, fact.request_id


class Outbox:
    """Decided facts, from the decision until they count.

    Attributes:
        waiting: to be sent, in the order of their decision.
        send_by_us: when they are to be sent at the latest; NEVER: none waits.
        sending: a group is under way.
        unrecorded: all facts that do not count yet, with the time of their decision, the oldest first.
        bytes: size of the texts of their results and failures, about.
    """

    __slots__ = ("bytes", "send_by_us", "sending", "unrecorded", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Fact] = deque()
        self.send_by_us = NEVER
        self.sending = False
        self.unrecorded: dict[FactIdentity, tuple[Fact, int]] = {}
        self.bytes = 0

    def put(self, fact: Fact, now: int, by_us: int) -> None:
        """Takes a fact that is to be sent by that time; one that is under way already is passed over."""
        identity = identity_of(fact)
        if identity in self.unrecorded:
            return
        self.waiting.append(fact)
        self.unrecorded[identity] = (fact, now)
        if fact.result is not None or fact.failure is not None:
            self.bytes += fact_bytes(fact)
        self.send_by_us = min(self.send_by_us, by_us)

    def take(self) -> tuple[Fact, ...]:
        """All that waits; it is under way from now on."""
        group = tuple(self.waiting)
        self.waiting.clear()
        self.sending, self.send_by_us = True, NEVER
        return group

    def recorded(self, fact: Fact) -> None:
        """The fact counts."""
        known = self.unrecorded.pop(identity_of(fact), None)
        if known is not None and (fact.result is not None or fact.failure is not None):
            self.bytes -= fact_bytes(known[0])

    def again(self) -> None:
        """Our fence has been read back: what does not count by now never will, and is sent anew."""
        self.sending = False
        self.waiting.clear()
        self.waiting.extend(fact for fact, _ in self.unrecorded.values())
        self.send_by_us = 0 if self.waiting else NEVER

    def oldest_us(self, now: int) -> int:
        """Age of the oldest fact that does not count yet, microseconds; 0: there is none."""
        return now - next(iter(self.unrecorded.values()))[1] if self.unrecorded else 0
