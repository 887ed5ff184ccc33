"""One engine on one partition, driven by hand, for tests."""

import random

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import LEASED, HandlerPolicy, Limits
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import decode
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.key import TaskKey, name_of
from scylla_spark.core.tasks.task import SUCCEEDED, Outcome, Retry

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND
ALL_READ = Basis(1 << 62, 1 << 62)
RETRY = Retry.from_ms(2, 1000, 8000)


def rooms(room):
    """Room by executor name."""
    return room if isinstance(room, dict) else {"local": room}


class Harness:
    """One engine on one partition whose sends are acknowledged and read back at once."""

    def __init__(self, limits=None, mark=None, terms=None, queues=None):
        self.now = NOW
        terms = terms or (lambda command: HandlerPolicy("local" if command.handler else LEASED, 5000, RETRY))
        self.engine = Engine(terms, limits or Limits(least_wait_us=0), random.Random(1), queues=queues)
        self.log = []
        self.released = []
        self.other = []
        self.stored = []  # tasks of the tables that bear names
        self.asked = []  # questions about names that are not answered by themselves
        self.tells_names = True
        self.deaf = False  # what workers say does not come in
        self.offset = 0
        self.tenure = self.engine.assign(0, mark or Mark(), self.now)
        self.engine.raise_horizon(self.tenure, self.now + 300 * SECOND)
        self.engine.noted_end(self.tenure, 0, self.now)
        self.pump()
        self.engine.confirmed(self.tenure, self.fence, 0, self.now)
        self.engine.scanned(self.tenure, self.now + 300 * SECOND, {}, mark or Mark(), self.now)
        # forget the window after a take in which every due key is looked up
        self.engine.partitions[0].ended.since_us = 0
        self.pump()

    def pump(self, room=100, *, may_start=True, deliver=True, patient=True):
        """Carries out what the engine asks for until it asks for nothing more; returns what was released.

        Args:
            room: what the local executor takes, or what each takes, by name.
            may_start: whether membership is certain.
            deliver: whether sends arrive.
            patient: whether time passes until facts that wait for others are sent.
        """
        before = len(self.released)
        self.engine.tick(self.now, rooms(room), start_by_us=NEVER if may_start else 0)
        while (actions := self.engine.take_actions()) or (patient and self.linger(room, may_start=may_start)):
            for item in actions:
                match item:
                    case action.Send(tenure, fence, records) if deliver:
                        self.engine.sent(tenure, fence, ok=True, now=self.now)
                        for record in records:
                            self.append(decode(record))
                    case action.SendFence(_, _, record):
                        self.append(decode(record))
                    case action.Release(_, invocations):
                        self.released += invocations
                    case action.AskNames() if self.tells_names:
                        self.tell_names(item)
                    case action.AskNames():
                        self.asked.append(item)
                    case action.Listen(number) if not self.deaf:
                        self.engine.listened(number)
                    case _:
                        self.other.append(item)
            self.engine.tick(self.now, rooms(room), start_by_us=NEVER if may_start else 0)
        return self.released[before:]

    def tell_names(self, item, basis=ALL_READ):
        """The tables are asked who bears names."""
        found = [one for one in self.stored if item.names is None or name_of(one.key) in item.names]
        self.engine.named(self.tenure, item.names, found, basis, self.now)

    def linger(self, room, *, may_start):
        """Lets the time pass until decided facts are sent; False if there are none."""
        sends_from = self.engine._recorder.next_us()
        if sends_from < NEVER:
            self.now = max(self.now, sends_from)
            self.engine.tick(self.now, rooms(room), start_by_us=NEVER if may_start else 0)
        return sends_from < NEVER

    def append(self, record):
        self.log.append(record)
        self.engine.outcome_records(self.tenure, [(len(self.log) - 1, record)], len(self.log), self.now)

    def enqueue(self, lane="a", unique="u", due=0, **fields):
        key = TaskKey(NOW + int(due * SECOND), lane, unique)
        return self.command("enqueue", key, **({"handler": "h"} | fields))

    def read_on(self, offset):
        """The tail has come to that offset, without telling of anything more."""
        self.offset = max(self.offset, offset)
        self.engine.commands(self.tenure, [], self.offset, self.now)

    def command(self, kind, key, **fields):
        self.engine.commands(self.tenure, [Command(kind, key, self.offset, **fields)], self.offset + 1, self.now)
        self.offset += 1
        return key

    def finish(self, invocation, outcome=SUCCEEDED, **fields):
        self.engine.finished([Outcome(invocation.id, outcome, self.now, self.now, **fields)], self.now)

    def at(self, seconds, *, patient=True):
        self.now = NOW + int(seconds * SECOND)
        return self.pump(patient=patient)

    @property
    def fence(self):
        return self.engine.partitions[0].mine

    @property
    def partition(self):
        return self.engine.partitions[0]

    @property
    def facts(self):
        return [fact for record in self.log for fact in record.facts]
