"""Runs handlers on leases until told to stop: as many at once as there are slots, each in a thread of its own."""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from scylla_spark.clock import boot_us
from scylla_spark.core.leases.messages import STOP
from scylla_spark.core.tasks.task import WORKER_FAULT
from scylla_spark.errors import SchedulerError
from scylla_spark.handlers.call import describe
from scylla_spark.worker.conversation import Conversation
from scylla_spark.worker.lease import Lease

_log = logging.getLogger(__name__)
_MOST_FAULTS: Final = 3  # of a slot, in a row: it is the worker then, and its queue must not be failed task by task
_FLUSH_S: Final = 10.0
_LOOK_S: Final = 0.5
_LAST_S: Final = 2.0  # for what was asked for before the worker was told to stop


class Workplace(Protocol):
    """Where a slot runs handlers."""

    def open(self) -> None:
        """Makes it ready for work.

        Raises:
            SchedulerError: it never will be.
        """

    def work(self, lease: Lease) -> None:
        """Runs the handler of a lease, and reports how it ended.

        Raises:
            SchedulerError: nothing more can run here.
            Exception: this could not be run; the next may be.
        """

    def close(self) -> None:
        """Ends whatever it still does, from any thread."""


class Runner:
    """The slots of a worker.

    Args:
        places: one workplace for each.
        stop: is set when the worker is to stop.

    Attributes:
        conversation: set before `run`.
    """

    conversation: Conversation

    def __init__(self, places: Sequence[Workplace], stop: threading.Event) -> None:
        self._places = places
        self._stop = stop
        self._waiting: deque[Lease] = deque()
        self._working: dict[Workplace, Lease | None] = {}  # places that are ready → on what each works
        self._error: SchedulerError | None = None
        self._over = False  # nothing is begun any more, not even what cannot be given back

    def room(self) -> int:
        """Returns how many more leases could be worked on at once; with the lock held."""
        if self._ends:
            return 0
        busy = sum(lease is not None and not (lease.token and lease.reported) for lease in self._working.values())
        return len(self._working) - busy - len(self._waiting)

    def arrived(self, leases: Sequence[Lease]) -> None:
        """Takes new leases; with the lock held."""
        self._waiting.extend(leases)

    def run(self, grace_s: float) -> None:
        """Works until told to stop.

        Args:
            grace_s: how long what runs may go on then; after that its leases go to others.

        Raises:
            SchedulerError: it cannot go on.
        """
        threads = [threading.Thread(target=self._serve, args=(place,), daemon=True) for place in self._places]
        with _signals(self._told):
            self.conversation.start()
            for thread in threads:
                thread.start()
            while not (self._stop.wait(_LOOK_S) or self._error or self.conversation.error or self.conversation.order):
                pass
            if self._error or self.conversation.error:
                self._stop.set()
            self._drain(grace_s)
            self._drop()
            for place in self._places:
                place.close()
            self.conversation.stop(_FLUSH_S)
        error = self._error or self.conversation.error
        if error is not None:
            raise error

    def _told(self) -> None:
        """A signal: the first begins to stop, the second ends what runs."""
        if self._stop.is_set():
            self._error = self._error or SchedulerError("The worker was told twice to stop; what ran goes to others.")
        self._stop.set()

    @property
    def _ends(self) -> bool:
        """Returns True if nothing more is begun: it was told so on this machine, or by an operator."""
        return self._stop.is_set() or bool(self.conversation.order)

    def _drain(self, grace_s: float) -> None:
        """What runs goes on for the grace; where an operator wants the worker to drain, to its end, or until it is told to stop.

        What cannot be given back is begun nevertheless: for the server, it has ended with being handed over.
        """
        told_us: int | None = None
        lock = self.conversation.lock
        with lock:
            lock.notify_all()
            lock.wait_for(self._knows_all, min(grace_s, _LAST_S))
            for lease in [lease for lease in self._waiting if lease.token]:
                self._waiting.remove(lease)
                lease.yield_()
            while (
                (any(self._working.values()) or self._waiting) and not self._error and self.conversation.order != STOP
            ):
                if told_us is None and self._stop.is_set():
                    told_us = boot_us()
                left_s = _LOOK_S if told_us is None else grace_s - (boot_us() - told_us) / 1e6
                if left_s <= 0:
                    break
                lock.wait(min(left_s, _LOOK_S))

    def _knows_all(self) -> bool:
        """Returns True if no lease can come any more that was asked for before; with the lock held."""
        return not self.conversation.may_bring or self._error is not None or self.conversation.order == STOP

    def _drop(self) -> None:
        """Nothing more is begun; what cannot be given back, and found no slot until now, is missed by nobody else."""
        with self.conversation.lock:
            self._over = True
            tell_dropped(self._waiting)
            self.conversation.lock.notify_all()

    def _serve(self, place: Workplace) -> None:
        """One slot, to its end."""
        lock = self.conversation.lock
        try:
            place.open()
            with lock:
                self._working[place] = None
                lock.notify_all()
            faults = 0
            while (lease := self._next(place)) is not None:
                faults = 0 if self._worked(place, lease) else faults + 1
                with lock:
                    self._working[place] = None
                    lock.notify_all()
                if faults == _MOST_FAULTS:
                    raise SchedulerError(f"{faults} tasks in a row could not be run here; the log says why.")
        except SchedulerError as error:
            self._error = self._error or error
        except BaseException as error:  # a slot that ended in silence would be missed by nobody
            _log.exception("a slot of the worker ended")
            self._error = self._error or SchedulerError(f"A slot of the worker ended: {describe(error)}")
        finally:
            with lock:
                self._working.pop(place, None)  # there is room for nothing any more
                lock.notify_all()
            place.close()

    def _worked(self, place: Workplace, lease: Lease) -> bool:
        """Has a lease worked on; False: it could not be, for a reason that nobody foresaw, and has failed if it was still ours.

        Raises:
            SchedulerError: nothing more can run there.
        """
        try:
            place.work(lease)
        except SchedulerError:
            raise
        except BaseException as error:
            _log.exception("a task could not be run: %s", lease.task.key)
            if not (lease.reported or lease.lost.is_set()):
                lease.fail(WORKER_FAULT, f"The worker could not run it: {describe(error)}")
            return False
        return True

    def _next(self, place: Workplace) -> Lease | None:
        """The next lease for a place; None: there will be none."""
        lock = self.conversation.lock
        with lock:
            while not self._over and self.conversation.error is None and self.conversation.order != STOP:
                while self._waiting:
                    lease = self._waiting.popleft()
                    if lease.token and self._ends:
                        lease.yield_()
                    elif not lease.lost.is_set():
                        self._working[place] = lease
                        return lease
                lock.wait(_LOOK_S)
        return None


def tell_dropped(leases: Iterable[Lease]) -> None:
    """Says which tasks come to nothing: they have ended for the server, and nobody has begun them.

    Args:
        leases: that are left when a worker ends.
    """
    for lease in leases:
        if not lease.token:
            _log.warning("a task that was handed over once has not been begun: %s", lease.task.key)


@contextmanager
def _signals(told: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop gracefully, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = signal.SIGTERM, signal.SIGINT
    before: list[Any] = [signal.signal(number, lambda *_: told()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
