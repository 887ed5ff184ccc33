"""A partition without a leader, while it is being taken: its take waits, others go on, and nothing ends."""

from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.action import Confirm
from scylla_spark.core.records.command import Rules
from scylla_spark.core.records.fact import Fence
from scylla_spark.core.tables.progress import Tenure
from scylla_spark.services.dispatch.outcomes_tail import OutcomesTail
from scylla_spark.services.dispatch.partition_ends import AGAIN_US, PartitionEnds
from scylla_spark.services.dispatch.tasks_tail import TasksTail

SECOND = 1_000_000


class Consumer:
    """Of four partitions; some have no leader, and whoever asks where one of them ends is kept waiting in vain."""

    def __init__(self, topic):
        self.places = [TopicPartition(topic, number) for number in range(4)]
        self.without = set()
        self.asked = []

    def end_offsets(self, places, timeout_ms):
        self.asked.append([place.partition for place in places])
        if self.without.intersection(self.asked[-1]):
            raise KafkaTimeoutError(f"Failed to get offsets by timestamps in {timeout_ms} ms")
        return {place: 10 + place.partition for place in places}

    def assignment(self):
        return set(self.places)

    def paused(self):
        return set()

    def poll(self, timeout_ms):
        return {}

    def position(self, place):
        return 0

    def commit(self, offsets, timeout_ms):
        pass

    def assign(self, places):
        pass

    def seek(self, place, offset):
        pass


@pytest.fixture
def clock():
    return SimpleNamespace(now=100 * SECOND)


def test_those_that_answer_are_told_and_one_in_vain_is_not_asked_again_at_once(clock):
    reader, ends = Consumer("tasks"), PartitionEnds(lambda: clock.now)
    reader.without = {1}
    found = {}
    for _ in range(3):
        found |= ends.of(reader, [place for place in reader.places if place not in found])
    assert {place.partition for place in found} == {0, 2, 3}
    assert len([one for one in reader.asked if 1 in one]) == 2, "with all others, and alone"
    clock.now += AGAIN_US
    assert ends.of(reader, reader.places[1:2]) == {}
    reader.without.clear()
    clock.now += AGAIN_US
    assert ends.of(reader, reader.places[1:2]) == {reader.places[1]: 11}
    assert ends.of(reader, reader.places).keys() == set(reader.places)
    assert reader.asked[-1] == [0, 1, 2, 3], "what answered is asked with all others again"


def test_however_many_have_no_leader_one_look_asks_in_vain_twice_at_most(clock):
    reader, ends = Consumer("tasks"), PartitionEnds(lambda: clock.now)
    reader.without = {0, 1, 2}
    for _ in range(20):
        before = len(reader.asked)
        ends.of(reader, reader.places)
        vain = [one for one in reader.asked[before:] if reader.without.intersection(one)]
        assert len(vain) <= 2
        clock.now += SECOND
    reader.without = {0, 1}
    clock.now += AGAIN_US
    found = {}
    for _ in range(4):
        found |= ends.of(reader, reader.places)
    assert {place.partition for place in found} == {2, 3}


def tasks_tail(clock, told):
    engine = SimpleNamespace(partitions={}, confirmed=lambda tenure, fence, end: told.append((tenure, end)))
    mailbox, taker = SimpleNamespace(post=lambda message: message()), SimpleNamespace(choked=lambda: False)
    tail = TasksTail(Settings(_env_file=None), Rules(4), mailbox, engine, taker, dict, clock=lambda: clock.now)
    return tail, lambda tenure: tail.confirm(Confirm(tenure, Fence(tenure.serial, "n")))


def outcomes_tail(clock, told):
    tail = OutcomesTail(
        Settings(_env_file=None), lambda *_: None, lambda tenure, end: told.append((tenure, end)), lambda: clock.now
    )
    return tail, lambda tenure: tail.add(tenure, 0)


@pytest.mark.parametrize(("make", "topic"), [(tasks_tail, "tasks"), (outcomes_tail, "outcomes")])
def test_the_take_of_a_partition_without_a_leader_waits_and_no_other(clock, make, topic):
    told, reader = [], Consumer(topic)
    tail, take = make(clock, told)
    tail.use(reader)
    reader.without = {1}
    for number in range(3):
        take(Tenure(number, 1))
    for _ in range(8):
        clock.now += 3 * SECOND
        tail.turn() if topic == "tasks" else tail.turn(wait_s=0)
    assert sorted(told) == [(Tenure(0, 1), 10), (Tenure(2, 1), 12)]
    reader.without.clear()
    for _ in range(3):
        clock.now += 3 * SECOND
        tail.turn() if topic == "tasks" else tail.turn(wait_s=0)
    assert sorted(told)[1:2] == [(Tenure(1, 1), 11)]
    assert len(told) == 3, "each end is told once"


def test_who_has_left_a_partition_without_a_leader_is_told_nothing(clock):
    told, reader = [], Consumer("outcomes")
    tail, take = outcomes_tail(clock, told)
    tail.use(reader)
    reader.without = {1}
    take(Tenure(1, 1))
    tail.turn(wait_s=0)
    tail.remove(Tenure(1, 1))
    take(Tenure(0, 2))
    reader.without.clear()
    clock.now += AGAIN_US
    tail.turn(wait_s=0)
    assert told == [(Tenure(0, 2), 10)]
