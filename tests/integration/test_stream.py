"""The stream against a real broker and tables: what it cannot tell it says, and what it was told of nobody loses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaConnectionError

from scylla_spark.api.follow.records_tail import LogTail
from scylla_spark.api.follow.stream import _Reader
from scylla_spark.api.follow.stream_positions import read_positions
from scylla_spark.api.follow.waits import Waits
from scylla_spark.api.problems import Problem
from scylla_spark.client.scheduler import Scheduler
from scylla_spark.core.records.fact import Fact, Fence, encode_facts, encode_fence
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import UnreachableError
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import admin
from scylla_spark.schemas import PROGRESS
from tests.support.delta_tables import append, at, make
from tests.support.shared_broker import settings_on

FENCE = Fence(1, "n")
_SOON_S = 60


class Tables(TableReader):
    """Tables whose marks cannot be read while they are `away`."""

    away = False
    asked = 0  # while they were away

    def marks(self):
        if self.away:
            self.asked += 1
            raise UnreachableError("The tables are away.")
        return super().marks()


class Tail(LogTail):
    """A tail that Kafka does not answer while it is `cut_off`."""

    cut_off = False

    def _begin(self, *asked):
        self._check()
        return super()._begin(*asked)

    def _take(self, *found):
        self._check()
        super()._take(*found)

    def _check(self):
        if self.cut_off:
            raise KafkaConnectionError("It is cut off.")


class World:
    """One partition, its owner, and the API's part that follows it."""

    def __init__(self, settings, scheduler):
        self.settings = settings
        self.connection = scheduler.connection
        self.tables = self.connection.readers = Tables(settings.tables_path)
        self.tail = Tail(self.connection)
        self.waits = Waits(self.tail, 10)
        self.api = SimpleNamespace(tail=self.tail, waits=self.waits, scheduler=scheduler)
        self.producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers)
        self.end = self.write(encode_fence(FENCE, "", 0))

    def write(self, value):
        return self.producer.send(self.settings.topics.outcomes, value, partition=0).get(10).offset + 1

    def say(self, *names):
        for name in names:
            (value,) = encode_facts(FENCE, [Fact(key(name), 1, "succeeded")])
            self.end = self.write(value)

    def ingest(self):
        """The tables hold all that was said."""
        append(
            self.settings.tables_path, PROGRESS,
            [{"topic": "outcomes", "partition_id": 0, "next_offset": self.end, "epoch": FENCE.epoch, "nonce": FENCE.nonce}],
        )  # fmt: skip

    async def cut_off_while(self, *names):
        """The tail loses its place; meanwhile tasks end, and ingest stores them."""
        self.tables.away = self.tail.cut_off = True  # it begins anew once both are back
        await until(lambda: not self.tail.places())
        self.say(*names)
        if names:
            self.ingest()
        self.tables.away = self.tail.cut_off = False


def key(name):
    return TaskKey(at(10), "lane", name)


async def until(condition):
    async with asyncio.timeout(_SOON_S):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.fixture
def world(broker, tmp_path):
    make(f"{tmp_path}/tables", partitions=1)
    settings = settings_on(broker, tmp_path, partitions=1)
    ensure_topics(settings)
    with Scheduler(settings) as scheduler:
        world = World(settings, scheduler)
        world.tail.start()
        yield world
        world.tail.stop()
        world.producer.close()


class Told:
    """What a reader was told, as a browser keeps it: events, and the last id."""

    def __init__(self, world, last=""):
        begin = read_positions(last, 1) if last else None
        self._reader = _Reader(world.api, begin)
        self.id = last
        self.events = []

    async def begin(self):
        await self._reader.begin()
        self._texts = self._reader.events()
        await self._next()
        return self

    async def _next(self):
        text = (await anext(self._texts)).decode()
        for line in text.splitlines():
            word, _, rest = line.partition(": ")
            if word == "id":
                self.id = rest
            elif word == "data":
                self.events.append(json.loads(rest))

    async def hears(self, count):
        async with asyncio.timeout(_SOON_S):
            while len(self.events) < count:
                await self._next()
        return self.names

    async def ends(self):
        async with asyncio.timeout(_SOON_S):
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    await self._next()
        self._reader.end()
        return self.names

    @property
    def names(self):
        return [event.get("uniqueness_key", event) for event in self.events]


def test_who_listens_while_the_tail_loses_its_place_is_ended_and_misses_nothing(world):
    async def play():
        told = await Told(world).begin()
        silent = await Told(world).begin()
        world.say("before")
        assert await told.hears(1) == ["before"]
        await world.cut_off_while("during", "during too")
        await until(world.tail.places)
        world.say("after")
        assert await told.ends() == ["before"]
        again = await Told(world, told.id).begin()
        assert await again.hears(3) == ["during", "during too", "after"]
        await silent.ends()
        assert silent.id, "who has heard of nothing yet has a place all the same"

    asyncio.run(play())


def test_the_logs_are_followed_while_the_tables_do_not_answer(world):
    async def play():
        told = await Told(world).begin()
        world.tables.away = True
        await until(lambda: world.tables.asked)
        world.say("one")
        assert await told.hears(1) == ["one"]
        world.tables.away = False
        world.ingest()
        await until(lambda: world.tail.marks().get(0, Mark()).outcomes_offset == world.end)

    asyncio.run(play())


def test_a_tail_that_begins_anew_at_or_before_what_it_told_ends_nobody_and_tells_nothing_twice(world):
    async def play():
        told = await Told(world).begin()
        world.say("one", "two")
        await told.hears(2)
        await world.cut_off_while()
        world.say("three")
        assert await told.hears(3) == ["one", "two", "three"]

    asyncio.run(play())


def test_who_waits_for_an_end_that_nobody_will_hear_of_is_told_to_look(world):
    async def play():
        async with world.waits.waiting(key("during")) as future:
            await until(world.tail.places)
            await world.cut_off_while("during")
            async with asyncio.timeout(_SOON_S):
                assert await future is False

    asyncio.run(play())


def test_what_kafka_has_let_go_of_is_named(world):
    world.say("gone", "gone too", "kept")
    world.ingest()
    with contextlib.closing(admin(world.settings)) as kafka:
        kafka.delete_records({TopicPartition(world.settings.topics.outcomes, 0): world.end - 1})

    async def play():
        told = await Told(world, "0:1.1").begin()
        gap = {"partition": 0, "first_offset": 1, "next_offset": world.end - 1}
        assert await told.hears(2) == [gap, "kept"]
        assert told.id == f"0:{world.end}.1"

    asyncio.run(play())


def test_a_place_beyond_the_end_of_the_log_is_refused(world, monkeypatch):
    monkeypatch.setattr("scylla_spark.api.follow.stream._BEGIN_S", 3)

    async def play():
        with pytest.raises(Problem) as refused:
            await Told(world, f"0:{world.end + 5}.1").begin()
        return refused.value

    assert "beyond the end of the log" in str(asyncio.run(play()).detail)
