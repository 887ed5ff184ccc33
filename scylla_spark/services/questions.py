"""What the engine asks of the tables: which keys have ended, and the next tasks of a lane. Answered by threads of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import structlog

from scylla_spark.core.action import Reload
from scylla_spark.core.engine import Engine
from scylla_spark.core.feed import ScanRow
from scylla_spark.core.key import TaskKey
from scylla_spark.core.partition import Partition
from scylla_spark.io.openings import Openings
from scylla_spark.io.readers import Readers
from scylla_spark.services.mailbox import Mailbox
from scylla_spark.services.scan import ROWS_PER_MESSAGE

log = structlog.get_logger("dispatch")

T = TypeVar("T")
_AGAIN_S = 1.0


class Questions:
    """Reads and tells the engine; its methods are called in the engine's thread and return at once.

    An answer is told only while the partition is held as it was when the question was asked: to a later take it would be old.

    Args:
        readers: of the tables.
        mailbox: the engine's.
        engine: asks, and is told.
    """

    def __init__(self, readers: Readers, mailbox: Mailbox, engine: Engine) -> None:
        self._readers = readers
        self._openings = Openings(readers)
        self._mailbox = mailbox
        self._engine = engine
        self._stopping = threading.Event()
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="lookup")
        self._loads = ThreadPoolExecutor(
            1, thread_name_prefix="reload"
        )  # these may take seconds: nobody else waits for them
        self._reloads: deque[tuple[Partition, Reload]] = deque()

    def stop(self) -> None:
        """Answers nothing more."""
        self._stopping.set()
        for threads in (self._lookups, self._loads):
            threads.shutdown(wait=False, cancel_futures=True)

    def look_up(self, number: int, keys: list[TaskKey]) -> None:
        """Which of these have ended; the engine gets `looked_up`."""
        partition = self._engine.partitions.get(number)
        if partition is not None:
            self._lookups.submit(self._look_up, partition, keys)

    def reload(self, item: Reload) -> None:
        """The next tasks of a lane; the engine gets `reloaded`."""
        partition = self._engine.partitions.get(item.partition)
        if partition is not None:
            self._reloads.append((partition, item))
            self._loads.submit(self._reload)

    def _look_up(self, partition: Partition, keys: list[TaskKey]) -> None:
        found = self._read(lambda: self._readers.known(keys))
        if found is not None:
            self._tell(partition, partial(self._engine.looked_up, partition.number, found))

    def _reload(self) -> None:
        """Reads what was asked for by now, all lanes of a partition together."""
        wanted: dict[int, tuple[Partition, dict[str, tuple[TaskKey, int]]]] = {}
        while self._reloads:
            partition, item = self._reloads.popleft()
            _, lanes = wanted.setdefault(id(partition), (partition, {}))
            lanes[item.ordering_id] = item.after, item.most
        for partition, lanes in wanted.values():
            found = self._read(partial(self._openings.lanes, partition.number, lanes, partition.horizon_us))
            for ordering_id, (rows, more) in (found or {}).items():
                self._offer(partition, ordering_id, rows, more=more)

    def _offer(self, partition: Partition, ordering_id: str, rows: Sequence[ScanRow], *, more: bool) -> None:
        for first in range(0, max(len(rows), 1), ROWS_PER_MESSAGE):
            part, last = rows[first : first + ROWS_PER_MESSAGE], first + ROWS_PER_MESSAGE >= len(rows)
            offer = partial(self._engine.reloaded, partition.number, ordering_id, part)
            self._tell(partition, partial(offer, more=more, last=last))

    def _read(self, read: Callable[[], T]) -> T | None:
        """Reads until it works; the lanes that asked wait meanwhile. None: the dispatcher stops."""
        while not self._stopping.is_set():
            try:
                return read()
            except Exception as error:
                log.warning("look-up failed, tried again", error=repr(error)[:300])
                self._stopping.wait(_AGAIN_S)
        return None

    def _tell(self, partition: Partition, answer: Callable[[int], None]) -> None:
        def tell(now: int) -> None:
            if self._engine.partitions.get(partition.number) is partition:
                answer(now)

        self._mailbox.post(tell)
