"""A world for the planner: its log, topics, an engine that runs what is launched, and processes that crash, freeze and are in doubt.

The planner, its state, its log's format and the fence rule are the real ones; what is modelled is the shell around them, with anything
happening between two steps. A seed decides everything.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any, NamedTuple

from scylla_spark.clock import to_us
from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.notices.notice import Channel, Channels
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_log import SOFT_GROUP_BYTES, Group
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import MOST_JOBS, Handed
from scylla_spark.core.plan.tables.changes import Cursor
from scylla_spark.core.plan.tables.growth import Growth
from scylla_spark.core.plan.tables.watch import Place
from scylla_spark.core.records.fact import (
    Fact,
    Fence,
    FenceLog,
    OutcomeRecord,
    Unreadable,
    decode,
    encode_facts,
    encode_fence,
)
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.services.plan.planner_clock import ClockIsWrong, ClockWasSet, PlannerClock

SECOND = 1_000_000
START = to_us(datetime.fromisoformat("2026-03-01T00:00:00+00:00"))
STORY_US = 180 * SECOND
CALM_US = 90 * SECOND
BACKFILL_US = 480 * SECOND
PARTITIONS = 2
CHANNELS = Channels({"ops": Channel()})
ENGINE = Fence(1, "engine")
TAGS_FROM = 5_000  # stories from this one on have limits by tags; those before stay as they are
TAGGED: dict[str, Any] = {
    "tags": ["tagged"],
    "constraints": [{"kind": "concurrency", "most": 1, "tag": "tagged", "otherwise": "wait"}],
}
PACE_US = 20 * SECOND
PACED: dict[str, Any] = {"tags": ["paced"], "constraints": [{"kind": "rate", "most": 2, "per": "20s", "tag": "paced"}]}
PROMISES = {"lateAfter": "4s", "endWithin": "8s", "expectEvery": "20s"}


class Started(NamedTuple):
    """One run, as the engine had it."""

    key: TaskKey
    handler: str
    begin_us: int
    end_us: int


@dataclass
class Engine:
    """Runs tasks: lanes in order, one at a time; takes a cancel for what has not begun."""

    world: PlanWorld
    tasks: dict[TaskKey, dict[str, Any]] = field(default_factory=dict)
    waiting: dict[str, list[TaskKey]] = field(
        default_factory=dict
    )  # lane → heap of what has not begun, and of some that has
    ended: set[TaskKey] = field(default_factory=set)
    running: dict[str, tuple[TaskKey, int, int]] = field(default_factory=dict)
    runs: list[Started] = field(default_factory=list)
    messages: dict[TaskKey, dict[str, Any]] = field(default_factory=dict)
    unread: list[tuple[int, str]] = field(default_factory=list)  # records of `tasks`, and when they are read

    def take(self, text: str) -> None:
        """A record of `tasks` stands in its log."""
        last = self.unread[-1][0] if self.unread else 0
        self.unread.append((max(last, self.world.now + self.world.guests.randrange(300_000)), text))

    def _read(self, text: str) -> None:
        message, record = message_of(text), json.loads(text)
        key = _key_of(record)
        if message is not None:
            self.messages[key] = message[1]  # as often as it is sent, it is one task
        elif record["type"] == "cancel":
            busy = self.running.get(key.ordering_id)
            if key not in self.ended and (busy is None or busy[0] != key):
                self._end(key, "cancelled", 0)
            elif (request := record.get("requestId")) is not None:
                self.world.recorded(Fact(key, 0, "too_late", finished_us=self.world.now, request_id=request))
        elif key not in self.ended and key not in self.tasks:
            self.tasks[key] = record
            heappush(self.waiting.setdefault(key.ordering_id, []), key)

    def turn(self, now: int, chance: random.Random) -> None:
        """Reads what has come, ends what is over, and begins what is due."""
        while self.unread and self.unread[0][0] <= now:
            self._read(self.unread.pop(0)[1])
        for lane, (key, begin, end) in list(self.running.items()):
            if end <= now:
                del self.running[lane]
                self.runs.append(Started(key, self.tasks[key]["handler"], begin, end))
                self._end(key, chance.choice(("succeeded", "succeeded", "failed")), begin)
        for key in sorted(self._heads(now)):
            heappop(self.waiting[key.ordering_id])
            self.running[key.ordering_id] = key, now, now + chance.randrange(20_000, 15 * SECOND)
            if key.uniqueness_key.startswith("prompt/"):
                self.world.recorded(Fact(key, 1, "started", now, 0, key.time_us, 1))

    def _heads(self, now: int) -> Iterator[TaskKey]:
        """Of each lane that is free, the first task, if it is due."""
        for lane, heap in list(self.waiting.items()):
            while heap and heap[0] in self.ended:
                heappop(heap)
            if not heap:
                del self.waiting[lane]
            elif heap[0].time_us <= now and lane not in self.running:
                yield heap[0]

    def _end(self, key: TaskKey, outcome: str, begin: int) -> None:
        self.ended.add(key)
        attempt = 1 if begin else 0
        self.world.recorded(Fact(key, attempt, outcome, begin, self.world.now, key.time_us, attempt))


@lru_cache(maxsize=2_000)
def message_of(text: str) -> tuple[TaskKey, dict[str, Any]] | None:
    """Key and payload of a message to a channel; None: the record is of another task."""
    record = json.loads(text)
    return (_key_of(record), record["taskData"]) if record["orderingId"].startswith("notify/") else None


def _key_of(record: dict[str, Any]) -> TaskKey:
    return TaskKey(
        to_us(datetime.fromisoformat(record["scheduledTime"])), record["orderingId"], record["uniquenessKey"]
    )


def group_of(value: bytes) -> Group:
    """A record of the planner's log; groups are never changed, so each is read once."""
    group = plan_log.decode(value)
    assert not isinstance(group, Unreadable), group
    return group


