"""A planner with its log, its clock and what it has launched, for tests of one decision at a time."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from scylla_spark.clock import to_us
from scylla_spark.core.notifications.proof import notice_key
from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.notices.notice import Channel, Channels
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.suspect_inputs import Doubts
from scylla_spark.core.records.fact import Fact, Fence, Unreadable
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.table_place import TablePlaces
from scylla_spark.topic_names import WatchableTopics

SECOND = 1_000_000
CHANNELS = Channels(
    {"ops": Channel(), "mine": Channel("my.alert", "alerts")},
    "https://tasks.example/",
    notice_key("of this deployment"),
)
START = to_us(datetime.fromisoformat("2026-03-01T00:00:00+00:00"))


class PlannerHarness:
    """Feeds a planner, writes its log as bytes, and checks after every input that the log gives the same state.

    Args:
        now: microseconds since the epoch.
        ahead_us: how long before their time tasks are launched.
        places: which tables triggers may watch.
        topics: which topics triggers may watch.
    """

    def __init__(
        self,
        now: int = START,
        ahead_us: int = 0,
        places: TablePlaces | None = None,
        channels: Channels = CHANNELS,
        topics: WatchableTopics | None = None,
    ) -> None:
        self._channels = channels
        self.now = now
        self._places, self._topics = places, topics
        self.log: list[bytes] = []
        self.sent: list[dict[str, Any]] = []
        self.cancelled: list[dict[str, Any]] = []
        self.fires: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[Any, ...]] = {}
        self.refused: list[tuple[Any, ...]] = []
        self._ahead_us = ahead_us
        self._offset = 0
        self._facts = 0
        self._epoch = 0
        self.shadow = PlanState()
        self.doubts = Doubts()
        self.restart()

    def restart(self, after_us: int = 0) -> None:
        """A new planner begins from the log, some time later."""
        self.now += after_us
        self._epoch += 1
        state = PlanState()
        for value in self.log:
            group = plan_log.decode(value)
            assert not isinstance(group, Unreadable), group
            state.fold(group)
        self.planner = Planner(
            state,
            Fence(self._epoch, "n"),
            self._ahead_us,
            self.now,
            channels=self._channels,
            doubts=self.doubts,
            places=self._places,
            topics=self._topics,
        )
        self.turn()
        self.doubts.are_paused()

    def put(self, name: str, trigger: dict[str, Any], **fields: Any) -> tuple[Any, ...]:
        """Stores a schedule; the answer."""
        return self.ask("put", schedules=[{"name": name, "handler": "work", "trigger": trigger} | fields])

    def ask(self, kind: str, **fields: Any) -> tuple[Any, ...]:
        """Sends a command; the answer, if it came at once."""
        number = f"r{self._offset}"
        self.raw(encode_command(kind, id=number, **fields))
        return self.answers.get(number, ())

    def raw(self, value: bytes) -> None:
        """Sends bytes."""
        self.planner.command(self._offset, value, self.now, self.now)
        self._offset += 1
        self.turn()

    def snapshot(self) -> list[bytes]:
        """Takes a snapshot: its records, from which alone a planner may begin."""
        begin = len(self.log)
        self.planner.snapshot(self.planner.begin_snapshot(self.now), self.now)
        self.turn()
        return self.log[begin:]

    def event(self, name: str, **fields: Any) -> None:
        """Sends an event."""
        self.ask("event", name=name, fields=fields)

    def to(self, at_us: int) -> None:
        """Lets time pass, as it does: every timer goes off in its moment."""
        while (wake := self.planner.next_wake_us) is not None and wake <= at_us:
            self.now = max(self.now, wake)
            self.planner.tick(self.now)
            self.turn()
        self.now = at_us
        self.planner.tick(self.now)
        self.turn()

    def pass_s(self, seconds: float) -> None:
        """So many seconds go by."""
        self.to(self.now + round(seconds * SECOND))

    def end(self, which: int = -1, outcome: str = "succeeded", result: str | None = None) -> None:
        """A run that was launched ends."""
        self.end_key(key_of(self.sent[which]), outcome, result)

    def end_key(self, key: TaskKey, outcome: str = "succeeded", result: str | None = None) -> None:
        """A run ends."""
        fact = Fact(key, 1, outcome, max(key.time_us, 0), self.now, key.time_us, 1, result=result)
        self._facts += 1
        self.planner.outcomes(0, self._facts, [fact], (self._facts + 1, 1, "d"), self.now)
        self.turn()

    def unrun(self, which: int = -1) -> None:
        """A run that the planner takes back ends before it has begun."""
        self.ends(Fact(key_of(self.sent[which]), 0, "cancelled", finished_us=self.now))

    def ends(self, *facts: Fact) -> None:
        """Tasks of anybody end, in one record."""
        self._facts += 1
        self.planner.outcomes(0, self._facts, facts, (self._facts + 1, 1, "d"), self.now)
        self.turn()

    def notices(self) -> list[dict[str, Any]]:
        """Messages that were sent, in order."""
        return [one["taskData"] for one in self.sent if one["orderingId"].startswith("notify/")]

    def launched(self) -> list[str]:
        """Planned times of what was launched, as their keys say."""
        return [one["uniquenessKey"] for one in self.sent]

    def verdicts(self, name: str | None = None) -> list[str]:
        """Returns what was decided, in order."""
        return [one["verdict"] for one in self.fires if name is None or one["name"] == name]

    def turn(self) -> None:
        """Writes what was decided, and looks at it."""
        for group in self.planner.take(self.now):
            value = plan_log.encode(group)
            assert len(value) <= plan_log.MAX_GROUP_BYTES
            self.log.append(value)
            read = plan_log.decode(value)
            assert not isinstance(read, Unreadable), read
            self.shadow.fold(read)
            for change in read.changes:
                self.look(change)
            self.planner.sent(group.number)
        assert_same(self.planner.state, self.shadow)

    def look(self, change: plan_log.Change) -> None:
        """Takes note of a change that was written."""
        if change[0] == "send":
            record = json.loads(change[1])
            (self.cancelled if record["type"] == "cancel" else self.sent).append(record)
        elif change[0] == "fire":
            self.fires.append({"name": change[1], **change[2]})
        elif change[0] == "answer":
            self.answers[change[1]] = tuple(change[2:])
        elif change[0] == "refuse":
            self.refused.append(tuple(change[1:]))


def key_of(record: dict[str, Any]) -> TaskKey:
    """Key of a task as it was sent."""
    return TaskKey(
        to_us(datetime.fromisoformat(record["scheduledTime"])), record["orderingId"], record["uniquenessKey"]
    )


def assert_same(live: PlanState, folded: PlanState) -> None:
    """What the planner holds is what its log says."""
    assert live.entries == folded.entries
    assert live.runs == folded.runs
    assert live.successes == folded.successes
    assert live.calendars == folded.calendars
    assert live.graves == folded.graves
    assert live.handlers == folded.handlers
    assert live.tags == folded.tags
    assert live.launches == folded.launches
    assert live.queues == folded.queues
    assert live.queues.revision == folded.queues.revision
    assert live.tokens == folded.tokens
    assert live.notices == folded.notices
