"""Modelled Kafka clients: a member of the group that reads `tasks`, a reader of `outcomes`, and a producer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import IllegalGenerationError, KafkaTimeoutError

from scylla_spark.core.records.fact import decode
from tests.simulation.records import RawRecord

if TYPE_CHECKING:
    from tests.simulation.process import Process


def _end_of_poll(process: Process, begin: int, end: int) -> int:
    """Up to where one poll reads."""
    world = process.world
    most = world.profile.trouble.records
    return world.rng.randint(begin, min(end, begin + most) if most and not world.calm else end)


def _perhaps_without_leader(process: Process) -> None:
    """Now and then a partition does not say where it ends."""
    world = process.world
    if world.leaders is not None and not world.calm and world.leaders.random() < 0.1:
        raise KafkaTimeoutError("modelled")


class ModelMember:
    """The consumer of `tasks`, a member of the group."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.places: dict[int, int] = {}  # partition → position
        self._paused: set[TopicPartition] = set()
        self._coordinator = SimpleNamespace(heard_us=0)

    def has_news(self) -> bool:
        return any(position < len(self._process.world.tasks[number]) for number, position in self.places.items())

    def heartbeat(self) -> None:
        if self._process.member:
            self._coordinator.heard_us = self._process.world.now

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition("tasks", number) for number in self.places}

    def paused(self) -> set[TopicPartition]:
        return {place for place in self._paused if place.partition in self.places}

    def pause(self, *places: TopicPartition) -> None:
        self._paused.update(places)

    def resume(self, *places: TopicPartition) -> None:
        self._paused.difference_update(places)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.places[place.partition] = offset

    def position(self, place: TopicPartition) -> int:
        return self.places[place.partition]

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        found = {}
        for place in sorted(self.assignment() - self._paused):
            log, begin = self._process.world.tasks[place.partition], self.places[place.partition]
            end = _end_of_poll(self._process, begin, len(log))
            if records := [record for record in log[begin:end] if not record.is_mark]:
                found[place] = records
            self.places[place.partition] = end
        return found

    def commit(self, _offsets: object, timeout_ms: int) -> None:
        world = self._process.world
        if not self._process.member or (not world.profile.faultless and world.rng.random() < 0.02):
            raise IllegalGenerationError("modelled")

    def end_offsets(self, places: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        world = self._process.world
        _perhaps_without_leader(self._process)
        behind = world.broken("starts_behind_the_tail")
        return {place: 0 if behind else len(world.tasks[place.partition]) for place in places}


class ModelReader:
    """The consumer of `outcomes`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._positions: dict[int, int] = {}

    def has_news(self) -> bool:
        logs = self._process.world.raw_outcomes
        return any(position < len(logs[number]) for number, position in self._positions.items())

    def reads(self, number: int) -> bool:
        return number in self._positions

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._positions = {place.partition: self._positions.get(place.partition, 0) for place in places}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._positions[place.partition] = offset

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[RawRecord]]:
        found = {}
        for number, begin in self._positions.items():
            log = self._process.world.raw_outcomes[number]
            end = _end_of_poll(self._process, begin, len(log))
            if end > begin:
                found[TopicPartition("outcomes", number)] = log[begin:end]
                self._positions[number] = end
        return found

    def position(self, place: TopicPartition) -> int:
        return self._positions[place.partition]

    def end_offsets(self, places: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        _perhaps_without_leader(self._process)
        return {place: len(self._process.world.raw_outcomes[place.partition]) for place in places}


class ModelFuture:
    """What a producer returns."""

    def __init__(self) -> None:
        self.offset = -1  # where the record stands, once it has landed
        self.succeed: Callable[[], object] = lambda: None
        self.fail: Callable[[BaseException], object] = lambda _error: None

    def add_callback(self, call: Callable[[object], object]) -> None:
        self.succeed = lambda: call(SimpleNamespace(offset=self.offset))

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        self.fail = call


class ModelProducer:
    """Sends in order; what has left the process arrives even if the process stops, perhaps after it was reported as failed."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._groups: dict[int, list[tuple[bytes, ModelFuture]]] = {}

    def send(self, topic: str, value: bytes, partition: int, key: bytes | None = None) -> ModelFuture:
        if key is not None and topic == "tasks":
            return self._send_task(key, value, partition)
        self._process.world.judge.sends(self._process, partition, value)
        future = ModelFuture()
        group = self._groups.setdefault(partition, [])
        group.append((value, future))
        if len(group) == 1:
            self._process.world.after(0, lambda: self._go(partition))
        return future

    def _send_task(self, key: bytes, value: bytes, partition: int) -> ModelFuture:
        """A follow-up; it may arrive although it is reported as failed, or although the process has ended."""
        process, world, future = self._process, self._process.world, ModelFuture()
        fails = not world.calm and world.rng.random() < world.profile.trouble.send
        if not fails or world.rng.random() < 0.5:
            delay = world.jitter(2, 6000 if fails else 40)
            world.after(delay, lambda: world.append_task(partition, key, value))
        if fails:
            process.later(world.jitter(500, 3000), lambda: future.fail(KafkaTimeoutError("modelled")))
        else:
            process.later(delay + world.jitter(1, 5), lambda: future.succeed())
        return future

    def _go(self, partition: int) -> None:
        world = self._process.world
        group = self._groups.pop(partition)
        if not world.calm and world.rng.random() < world.profile.trouble.send:
            self._fail(partition, group)
            return
        delay = world.jitter(2, 40)
        for value, future in group:
            world.after(delay, lambda value=value, future=future: self._land(partition, value, future))
            self._process.later(
                delay + world.jitter(1, 5), lambda f=future, v=value: self._acknowledged(partition, f, v)
            )

    def _land(self, partition: int, value: bytes, future: ModelFuture) -> None:
        world = self._process.world
        future.offset = len(world.outcomes[partition])
        world.append_outcome(partition, value)

    def _fail(self, partition: int, group: list[tuple[bytes, ModelFuture]]) -> None:
        process, world = self._process, self._process.world
        landed, landing = world.rng.randint(0, len(group)), world.jitter(2, 6000)
        for value, _ in group[:landed]:
            world.after(landing, lambda value=value: world.append_outcome(partition, value))
        for _, future in group:
            process.later(world.jitter(500, 3000), lambda f=future: f.fail(KafkaTimeoutError("modelled")))

    def _acknowledged(self, number: int, future: ModelFuture, value: bytes) -> None:
        partition = self._process.engine.partitions.get(number)
        if partition is not None and self._process.world.broken("acts_on_sends"):
            for fact in decode(value).facts:
                self._process.engine._outcomes._apply(
                    partition, fact, len(self._process.world.outcomes[number]), self._process.world.now
                )
        future.succeed()
