"""Requests that wait for something to happen: none of them holds a thread, and there are not too many at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from scylla_spark.api import problems
from scylla_spark.api.follow.recent_records import OutcomeEvent
from scylla_spark.api.follow.records_tail import LogTail, answers
from scylla_spark.api.http.request_slots import waiting
from scylla_spark.api.problems import Problem
from scylla_spark.core.tasks.key import TaskKey

_LOOK_S: Final = 0.2
_Future = asyncio.Future[bool]
_Waiter = tuple[asyncio.AbstractEventLoop, _Future]


class Waits:
    """The requests that wait for tasks and for answers.

    Args:
        tail: tells of what happens.
        most: waits at once.
    """

    def __init__(self, tail: LogTail, most: int) -> None:
        self._tail = tail
        self._most = most
        self._count = 0
        self._lock = threading.Lock()
        self._waiters: dict[TaskKey | str, set[_Waiter]] = {}

    def has_room(self) -> bool:
        """Returns whether another request may wait."""
        return self._count < self._most

    @contextmanager
    def room(self) -> Iterator[None]:
        """As long as this lasts, one more waits.

        Raises:
            Problem: too many do.
        """
        if not self.has_room():
            raise Problem(problems.BUSY, f"{self._most} requests are waiting.", hint="Try again without a wait.")
        self._count += 1
        try:
            with waiting():
                yield
        finally:
            self._count -= 1

    async def ended(self, key: TaskKey, partition: int, timeout_s: float) -> bool:
        """Waits for the end of a task; whether it came in time. One that the tables hold is not seen: look there first.

        Args:
            key: of the task.
            partition: of its records.
            timeout_s: how long, at most.
        """
        async with self.waiting(key) as future:
            return self._tail.ended(key, partition) is not None or await came(future, timeout_s)

    async def visible(self, partition: int, offset: int, timeout_s: float) -> bool:
        """Waits until the tables hold a record of `tasks`; whether they did in time.

        Args:
            partition: of the record.
            offset: of the record.
            timeout_s: how long, at most.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        with self.room():
            while True:
                mark = self._tail.marks().get(partition)
                if mark is not None and mark.tasks_offset > offset:
                    return True
                if loop.time() >= until:
                    return False
                await asyncio.sleep(min(_LOOK_S, max(until - loop.time(), 0)))

    @asynccontextmanager
    async def waiting(self, *names: TaskKey | str) -> AsyncIterator[_Future]:
        """Gives a future that is done when a task of these keys ends, or a request of these ids is answered.

        It is false where that may have happened unheard: look how things stand.

        Raises:
            Problem: too many wait.
        """
        loop = asyncio.get_running_loop()
        waiter = (loop, loop.create_future())
        with self.room():
            with self._lock:
                if not self._waiters:
                    self._tail.listen(self._heard, self._missed)
                for name in names:
                    self._waiters.setdefault(name, set()).add(waiter)
            try:
                yield waiter[1]
            finally:
                self._leave(names, waiter)

    def _leave(self, names: tuple[TaskKey | str, ...], waiter: _Waiter) -> None:
        with self._lock:
            for name in names:
                self._waiters[name].discard(waiter)
                if not self._waiters[name]:
                    del self._waiters[name]
            if not self._waiters:
                self._tail.leave(self._heard)

    def _heard(self, happened: OutcomeEvent) -> None:
        """In the tail's thread."""
        names: list[TaskKey | str] = [fact.key for fact in happened.facts if fact.terminal]
        names += [fact.request_id for fact in answers(happened) if fact.request_id is not None]
        with self._lock:
            woken = [one for name in names for one in self._waiters.get(name, ())]
        _wake(woken, heard=True)

    def _missed(self) -> None:
        """In the tail's thread."""
        with self._lock:
            woken = [one for waiters in self._waiters.values() for one in waiters]
        _wake(woken, heard=False)


def _wake(waiters: Iterable[_Waiter], *, heard: bool) -> None:
    for loop, future in waiters:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(_done, future, heard)


def _done(future: _Future, heard: bool) -> None:
    if not future.done():
        future.set_result(heard)


async def came(future: _Future, timeout_s: float) -> bool:
    """Returns whether a future was done within so many seconds."""
    try:
        return await asyncio.wait_for(future, timeout_s)
    except TimeoutError:
        return False
