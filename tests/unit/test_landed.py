"""What a dispatcher has written counts as soon as it is acknowledged, where all before it has been read; else once that was read."""

from types import SimpleNamespace

import pytest
from kafka import TopicPartition

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine import action
from scylla_spark.core.records.fact import Fact, Fence, OutcomeRecord, encode_facts, encode_fence
from scylla_spark.core.tables.progress import Tenure
from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.io.kafka.fetch_pace import pace_of
from scylla_spark.io.kafka.send_together import together
from scylla_spark.services.dispatch.outcomes_tail import OutcomesTail
from tests.support.engine_harness import NOW, Harness


@pytest.fixture
def world():
    """A task has ended, and its fact is under way."""
    harness = Harness()
    harness.enqueue()
    harness.finish(*harness.pump())
    harness.pump(deliver=False)
    return harness


def sent(world):
    """What was to be sent."""
    return next(item for item in world.other if isinstance(item, action.Send))


def counts(world):
    return world.engine.counts["completed_succeeded"] == 1


def test_a_record_that_stands_next_counts_once_it_is_acknowledged(world):
    position = world.partition.outcomes_position
    world.engine.landed(world.tenure, position, sent(world).content, NOW)
    assert counts(world)
    assert world.engine.has_read(world.tenure, position + 1)
    assert not world.engine.has_read(world.tenure, position + 2)


def test_a_record_behind_something_else_waits_until_both_are_read(world):
    position, content = world.partition.outcomes_position, sent(world).content
    world.engine.landed(world.tenure, position + 1, content, NOW)
    assert not counts(world)
    between = OutcomeRecord(Fence(0, "late"), "facts")
    world.engine.outcome_records(world.tenure, [(position, between), (position + 1, content)], position + 2, NOW)
    assert counts(world)


def test_a_record_behind_the_fence_of_another_owner_never_counts(world):
    position, content = world.partition.outcomes_position, sent(world).content
    world.engine.landed(world.tenure, position + 1, content, NOW)
    thief = OutcomeRecord(Fence(99, "thief"), "fence")
    world.engine.outcome_records(world.tenure, [(position, thief), (position + 1, content)], position + 2, NOW)
    assert not counts(world)
    assert world.engine.held(world.tenure) is None


@pytest.mark.parametrize("offset", [-1, 0])
def test_an_unknown_place_and_one_that_was_read_say_nothing(world, offset):
    world.engine.landed(world.tenure, offset, sent(world).content, NOW)
    assert not counts(world)


def test_what_is_read_twice_counts_once(world):
    position, content = world.partition.outcomes_position, sent(world).content
    world.engine.landed(world.tenure, position, content, NOW)
    world.engine.outcome_records(world.tenure, [(position, content)], position + 1, NOW)
    assert counts(world)


def test_of_a_partition_that_is_not_held_nothing_has_to_be_read(world):
    assert world.engine.has_read(Tenure(0, 99), 1_000)


class Reader:
    """A consumer of one partition."""

    def __init__(self):
        self.values = []

    def assign(self, _places):
        """Nothing to do."""

    def seek(self, _place, _offset):
        """Nothing to do."""

    def position(self, _place):
        return 0

    def end_offsets(self, places, timeout_ms):
        return dict.fromkeys(places, 0)

    def poll(self, timeout_ms):
        values, self.values = self.values, []
        records = [SimpleNamespace(offset=n, value=value, timestamp=0) for n, value in enumerate(values)]
        return {TopicPartition("outcomes", 0): records} if records else {}


def test_nobody_hurries_to_read_what_was_written_here_and_nothing_else():
    hurried, reader, fence = [], Reader(), Fence(1, "a")
    fact = Fact(Harness().enqueue(), 1, SUCCEEDED, NOW)
    own = encode_facts(fence, [fact])[0]
    tail = OutcomesTail(Settings(), lambda *_: None, lambda *_: None)
    tail.use(reader, hurried.append)
    tail.add(Tenure(0, 1), 0)
    for values in ([], [own], [encode_fence(fence, "", NOW)], [own, encode_fence(fence, "", NOW)]):
        if own in values:
            tail.expect(own, OutcomeRecord(fence, "facts", (fact,)))
        reader.values = values
        tail.turn(wait_s=0)
    assert hurried == [True, False, True, True]


def test_a_consumer_is_told_at_once_only_while_it_hurries():
    reader = SimpleNamespace(_fetcher=SimpleNamespace(config={"fetch_min_bytes": 1, "fetch_max_wait_ms": 500}))
    before, pace = dict(reader._fetcher.config), pace_of(reader)
    pace(False)
    assert reader._fetcher.config["fetch_min_bytes"] > 1
    assert reader._fetcher.config["fetch_max_wait_ms"] <= 100
    pace(True)
    assert reader._fetcher.config == before


class Sender:
    """The thread of a producer."""

    def __init__(self):
        self.woken = 0

    def wakeup(self):
        self.woken += 1


def producer_of(*, knows):
    return SimpleNamespace(_sender=Sender(), _metadata=SimpleNamespace(need_update=not knows))


def test_what_is_sent_together_wakes_the_thread_of_the_producer_once():
    producer = producer_of(knows=True)
    with together(producer)():
        producer._sender.wakeup()
        producer._sender.wakeup()
        assert producer._sender.woken == 0
    assert producer._sender.woken == 1
    producer._sender.wakeup()
    assert producer._sender.woken == 2


def test_where_nothing_is_sent_nobody_is_woken():
    producer = producer_of(knows=True)
    with together(producer)():
        pass
    assert producer._sender.woken == 0


def test_who_waits_for_what_is_known_of_a_topic_is_not_kept_waiting():
    producer = producer_of(knows=False)
    with together(producer)():
        producer._sender.wakeup()
        assert producer._sender.woken == 1
