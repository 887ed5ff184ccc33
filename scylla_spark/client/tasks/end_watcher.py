"""Watches the ends of any number of tasks for coroutines, with one thread that lives while there is something to wait for.

The log is followed before the tables are asked, so no end is missed. Both are asked again now and then: other callers share the
reader of the log, and may have begun it anew behind an end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Final

from scylla_spark.client.connection import Connection
from scylla_spark.clock import boot_us
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey, place_of
from scylla_spark.core.tasks.state import completion_of
from scylla_spark.errors import SchedulerError, UnreachableError

_ROUND_US: Final = 10_000_000
_CATCH_UP_US: Final = 10_000_000
_CLOSED: Final = "The client is closed, so no result can be awaited."
_AGAIN_S: Final = 0.5  # between two questions to a broker that does not answer

_Future = asyncio.Future[Fact | None]


class EndWatcher:
    """Waits for the ends of tasks; each of its coroutines may run in a loop of its own.

    Args:
        connection: to the deployment.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting: dict[TaskKey, list[_Future]] = {}
        self._new: set[TaskKey] = set()
        self._watched: dict[TaskKey, AbstractContextManager[None]] = {}  # used by the thread alone
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    async def end(self, key: TaskKey, limit_s: float | None) -> Fact | None:
        """Returns how a task ended; None: it has not ended within the limit.

        Args:
            key: of the task.
            limit_s: how long to wait, seconds; None: for ever.

        Raises:
            UnreachableError: Kafka did not answer at the begin.
            SchedulerError: the client was closed.
        """
        future: _Future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._closed.is_set():
                raise SchedulerError(_CLOSED)
            self._waiting.setdefault(key, []).append(future)
            self._new.add(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="scylla-spark-ends", daemon=True)
                self._thread.start()
        try:
            return await asyncio.wait_for(future, limit_s)
        except TimeoutError:
            return None
        finally:
            with self._lock:
                left = self._waiting.get(key, [])
                if future in left:
                    left.remove(future)
                if not left:
                    self._waiting.pop(key, None)
                    self._new.discard(key)

    def close(self) -> None:
        """Ends the thread; what still waits fails."""
        self._closed.set()
        with self._lock:
            thread = self._thread
            keys = list(self._waiting)
        if thread is not None:
            thread.join(timeout=15)
        self._fail(keys, SchedulerError(_CLOSED))

    # -- the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        round_us = boot_us() + _ROUND_US
        try:
            while True:
                begins = boot_us() >= round_us
                keys = self._next(all_of_them=begins)
                if keys is None:
                    return
                if begins:
                    round_us = boot_us() + _ROUND_US
                try:
                    self._look_up(keys)
                    self._follow(round_us)
                except UnreachableError as error:
                    self._fail(keys & self._unheard(keys), error)
                    round_us = 0  # what was read may be lost
                    self._closed.wait(_AGAIN_S)
        except BaseException as error:
            with self._lock:
                self._end_thread()
                keys = set(self._waiting)
            self._fail(keys, SchedulerError(f"Ends of tasks cannot be watched: {error}."))
            raise

    def _end_thread(self) -> None:
        """The thread ends; the next waiter starts another one. The lock is held."""
        self._thread = None
        for context in self._watched.values():
            context.__exit__(None, None, None)
        self._watched.clear()

    def _next(self, *, all_of_them: bool) -> set[TaskKey] | None:
        """The keys to look up now; None: nothing is left to wait for, and the thread ends."""
        with self._lock:
            if not self._waiting or self._closed.is_set():
                self._end_thread()
                return None
            keys = set(self._waiting) if all_of_them else self._new
            self._new = set()
            gone = self._watched.keys() - self._waiting.keys()
        for key in gone:
            self._watched.pop(key).__exit__(None, None, None)
        return keys

    def _unheard(self, keys: Collection[TaskKey]) -> set[TaskKey]:
        """Keys that were never looked up: who waits for them is told that Kafka does not answer."""
        return {key for key in keys if key not in self._watched}

    def _look_up(self, keys: set[TaskKey]) -> None:
        log, readers = self._connection.log_reader, self._connection.readers
        for partition in sorted({self._partition(key) for key in keys}):
            log.catch_up(partition, boot_us() + _CATCH_UP_US)
        for key in keys - self._watched.keys():
            self._watched[key] = log.watching(key)
            self._watched[key].__enter__()
        for key in readers.completed(keys) if keys else ():
            if (ended := readers.completion(key)) is not None:
                self._resolve(key, ended)

    def _follow(self, until_us: int) -> None:
        """Reads on until a new key is to be looked up, nothing is left, or the round ends."""
        with self._lock:
            first = next(iter(self._waiting), None)
        if first is not None:
            self._connection.log_reader.until(self._partition(first), self._interrupted, until_us)

    def _interrupted(self) -> bool | None:
        log = self._connection.log_reader
        for key in list(self._waiting):
            if (ended := completion_of(log.facts(self._partition(key), key))) is not None:
                self._resolve(key, ended)
        return (bool(self._new) or not self._waiting or self._closed.is_set()) or None

    def _resolve(self, key: TaskKey, ended: Fact) -> None:
        with self._lock:
            futures = self._waiting.pop(key, [])
            self._new.discard(key)
        for future in futures:
            _call(future, lambda one=future: one.done() or one.set_result(ended))

    def _fail(self, keys: Collection[TaskKey], error: SchedulerError) -> None:
        with self._lock:
            futures = [future for key in keys for future in self._waiting.pop(key, [])]
        for future in futures:
            _call(future, lambda one=future: one.done() or one.set_exception(error))

    def _partition(self, key: TaskKey) -> int:
        return place_of(key.ordering_id, self._connection.rules.partitions)


def _call(future: _Future, act: object) -> None:
    try:
        future.get_loop().call_soon_threadsafe(act)  # type: ignore[arg-type]
    except RuntimeError:  # its loop is closed
        return
