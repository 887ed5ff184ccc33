"""The client for asyncio: the same scheduler, whose calls wait in threads, and whose results all wait in one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, Self, Unpack

from typing_extensions import TypeVar

from scylla_spark.client.queues.handle import QueueHandle
from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.schedules.handle import ScheduleHandle
from scylla_spark.client.tasks.end_watcher import EndWatcher
from scylla_spark.client.tasks.handle import TaskHandle, not_ended
from scylla_spark.core.tasks.enqueue_options import EnqueueOptions
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.duration import duration_us

H = TypeVar("H", default=Any)


class AsyncHandle(Generic[H]):
    """A handle whose methods are awaited: each runs in a thread. `handle` is the handle itself.

    Args:
        handle: of a task, a schedule or a queue.
        ends: watches the ends of tasks.
    """

    def __init__(self, handle: H, ends: EndWatcher) -> None:
        self.handle = handle
        self._ends = ends

    def __repr__(self) -> str:
        return f"Async{self.handle!r}"

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.handle, name)
        return _awaited(value, self._ends) if callable(value) else value


class AsyncTaskHandle(AsyncHandle[TaskHandle]):
    """One task; every method of `TaskHandle`, awaited. Any number of results can be awaited at once: they take no threads."""

    @property
    def key(self) -> TaskKey:
        """The key of the task."""
        return self.handle.key

    async def result(self, timeout: object = None) -> Any:
        """Waits for the end of the task and returns what its handler returned; see `TaskHandle.result`.

        Args:
            timeout: how long to wait (duration); None: for ever.

        Raises:
            TaskFailed: it ended otherwise.
            WaitTimeoutError: it has not ended in time; it goes on.
            UnreachableError: Kafka does not answer at the begin.
        """
        limit_s = None if timeout is None else duration_us(timeout) / 1e6
        ended = await self._ends.end(self.key, limit_s)
        if ended is None:
            raise not_ended(self.key, timeout)
        return self.handle.value_of(ended)


class AsyncScheduler:
    """A `Scheduler` for asyncio. Every method of `Scheduler` can be awaited; handles that it returns are handles to await, too.

    Args:
        scheduler: does the work; it may be used beside this one.

    Attributes:
        scheduler: as given.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._ends = EndWatcher(scheduler.connection)

    @classmethod
    def connect(cls, settings: Any = None, **options: Any) -> Self:
        """A client of a deployment that exists; see `Scheduler.connect`."""
        return cls(Scheduler.connect(settings, **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Sends what is under way and closes the connections; idempotent."""
        await asyncio.to_thread(self._ends.close)
        await asyncio.to_thread(self.scheduler.close)

    async def enqueue(self, handler: Any, payload: Any = None, **options: Unpack[EnqueueOptions]) -> AsyncTaskHandle:
        """Enqueues one task; when this returns, Kafka has acknowledged it. See `Scheduler.enqueue`."""
        handle = await asyncio.to_thread(lambda: self.scheduler.enqueue(handler, payload, **options))
        return AsyncTaskHandle(handle, self._ends)

    def task(self, key: TaskKey | str) -> AsyncTaskHandle:
        """A handle on a task, by key or by the key's text form; asks nobody yet."""
        return AsyncTaskHandle(self.scheduler.task(key), self._ends)

    def schedule(self, name: str, *, author: str = "") -> AsyncHandle[ScheduleHandle]:
        """A handle on a schedule, by name; asks nobody yet."""
        return AsyncHandle(self.scheduler.schedule(name, author=author), self._ends)

    def queue(self, name: str, *, author: str = "") -> AsyncHandle[QueueHandle]:
        """A handle on a queue, by name; asks nobody yet."""
        return AsyncHandle(self.scheduler.queue(name, author=author), self._ends)

    async def leases(self, worker: Any, **options: Any) -> AsyncIterator[Any]:
        """Yields the leases of a `Worker` one after the other; each turn waits in a thread. Its calls may be awaited by `to_thread`.

        Leaving the loop stops the worker, reports what is left to report, and gives back what was not worked on. Close this
        generator (`contextlib.aclosing`), so that this happens at once.

        Args:
            worker: leases over HTTP; it does nothing else meanwhile.
            **options: as `Worker.leases` takes them.
        """
        turns = worker.leases(**options)
        turn: asyncio.Future[Any] | None = None
        try:
            while True:
                turn = asyncio.ensure_future(asyncio.to_thread(next, turns, None))
                lease = await asyncio.shield(turn)
                if lease is None:
                    return
                yield lease
        finally:
            worker.stop()
            if turn is not None:
                await asyncio.wait([turn])
            await asyncio.to_thread(turns.close)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.scheduler, name)
        return _awaited(value, self._ends) if callable(value) else value


def _awaited(call: Callable[..., Any], ends: EndWatcher) -> Callable[..., Awaitable[Any]]:
    """The same call in a thread; what it gives bit by bit is a list, and a handle is one to await."""

    def made(*arguments: Any, **options: Any) -> Any:
        found = call(*arguments, **options)
        if isinstance(found, TaskHandle):
            return AsyncTaskHandle(found, ends)
        if isinstance(found, QueueHandle | ScheduleHandle):
            return AsyncHandle(found, ends)
        return list(found) if isinstance(found, Iterator) else found

    async def called(*arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(made, *arguments, **options)

    return called
