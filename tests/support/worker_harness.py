"""Workers of one engine, driven by hand, for tests."""

from itertools import count

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.leases.messages import Call, Report, Sign, Want
from scylla_spark.core.tasks.attempt_note import WorkNote
from tests.support.engine_harness import SECOND, Harness


class PullWorld(Harness):
    """An engine with a queue `gpu` that workers lease from."""

    def __init__(self, mark=None, limits=None, **fields):
        queues = {"gpu": QueueLimits(pull=True, **fields)}
        super().__init__(limits or Limits(least_wait_us=0), mark=mark, queues=queues)
        self.numbers = count(1)
        self.sequences = {}

    def put(self, lane="a", unique="u", due=0, **fields):
        return self.enqueue(lane, unique, due, **({"queue": "gpu"} | fields))

    def ask(self, worker="w", most=1, *, session="s", wait=0.0, queue="gpu", sequence=None, **fields):
        """A call of a worker with a session; returns its number."""
        key = worker, session
        self.sequences[key] = sequence or self.sequences.get(key, 0) + 1
        want = {name: fields.pop(name) for name in ("handlers", "lease_ms", "key") if name in fields}
        wants = (Want(queue, most, **want),) if most else ()
        return self.call(worker, session, self.sequences[key], wait, wants=wants, **fields)

    def once(self, most=1, *, worker="curl", wait=0.0, queue="gpu", wants=None, **fields):
        """A call without a session; returns its number."""
        want = {name: fields.pop(name) for name in ("handlers", "lease_ms", "key") if name in fields}
        return self.call(worker, "", 0, wait, wants=(Want(queue, most, **want),) if most else (), **fields)

    def call(self, worker, session, sequence, wait, **fields):
        number = next(self.numbers)
        until_us = self.now + int(wait * SECOND)
        self.engine.call(Call(number, worker, session, sequence, until_us, **fields), self.now, certain=True)
        return number

    def answer(self, number, **pump):
        """What a call is answered by now; None: nothing."""
        self.pump(**pump)
        found = [
            item.answer for item in self.other if isinstance(item, action.Answered) and item.answer.number == number
        ]
        assert len(found) <= 1
        return found[0] if found else None

    def leases(self, number):
        return list(self.answer(number).leases)

    def report(self, token, outcome="succeeded", *, worker="curl", **fields):
        """The status of a report by somebody without a session."""
        return self.answer(self.once(0, worker=worker, reports=(Report(token, outcome, **fields),))).statuses[0]

    def sign(self, token, *, worker="curl", **fields):
        return self.answer(self.once(0, worker=worker, signs=(Sign(token, WorkNote(**fields)),))).statuses[0]

    def outcomes(self, unique="u"):
        return [fact.outcome for fact in self.facts if fact.key.uniqueness_key == unique]
