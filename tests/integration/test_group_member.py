"""Our group member joins in the end, whatever the metadata does meanwhile."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka import AsyncConsumerRebalanceListener, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import LeaderNotAvailableError
from kafka.net.selector import KernelEvent
from kafka.structs import MemberState

from scylla_spark.io.kafka.client_patches import Assignor, rejoining
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import consumer
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually

PARTITIONS = 3


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    settings = settings_on(broker, tmp_path_factory.mktemp("member"), partitions=PARTITIONS)
    ensure_topics(settings)
    return settings


class _Unknowing:
    """A cluster whose metadata is still under way."""

    def topics(self):
        return set()

    def partitions_for_topic(self, _topic):
        return None


def member(settings, name, assignor=Assignor, listener=None):
    group = f"{settings.dispatch.group_id}-{name}"
    options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000, "auto_offset_reset": "earliest"}
    found = consumer(settings, group_id=group, partition_assignment_strategy=(assignor,), **options)
    found.subscribe([settings.topics.tasks], listener=listener)
    return found


def polled(reader, done, within):
    """Polls as the tail does, until it is done or time is over."""
    deadline = time.monotonic() + within
    while not done() and time.monotonic() < deadline:
        reader.poll(timeout_ms=100)
    return done()


def joined(reader):
    (topic,) = reader.subscription()
    everything = {TopicPartition(topic, number) for number in range(PARTITIONS)}
    return reader.group_metadata().state is MemberState.STABLE and reader.assignment() == everything


def changed_metadata(reader):
    """The leader finds other partitions than it assigned, and the join that follows outlives the poll."""
    assert polled(reader, lambda: joined(reader), 20)
    coordinator = reader._coordinator
    coordinator._assignment_snapshot = {topic: set() for topic in reader.subscription()}
    reader.poll(timeout_ms=0)
    eventually(
        lambda: coordinator._assignment_snapshot == coordinator._metadata_snapshot,
        20,
        "the assignment is done anew meanwhile, so nothing seems to have changed",
    )
    assert reader.group_metadata().state is MemberState.REBALANCING


def test_kafka_pythons_own_forgets_a_join_that_outlives_a_poll(settings):
    with member(settings, "theirs") as reader:
        changed_metadata(reader)
        assert not polled(reader, lambda: joined(reader), 3), "it is mended there: `rejoining` can go"


def test_a_join_that_outlives_a_poll_is_ended_by_the_next(settings):
    with rejoining(member(settings, "ours")) as reader:
        changed_metadata(reader)
        assert polled(reader, lambda: joined(reader), 40)


@pytest.mark.parametrize("assignor", [Assignor, CooperativeStickyAssignor])
def test_a_leader_without_metadata_assigns_nothing_only_in_kafka_pythons_own(settings, assignor):
    with rejoining(member(settings, f"leader-{assignor.__name__}", assignor)) as reader:
        assigned = []
        own = reader._coordinator._assignors["cooperative-sticky"]

        def assign(cluster, members):
            try:
                given = assignor.assign(own, cluster if assigned else _Unknowing(), members)
            except LeaderNotAvailableError as error:
                assigned.append(error)
                raise
            assigned.append({place for one in given.values() for place in one.partitions()})
            return given

        own.assign = assign
        assert polled(reader, lambda: joined(reader), 20)
        assert (set() in assigned) == (assignor is CooperativeStickyAssignor)


class _SlowToLetGo(AsyncConsumerRebalanceListener):
    """Takes long over a revocation, as a drain does, and notes when the group last heard of the member meanwhile."""

    def __init__(self):
        self.reader = None
        self.heard = []

    async def on_partitions_assigned(self, assigned):
        pass

    async def on_partitions_lost(self, lost):
        pass

    async def on_partitions_revoked(self, revoked):
        until = time.monotonic() + 9
        while revoked and time.monotonic() < until:
            await KernelEvent("_sleep", 0.2)
            self.heard.append(self.reader._coordinator.heard_us)


def test_a_member_is_heard_of_while_it_takes_long_to_let_go_of_partitions(settings):
    listener = _SlowToLetGo()
    with rejoining(member(settings, "slow", listener=listener)) as reader, ThreadPoolExecutor(1) as beside:
        listener.reader = reader
        assert polled(reader, lambda: joined(reader), 20)
        stop = threading.Event()

        def other():
            with rejoining(member(settings, "slow")) as second:
                while not stop.is_set():
                    second.poll(timeout_ms=100)

        ended = beside.submit(other)
        assert polled(reader, lambda: len(reader.assignment()) < 3, 40)
        stop.set()
        ended.result(timeout=30)
    assert listener.heard[-1] - listener.heard[0] > 6_000_000, "longer than its session"