class Doubt(Exception):
    """A process must begin again."""


@dataclass
class Table:
    """A table at the place that is watched, and its log.

    Attributes:
        ids: of each version, which table it is: one that is replaced in place has another id from there on; none: it is still to come.
        parts: of each version, the partition that it is of; that of the first is none.
    """

    ids: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """Its newest version; -1: there is none."""
        return len(self.ids) - 1

    def is_known_as(self, table_id: str) -> bool:
        """Returns True if somebody who knows that id means this table; who knows none means whichever is there."""
        return not table_id or table_id in self.ids

    def commit(self, part: str, table_id: str = "") -> None:
        """A version comes."""
        self.ids.append(table_id or self.ids[-1])
        self.parts.append(part)


class Process:
    """The shell of a planner."""

    def __init__(self, world: PlanWorld, name: int) -> None:
        self.world = world
        self.name = name
        self.state = PlanState()
        self.fences = FenceLog()
        self.position = 0
        self.flying: list[tuple[int, bytes]] = []  # (lands at, record), in order
        self.under_way: list[tuple[Group, int]] = []  # group, its clock at the send
        self.clock = PlannerClock(world.both_us)
        self.now = self.clock.now()
        self.fenced_us = self.now
        self.planner: Planner | None = None
        self.fence: Fence | None = None
        self.frozen_until = 0
        self.snapshot: list[str] | None = None
        self.snapshot_at = -1
        self._begin()

    def _begin(self) -> None:
        start = self.world.last_snapshot()
        self.position = start
        self._read()
        self.fence = Fence(self.fences.fence.epoch + 1, f"n{self.name}")
        self._fly(encode_fence(self.fence, "", self.fenced_us))

    def _fly(self, value: bytes) -> None:
        last = self.flying[-1][0] if self.flying else 0
        self.flying.append((max(last, self.world.now + self.world.chance.randrange(1_000, 60_000)), value))

    def land(self) -> None:
        """What has arrived at the broker is appended."""
        while self.flying and self.flying[0][0] <= self.world.now:
            self.world.append(self.flying.pop(0)[1])

    def step(self) -> None:
        """Reads, decides, writes."""
        if self.world.now < self.frozen_until:
            return
        self.now = self.clock.now()
        if self.world.chance.random() < 0.7 or not self.world.faulty:  # a poll may bring nothing of what is there
            self._read()
        if self.planner is None:
            return
        self._inputs(self.planner)
        self.planner.tick(self.now)
        self._snapshots(self.planner)
        for group in self.planner.take(self.now):
            self._fly(plan_log.encode(group))
            self.under_way.append((group, self.now))
        if self.flying and self.world.faulty and self.world.chance.random() < 0.003:
            for _ in range(self.world.chance.randrange(len(self.flying) + 1)):  # some land all the same
                self.world.late.append(self.flying.pop(0))
            raise Doubt

    def _inputs(self, planner: Planner) -> None:
        chance = self.world.chance
        commands = self.world.commands
        for offset in range(planner.state.commands, min(len(commands), planner.state.commands + chance.randrange(4))):
            planner.command(offset, commands[offset], self.world.now, self.now)
        for number, records in enumerate(self.world.outcomes):
            at = planner.state.outcomes.get(number, (0, 1, "engine"))[0]
            for offset in range(at, min(len(records), at + chance.randrange(4))):
                found = decode(records[offset])
                assert isinstance(found, OutcomeRecord)
                planner.outcomes(number, offset, found.facts, (offset + 1, 1, "engine"), self.now)
        for place, wanted in planner.watched().items():
            table = self.world.table
            if wanted.handed is None:
                planner.tables.begins(place, *((table.ids[0], 0) if table.ids else ("", -1)))
            elif self.world.vanished or not table.is_known_as(wanted.handed.table_id):
                self._trouble(planner, place)
            elif wanted.trigger.per:
                if chance.random() < 0.3:
                    self._partitions(planner, place, wanted.handed)
                if self.world.later.random() < 0.1:
                    self._reached(planner, place, wanted.handed)
            elif table.newest > wanted.handed.version and chance.random() < 0.2:
                newest = chance.randint(wanted.handed.version + 1, table.newest)
                growth = Growth(table.ids[newest], wanted.handed.version, newest, from_id=wanted.handed.table_id)
                planner.tables.grew(place, growth, self.now)

    def _trouble(self, planner: Planner, place: Place) -> None:
        """Tells that the table has vanished, or that another one lies at its place; again and again, and sometimes late."""
        world = self.world
        if world.guests.random() > 0.3:
            return
        if world.vanished:
            planner.tables.trouble(place, "vanished", f"There is no table any more ({world.vanished}).", None, self.now)
        else:
            why = f"Another table lies there: its id is {world.table.ids[0]}"
            planner.tables.trouble(place, "replaced", why, (world.table.ids[0], 0), self.now)

    def _partitions(self, planner: Planner, place: Place, handed: Handed) -> None:
        """Tells of one partition of a table: all its versions up to one of the latest that no run has."""
        table = self.world.table
        newest = self.world.chance.randint(0, max(table.newest, 0))
        parts = [
            part for version, part in enumerate(table.parts[: newest + 1]) if part and version > handed.of_part(part)[0]
        ]
        if parts:
            part, alone = self.world.chance.choice(parts), len(set(parts)) == 1
            first = handed.of_part(part)[0]
            growth = Growth(table.ids[newest], first, newest, part=part, alone=alone, from_id=handed.table_id)
            planner.tables.grew(place, growth, self.now)

    def _reached(self, planner: Planner, place: Place, handed: Handed) -> None:
        """Tells up to where all partitions were handed over."""
        table = self.world.table
        left = [version for version, part in enumerate(table.parts) if part and version > handed.of_part(part)[0]]
        version = min(left, default=table.newest + 1) - 1
        if version > handed.version:
            planner.tables.reached(place, Cursor(*handed[:2]), Cursor(table.ids[version], version), self.now)

    def _snapshots(self, planner: Planner) -> None:
        if self.snapshot is None and self.world.chance.random() < 0.01:
            self.snapshot, self.snapshot_at = planner.begin_snapshot(self.now), -1
        elif self.snapshot:
            part = [self.snapshot.pop() for _ in range(min(len(self.snapshot), 2))]
            planner.snapshot(part, self.now)
            self.snapshot += part  # what was too much for one record
        elif self.snapshot is not None and self.snapshot_at >= 0 and not self.under_way:
            planner.end_snapshot(self.snapshot_at)
            self.snapshot = None

    def _read(self) -> None:
        log = self.world.log
        while self.position < len(log):
            value, offset = log[self.position], self.position
            self.position += 1
            self._record(value, offset)

    def _record(self, value: bytes, offset: int) -> None:
        if not plan_log.is_plan(value):
            fence = decode(value)
            assert isinstance(fence, OutcomeRecord)
            if self.fences.admit(fence):
                self._fenced(fence.fence, offset)
            return
        group = group_of(value)
        if group.begins and self.fences.fence.epoch == 0:
            self.fences = FenceLog(group.fence)
        if group.fence != self.fences.fence:
            return
        if self.planner is None:
            self.state.fold(group)
        elif self.under_way and group.number == self.under_way[0][0].number:
            self._hold_clock_against(offset, self.under_way.pop(0)[1])
            if group.begins:
                self.snapshot_at = offset
            self._launch(self.planner, group.number, [change[1] for change in group.changes if change[0] == "send"])

    def _hold_clock_against(self, offset: int, sent_us: int, *, proves: bool = False) -> None:
        self.clock.check(self.world.appended[offset] // 1000, sent_us, self.now, proves=proves)

    def _fenced(self, fence: Fence, offset: int) -> None:
        if self.fence is not None and fence == self.fence:
            self._hold_clock_against(offset, self.fenced_us, proves=True)
            self.planner = Planner(
                self.state,
                fence,
                self.world.ahead_us,
                self.now,
                channels=CHANNELS,
                group_bytes=self.world.group_bytes,
            )
            self.planner._journal.watchers.insert(0, self._meets_a_defect)
            for number, texts in sorted(self.state.unsent.items()):
                self._launch(self.planner, number, texts)
        elif self.fence is not None and fence.epoch >= self.fence.epoch:
            raise Doubt

    def _meets_a_defect(self, change: plan_log.Change) -> None:
        """Fails at some launches of one schedule, as an index of ours with a defect would."""
        launches = change[0] == "fire" and change[1] == "shaky" and change[2]["verdict"] == "launched"
        if launches and self.world.faulty and self.world.chance.random() < 0.3:
            raise RuntimeError("a defect")

    def _launch(self, planner: Planner, number: int, texts: list[str]) -> None:
        for text in texts:
            if self.world.faulty and self.world.chance.random() < 0.002:
                raise Doubt  # it may have been sent, or not
            self.world.engine.take(text)
        planner.sent(number)


class PlanWorld:
    """Plays one seed.

    Args:
        seed: decides everything.
        story_us: how long faults happen.
        calm_us: how long the story goes on without faults.
    """

    def __init__(self, seed: int, story_us: int = STORY_US, calm_us: int = CALM_US) -> None:
        self.story_us = story_us
        self.calm_us = calm_us
        self.chance = random.Random(seed)
        self.now = START
        self.off_us = 0  # how far the clock of all processes is off
        self.tagged = seed >= TAGS_FROM
        self.guests = random.Random(f"guests {seed}")
        self._clock_chance = random.Random(f"clock {seed}")
        self._off_until = 0
        self.ahead_us = self.chance.choice((0, 2 * SECOND, 10 * SECOND))
        self.group_bytes = (SOFT_GROUP_BYTES, 1_000)[seed % 2]
        self.most_jobs = (MOST_JOBS, 3)[seed // 2 % 2]
        self.commands: list[bytes] = []
        self.outcomes: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.log: list[bytes] = []
        self.appended: list[int] = []  # when each record of it was
        self.late: list[tuple[int, bytes]] = []
        self.engine = Engine(self)
        self.later = random.Random(f"later {seed}")
        self.tables = [Table()]  # all that have lain there
        self.is_missing = seed % 3 == 1  # the table is written after the schedules that watch it
        if not self.is_missing:
            self.table.commit("", "table-0")
        self.vanished = ""  # by which number it is called that there is none now
        self.faulty = True
        self.processes: list[Process] = []
        self._names = 0
        self.told: dict[str, int] = {}  # request → when it was answered
        self.paused: dict[str, list[tuple[int, int]]] = {}
        self.events = 0
        self.backfills = 0
        self.watching = _watching(self.chance)
        self.constrained = _constrained(self.chance)

    @property
    def table(self) -> Table:
        """That lies there now."""
        return self.tables[-1]

    def both_us(self) -> tuple[int, int]:
        """Returns what the clocks of processes show: wall time, and time since they were booted."""
        return self.now + self.off_us, self.now

    def append(self, value: bytes) -> None:
        """A record stands in the planner's log."""
        self.log.append(value)
        self.appended.append(self.now)

    def last_snapshot(self) -> int:
        """Returns where reading begins."""
        found = [group_of(value).snapshot for value in self.log[-40:] if plan_log.is_plan(value)]
        return max([*found, 0])

    def recorded(self, fact: Fact) -> None:
        """The engine has written a fact."""
        self.outcomes[len(fact.key.ordering_id) % PARTITIONS].extend(encode_facts(ENGINE, [fact]))

    def play(self) -> None:
        """The whole story: faults, then calm."""
        self._define()
        begun = self.now
        while self.now < begun + self.story_us:
            self._pass()
            self._act()
            self._fault()
            self._set_clock()
            self._guests()
            self._rewrite(begun)
        self.faulty = False
        self.off_us = 0
        self.vanished = ""
        self.processes = self.processes[-1:]
        for process in self.processes:
            process.frozen_until = 0
        while self.now < begun + self.story_us + self.calm_us:
            self._pass()

    def _pass(self) -> None:
        self.now += self.chance.randrange(5_000, 400_000)
        while self.late and self.late[0][0] <= self.now:
            self.append(self.late.pop(0)[1])
        if not self.processes:
            self._start()
        for process in list(self.processes):
            process.land()
            try:
                process.step()
            except (Doubt, ClockWasSet, ClockIsWrong):
                self.late += process.flying
                self.processes.remove(process)
        self.engine.turn(self.now, self.chance)

    def _start(self) -> None:
        self._names += 1
        self.processes.append(Process(self, self._names))

    def _fault(self) -> None:
        if self.chance.random() > 0.01:
            return
        if self.processes and self.chance.random() < 0.5:
            process = self.chance.choice(self.processes)  # killed: a part of what flies lands
            self.late += process.flying[: self.chance.randrange(len(process.flying) + 1)]
            self.processes.remove(process)
            self.now += self.chance.choice((0, 0, 5, 40)) * SECOND
        else:
            for process in self.processes:  # frozen, and another takes over
                process.frozen_until = self.now + self.chance.randrange(1, 30) * SECOND
            self._start()

    def _set_clock(self) -> None:
        """Somebody sets the clock wrong, and right again after some seconds."""
        chance = self._clock_chance
        if self.off_us and self.now > self._off_until:
            self.off_us = 0
        elif not self.off_us and chance.random() < 0.002:
            self.off_us = chance.choice((-3600, -5, -2, 2, 5, 3600)) * SECOND
            self._off_until = self.now + chance.randrange(15) * SECOND

    def _guests(self) -> None:
        """A table vanishes, comes back, or is replaced; a schedule by time is deleted, and comes again; backfills are steered."""
        dice = self.guests.random()
        if dice < 0.001 and not self.vanished:
            self.vanished = f"{self.now}"
        elif dice < 0.002 or (self.vanished and dice < 0.05):
            if dice < 0.03:
                self._replace_table()
            self.vanished = ""
        elif dice > 0.99:
            self.ask("delete", names=["gone"])
        elif dice > 0.98:
            self._put_gone()
        elif dice > 0.95:
            self._steer_backfill()

    def _replace_table(self) -> None:
        if self.table.ids:
            self.tables.append(Table([f"table-{len(self.tables)}"], [""]))

    def _rewrite(self, begun: int) -> None:
        """The table comes, if it was missing; later it is replaced in place."""
        dice = self.later.random()
        if not self.table.ids:
            if dice < 0.02 or self.now > begun + self.story_us // 2:
                self.table.commit("", "table-0")
        elif dice < 0.003 and not self.vanished:
            self.table.commit(self.later.choice("abc"), f"{self.table.ids[0]}-{self.table.newest}")

    def _put_gone(self) -> None:
        overlap = self.guests.choice(("skip", "allow_all", "buffer_all"))
        tick = {"kind": "every", "period": "10s"}
        self.ask("put", schedules=[{"name": "gone", "handler": "work", "trigger": tick, "overlap": overlap}])

    def ask(self, kind: str, **fields: Any) -> None:
        """A client's command."""
        self.commands.append(encode_command(kind, id=f"r{len(self.commands)}", **fields))

    def _define(self) -> None:
        tick = {"kind": "every", "period": "10s"}
        limit = [{"kind": "concurrency", "most": 1, "otherwise": "wait"}]
        definitions: list[dict[str, Any]] = [
            {"name": "skip", "trigger": tick},
            {"name": "caught", "trigger": tick, "catchUp": "all"},
            {"name": "all", "trigger": tick, "overlap": "allow_all", "catchUp": "all"},
            {"name": "lane", "trigger": tick, "overlap": "buffer_all", "catchUp": self.chance.choice(("latest", "none", "all"))},
            {"name": "one", "trigger": tick, "overlap": "buffer_one"},
            {"name": "two", "trigger": tick, "maxRunning": 2},
            {"name": "stopped", "trigger": tick, "overlap": self.chance.choice(("skip", "allow_all", "buffer_all"))},
            {"name": "shaky", "trigger": tick, "overlap": "allow_all"},
            {"name": "prompt", "trigger": tick, "overlap": "buffer_all", **PROMISES},
            {"name": "past", "trigger": tick, "paused": True},
            {"name": "count", "trigger": {"kind": "partitions", "dataset": "d", "atLeast": 3}},
            {"name": "limited-a", "handler": "narrow", "trigger": {"kind": "event", "name": "e"}, "constraints": limit},
            {"name": "limited-b", "handler": "narrow", "trigger": {"kind": "event", "name": "e"}, "constraints": limit},
            {"name": "after", "trigger": {"kind": "after", "work": "count", "on": ["succeeded", "failed"]}},
            {"name": "table", "trigger": {"kind": "table", "table": "/t"}},
            {"name": "both", "trigger": {"kind": "all", "of": [{"kind": "table", "table": "/t"}, {"kind": "event", "name": "e"}]}},
            *self.watching,
            *self.constrained,
            *(_of_tags() if self.tagged else ()),
        ]  # fmt: skip
        self.ask("put", schedules=[{"handler": "work", **one} for one in definitions])
        ends = ["failed", "succeeded"]
        rules: list[dict[str, Any]] = [
            {"name": "each", "when": ends, "channel": "ops", "digest": "0s"},
            {"name": "gathered", "when": ["failed"], "channel": "ops", "digest": "15s"},
            {"name": "told", "when": ["skipped", "missed", "paused"], "channel": "ops", "schedules": ["s*"], "digest": "30s"},
        ]  # fmt: skip
        self.ask("put_rule", rules=rules)
        self._put_gone()
        self._backfill()

    def _backfill(self) -> None:
        """Asks for the runs of the next eight minutes back."""
        end = START - self.backfills * BACKFILL_US
        self.backfills += 1
        self.ask("backfill", name="past", begin=end - BACKFILL_US, end=end, maxRunning=3)

    def _steer_backfill(self) -> None:
        """Somebody pauses a backfill, lets it go on, or cancels it."""
        planner = self.processes[-1].planner if self.processes else None
        past = planner.state.entries.get("past") if planner is not None else None
        numbers = [one.number for one in past.backfills.values() if not one.is_over] if past is not None else []
        if numbers:
            kind = self.guests.choice(("pause", "pause", "resume", "resume", "resume", "cancel"))
            self.ask(f"{kind}_backfill", name="past", backfill=self.guests.choice(numbers))

    def _act(self) -> None:
        dice = self.chance.random()
        if dice < 0.02:
            self.events += 1
            self.ask("partitions", name="d", partitions=[{}])
        elif dice < 0.03:
            self.ask("event", name="e")
        elif dice < 0.05:
            part = self.chance.choice("abc")
            if self.table.ids:
                self.table.commit(part)
        elif dice < 0.056:
            self.ask("pause", names=["stopped"])
        elif dice < 0.066:
            self.ask("resume", names=["stopped"])
        elif dice < 0.07:
            self._put_another()
        elif dice < 0.073:
            self.ask("delete", names=[f"n{self.chance.randrange(2)}"])
        elif dice < 0.08 and self._running_guests():
            self._take_away(self.chance.choice(self._running_guests()))
        elif dice < 0.085:
            self._backfill()
        elif dice < 0.09:
            self.ask("resume", names=["shaky"])
        elif dice < 0.105:
            self._disturb(self.chance.choice(self.watching))

    def _put_another(self) -> None:
        """A schedule that comes, runs something else, and goes, while its runs go on."""
        limit = {"constraints": [{"kind": "concurrency", "most": 1, "otherwise": "wait"}]}
        narrow = self.chance.random() < 0.5
        event = {"name": f"n{self.chance.randrange(2)}", "trigger": {"kind": "event", "name": "n"}}
        other = {"handler": "tagged-n", **TAGGED} if self.tagged else {"handler": "work"}
        self.ask("put", schedules=[event | ({"handler": "narrow", **limit} if narrow else other)])
        self.ask("event", name="n")

    def _running_guests(self) -> list[str]:
        """Those of these schedules that have a run."""
        names = {key.uniqueness_key.split("/")[0] for key, _, _ in self.engine.running.values()}
        return sorted(name for name in names if name in ("n0", "n1"))

    def _take_away(self, name: str) -> None:
        """A schedule is deleted, or runs something else, while its run goes on."""
        if self.chance.random() < 0.5:
            self.ask("delete", names=[name])
        else:
            self.ask("put", schedules=[{"name": name, "handler": "other", "trigger": {"kind": "event", "name": "n"}}])
        self.ask("event", name="e")

    def _disturb(self, definition: dict[str, Any]) -> None:
        """Pauses, resumes or changes a schedule that watches a table."""
        what = self.chance.choice(("pause", "resume", "resume", "put"))
        if what == "put":
            changes = {"tags": [f"t{len(self.commands)}"], "owner": f"o{self.chance.randrange(2)}"}
            more = changes | {"priority": len(self.commands) % 100}  # a change of words alone would touch nothing
            self.ask("put", schedules=[{"handler": "work", **definition, **more}])
        else:
            self.ask(what, names=[definition["name"]])


def _watching(chance: random.Random) -> list[dict[str, Any]]:
    """Schedules of a table whose jobs are skipped, wait, and are too old."""
    table = {"kind": "table", "table": "/t"}
    event = {"kind": "event", "name": "e"}
    limit = [{"kind": "concurrency", "most": 1, "otherwise": "wait"}]
    again = [{"kind": "last_run", "within": "15s", "otherwise": chance.choice(("wait", "abort"))}]
    late = [{"kind": "delay", "delay": "10s"}]
    rare = [{"kind": "rate", "most": 1, "per": "20s"}]
    return [
        {"name": "t-skip", "trigger": table, "overlap": "skip"},
        {"name": "t-one", "trigger": table, "overlap": "buffer_one"},
        {"name": "t-limit", "trigger": table, "constraints": limit, "handler": "narrow"},
        {"name": "t-again", "trigger": table, "constraints": again, "overlap": chance.choice(("skip", "buffer_all"))},
        {"name": "t-late", "trigger": table, "constraints": rare, "jobTimeout": chance.choice(("9s", "12s"))},
        {"name": "t-both", "trigger": {"kind": "all", "of": [event, table]}, "constraints": late, "jobTimeout": "30s"},
        {"name": "t-per", "trigger": {**table, "per": "part"}, "constraints": limit, "handler": "narrow"},
        {
            "name": "t-parts",
            "trigger": {**table, "per": "part"},
            "overlap": chance.choice(("skip", "buffer_one")),
            "constraints": late,
        },
        {"name": "t-or", "trigger": {"kind": "any", "of": [event, table]}, "overlap": "skip", "constraints": late},
    ]


def _of_tags() -> list[dict[str, Any]]:
    """Schedules of several handlers that share limits by tags."""
    event = {"kind": "event", "name": "e"}
    tagged = [{"name": f"tag-{one}", "handler": f"tagged-{one}", "trigger": event, **TAGGED} for one in "ab"]
    return [*tagged, *({"name": f"paced-{one}", "trigger": event, **PACED} for one in "ab")]


def _constrained(chance: random.Random) -> list[dict[str, Any]]:
    """Schedules by time of which each has one constraint, waited for or not."""
    kinds: dict[str, dict[str, Any]] = {
        "range": {"kind": "time_range", "begin": "00:01", "end": "00:03"},
        "delay": {"kind": "delay", "delay": "15s"},
        "last": {"kind": "last_run", "within": "20s"},
        "rate": {"kind": "rate", "most": 2, "per": "30s"},
    }
    rare = [{"kind": "rate", "most": 2, "per": "30s", "otherwise": "wait"}]
    tick = {"kind": "every", "period": "10s"}
    return [
        {"name": "rate-held-wait", "trigger": tick, "constraints": rare, "overlap": "buffer_all", "catchUp": "all", "catchUpWindow": "20s"},
        {"name": "rate-each-wait", "trigger": tick, "constraints": rare, "overlap": "allow_all", "catchUp": "latest"},
        *(
            {
                "name": f"{name}-{otherwise}", "trigger": tick,
                "constraints": [{**constraint, "otherwise": otherwise}],
                "handler": "rare" if name == "last" else "work",
                "overlap": chance.choice(("skip", "buffer_one", "buffer_all", "allow_all")),
                "catchUp": chance.choice(("latest", "all", "none")),
            }
            for name, constraint in kinds.items()
            for otherwise in (("wait",) if name == "delay" else ("wait", "abort"))
        ),
    ]  # fmt: skip


def facts_of(value: bytes) -> tuple[Fact, ...]:
    """The facts in a record of the engine."""
    record = decode(value)
    return () if isinstance(record, Unreadable) else record.facts


def counted(log: list[bytes]) -> Iterator[tuple[int, Group]]:
    """The groups of a log that count."""
    fences = FenceLog()
    for offset, value in enumerate(log):
        if plan_log.is_plan(value):
            group = group_of(value)
            if group.fence == fences.fence:
                yield offset, group
        else:
            fence = decode(value)
            assert isinstance(fence, OutcomeRecord)
            fences.admit(fence)
