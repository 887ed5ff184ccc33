"""The client for asyncio: its calls, and thousands of results that wait in one loop with one thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, contextmanager
from types import SimpleNamespace

import pytest

from scylla_spark.client.async_scheduler import AsyncHandle, AsyncScheduler, AsyncTaskHandle
from scylla_spark.client.queues.handle import QueueHandle
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Failure
from scylla_spark.errors import SchedulerError, TaskFailed, UnreachableError, WaitTimeoutError

NOW = 1_800_000_000_000_000
MANY = 10_000


def key(number: int) -> TaskKey:
    return TaskKey(NOW, f"lane-{number % 7}", f"key-{number}")


def end(number: int, **fields) -> Fact:
    return Fact(key(number), 1, "succeeded", NOW, NOW, NOW, 1, result=str(number))._replace(**fields)


class Log:
    """A log without a broker: what is appended is read by the next slice."""

    def __init__(self) -> None:
        self.read: dict[TaskKey, list[Fact]] = {}
        self.down = False
        self.most_watched = self.watched = 0
        self._new = threading.Condition()

    def append(self, *facts: Fact) -> None:
        with self._new:
            for fact in facts:
                self.read.setdefault(fact.key, []).append(fact)
            self._new.notify_all()

    @contextmanager
    def watching(self, key):
        self.watched += 1
        self.most_watched = max(self.most_watched, self.watched)
        yield
        self.watched -= 1

    def facts(self, partition, key):
        return self.read.get(key, [])

    def catch_up(self, partition, deadline):
        if self.down:
            raise UnreachableError("Kafka does not answer.")

    def until(self, partition, look, deadline):
        with self._new:
            while (found := look()) is None:
                self._new.wait(0.01)
        return found


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def stored():
    """Ends that the tables hold."""
    return {}


@pytest.fixture
def scheduler(log, stored):
    readers = SimpleNamespace(completed=lambda keys: keys & stored.keys(), completion=stored.get)
    connection = SimpleNamespace(log_reader=log, readers=readers, rules=SimpleNamespace(partitions=4))
    inner = SimpleNamespace(
        connection=connection,
        task=lambda key: TaskHandle(connection, key),
        enqueue=lambda handler, payload, **options: TaskHandle(connection, key(payload["number"])),
        queue=lambda name, author: QueueHandle(connection, name, author, None),
        list_tasks=lambda where, limit: (where, limit, threading.current_thread() is threading.main_thread()),
        retried=lambda: TaskHandle(connection, key(1)),
        close=lambda: None,
    )
    return AsyncScheduler(inner)


def test_ten_thousand_results_wait_in_one_loop_with_one_thread(scheduler, log):
    async def run():
        before = threading.active_count()
        waits = [asyncio.create_task(scheduler.task(key(number)).result()) for number in range(MANY)]
        while log.watched < MANY:
            await asyncio.sleep(0)
        assert threading.active_count() == before + 1
        log.append(*map(end, range(MANY)))
        assert await asyncio.gather(*waits) == list(range(MANY))
        await scheduler.close()

    asyncio.run(run())
    assert (log.watched, log.most_watched) == (0, MANY)


def test_an_end_that_the_tables_hold_is_found_and_a_failure_is_raised(scheduler, log, stored):
    stored[key(1)] = end(1)
    failed = end(2, outcome="failed", result=None, failure=Failure("OSError", "no route"))

    async def run():
        assert await scheduler.task(key(1)).result("1m") == 1
        log.append(failed)
        with pytest.raises(TaskFailed, match="no route"):
            await scheduler.task(key(2)).result("1m")

    asyncio.run(run())


def test_several_may_wait_for_one_task_and_one_that_gives_up_takes_nothing_from_the_others(scheduler, log):
    async def run():
        handle = scheduler.task(key(3))
        waits = [asyncio.create_task(handle.result()) for _ in range(3)]
        with pytest.raises(WaitTimeoutError, match="has not ended within"):
            await handle.result("1ms")
        waits[0].cancel()
        await asyncio.wait([waits[0]])
        log.append(end(3))
        assert await asyncio.gather(*waits[1:]) == [3, 3]

    asyncio.run(run())


def test_a_broker_that_does_not_answer_at_the_begin_is_said_and_one_that_is_lost_later_is_waited_for(scheduler, log):
    async def run():
        log.down = True
        with pytest.raises(UnreachableError):
            await scheduler.task(key(4)).result("1m")
        log.down = False
        early = asyncio.create_task(scheduler.task(key(5)).result())
        while not log.watched:
            await asyncio.sleep(0)
        log.down = True
        with pytest.raises(UnreachableError):
            await scheduler.task(key(6)).result("1m")
        assert not early.done()
        log.down = False
        log.append(end(5))
        assert await early == 5

    asyncio.run(run())


def test_a_client_that_is_closed_leaves_no_result_waiting(scheduler, log):
    async def run():
        waiting = asyncio.create_task(scheduler.task(key(7)).result())
        while not log.watched:
            await asyncio.sleep(0)
        await scheduler.close()
        for one in (waiting, scheduler.task(key(8)).result()):
            with pytest.raises(SchedulerError, match="is closed"):
                await one

    asyncio.run(run())
    assert log.watched == 0


def test_all_other_calls_run_in_threads_and_their_handles_are_awaited_too(scheduler):
    async def run():
        handle = await scheduler.enqueue("h", {"number": 9})
        assert (type(handle), handle.key) == (AsyncTaskHandle, key(9))
        assert await scheduler.list_tasks("state:open", limit=3) == ("state:open", 3, False)
        assert type(await scheduler.retried()) is AsyncTaskHandle
        assert type(scheduler.queue("mail")) is AsyncHandle
        assert scheduler.queue("mail").name == "mail"
        with pytest.raises(AttributeError):
            _ = scheduler.nothing

    asyncio.run(run())


class Leasing:
    """A worker without a server: it gives what is put, until it is stopped."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.stopped = threading.Event()
        self.events: list[str] = []

    def stop(self):
        self.stopped.set()

    def leases(self, n):
        try:
            while not self.stopped.is_set():
                if self.left:
                    yield self.left.pop(0)
                else:
                    self.stopped.wait(0.01)
        finally:
            self.events.append(f"closed with {len(self.left)} left of {n}")


def test_leases_come_one_after_the_other_and_leaving_the_loop_ends_the_worker(scheduler):
    worker = Leasing()
    worker.left = ["a", "b", "c"]

    async def run():
        async with aclosing(scheduler.leases(worker, n=3)) as leases:
            return [await anext(leases), await anext(leases)]

    assert asyncio.run(run()) == ["a", "b"]
    assert (worker.events, worker.stopped.is_set()) == (["closed with 1 left of 3"], True)


def test_a_loop_that_is_cancelled_while_nothing_is_there_to_lease_ends_the_worker(scheduler):
    worker = Leasing()

    async def run():
        async def work():
            async with aclosing(scheduler.leases(worker, n=1)) as leases:
                async for lease in leases:
                    worker.events.append(lease)

        task = asyncio.create_task(work())
        worker.left.append("a")
        while not worker.events:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(run())
    assert worker.events == ["a", "closed with 0 left of 1"]
