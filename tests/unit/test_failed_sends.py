"""A broker that refuses what a dispatcher sends is asked again, ever more rarely, and nothing grows meanwhile."""

import random

import pytest
import structlog
from kafka.errors import TopicAuthorizationFailedError

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.fact import Fence, OutcomeRecord
from scylla_spark.core.tables.progress import Mark
from scylla_spark.services.dispatch.dispatcher import Dispatcher, Surroundings
from tests.support.engine_harness import NOW, SECOND, Harness


class Refused:
    """A future of a record that the broker has refused."""

    def add_callback(self, call):
        """It is never called."""

    def add_errback(self, call):
        call(TopicAuthorizationFailedError("outcomes"))


class Taken:
    """A future of a record that stands in its topic."""

    offset = 0

    def add_callback(self, call):
        call(self)

    def add_errback(self, call):
        """It is never called."""


class Broker:
    """A producer whose broker answers at once."""

    def __init__(self):
        self.sent, self.refuses = [], True

    def send(self, topic, value, partition, key):
        self.sent.append(value)
        return Refused() if self.refuses else Taken()


class Tail:
    def certain_until_us(self):
        return 0

    def add(self, *_):
        """Nothing to do."""

    confirm = retake = remove = add


class Site:
    """A dispatcher of one partition, stepped by hand; time passes where it sleeps."""

    def __init__(self):
        self.passed = 0
        surroundings = Surroundings(lambda: NOW + self.passed, lambda: self.passed, None, None, random.Random(1))
        self.dispatcher = Dispatcher(Settings(_env_file=None, partitions=1), {}, lambda _mailbox: surroundings)
        self.broker = Broker()
        self.dispatcher.use(self.broker, Tail(), Tail())
        self.tenure = self.dispatcher.engine.assign(0, Mark(), NOW)
        self.dispatcher.engine.noted_end(self.tenure, 0, NOW)

    def let_pass(self, seconds):
        until = self.passed + seconds * SECOND
        while self.passed < until:
            self.dispatcher.step()
            waits = bool(self.dispatcher.mailbox._messages)
            wake = self.passed if waits else max(self.dispatcher.next_wake() - NOW, self.passed + 1)
            self.passed = min(wake, until)


@pytest.fixture
def site():
    return Site()


def test_who_is_refused_waits_ever_longer_and_says_it_once(site):
    with structlog.testing.capture_logs() as logged:
        site.let_pass(1)
        assert len(site.broker.sent) <= 5
        site.let_pass(99)
        assert len(site.broker.sent) <= 27
    assert [line["event"] for line in logged] == ["send failed, tried again until it succeeds"]
    assert len(site.broker.sent) > 20, "it goes on"


def test_what_is_taken_ends_the_trouble_and_the_next_one_begins_anew(site):
    with structlog.testing.capture_logs() as logged:
        site.let_pass(60)
        site.broker.refuses = False
        site.let_pass(6)
        site.broker.refuses = True
        tries = len(site.broker.sent)
        site.dispatcher.engine.doubt(NOW + site.passed)
        site.let_pass(1)
    assert len(site.broker.sent) - tries >= 4
    assert [line["event"].split(",")[0] for line in logged] == ["send failed", "sends succeed again", "send failed"]


def test_of_a_partition_that_has_gone_nothing_is_tried_or_kept(site):
    site.let_pass(10)
    tries = len(site.broker.sent)
    site.dispatcher.engine.drop(0)
    site.let_pass(20)
    assert len(site.broker.sent) == tries
    assert site.dispatcher._failed_sends._rows == {}
    assert site.dispatcher._failed_sends._later == []


def test_each_fence_of_a_tenure_is_known_however_many_there_were():
    world = Harness()
    for _ in range(1_000):
        world.engine.sent(world.tenure, world.partition.mine, ok=False, now=NOW)
    early = next(item.fence for item in world.engine.take_actions())
    world.append(OutcomeRecord(early, "fence"))
    assert world.engine.held(world.tenure) is world.partition, "it is an early one of its own"
    world.append(OutcomeRecord(Fence(world.partition.mine.epoch - 1, "somebody else"), "fence"))
    assert world.engine.held(world.tenure) is None
