"""`Worker`: leases tasks of pull queues from anywhere that reaches the API."""

from __future__ import annotations

import os
import secrets
import socket
import ssl as tls
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.core.leases.messages import DRAIN, STOP
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers import shared_resources
from scylla_spark.handlers.capture import hearing
from scylla_spark.handlers.log_lines import LineWriter
from scylla_spark.handlers.open_spans import opened
from scylla_spark.name import is_name
from scylla_spark.worker.connection import site
from scylla_spark.worker.conversation import Conversation, Wishes
from scylla_spark.worker.handlers import asked_for, resolved, source_of
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.line_sender import LINE_BYTES
from scylla_spark.worker.processes import ChildPlace
from scylla_spark.worker.report_json import item_text
from scylla_spark.worker.slot_runner import Runner, Workplace, tell_dropped
from scylla_spark.worker.threads import HerePlace

_LOOK_S: Final = 0.5
_FLUSH_S: Final = 10.0  # to report what is left when a worker ends


class Worker:
    """Leases tasks over HTTP. It needs nothing but Python.

    Heartbeats are sent by threads of its own. Code that never lets go of Python's interpreter lock blocks them nevertheless:
    `run(processes=True)` keeps such code in processes of its own.

    Args:
        url: of the API, such as https://sched:8080; a path before /v1 may follow.
        queue: to lease from.
        queues: several, in order of preference.
        name: unique among the workers that run; default: host, process and a random word.
        token: shown with every request.
        slots: how many tasks `run` works on at once, and `leases` holds.
        lease: how long a lease lasts without a sign of life (a duration); default: as the queue says.
        ssl: how the server's certificate is judged.
        ca: file of certificates that are trusted instead of this machine's.

    Raises:
        ArgumentError: something is not usable.
    """

    def __init__(
        self,
        url: str,
        queue: str | None = None,
        *,
        queues: Sequence[str] = (),
        name: str | None = None,
        token: str | None = None,
        slots: int = 4,
        lease: object = None,
        ssl: tls.SSLContext | None = None,
        ca: str | None = None,
    ) -> None:
        names = ((queue,) if queue is not None else ()) + ((queues,) if isinstance(queues, str) else tuple(queues))
        if not names or not all(map(is_name, names)):
            raise ArgumentError(f"{names!r} names no queues.", hint='Pass queue="gpu", or queues=["gpu", "cpu"].')
        if not 1 <= slots <= 1_000:
            raise ArgumentError(f"slots is {slots}.", hint="Pass a number from 1 to 1,000.")
        self.name = name or f"{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(3)}"
        if len(self.name) > 200 or "/" in self.name or not self.name.isprintable():
            raise ArgumentError(
                f"{self.name!r} is no name of a worker.", hint="Use up to 200 characters, and no slash."
            )
        self.slots = slots
        self._site = site(url, token=token, tls=ssl, ca=ca)
        self._queues = tuple(dict.fromkeys(names))
        self._stop = threading.Event()
        self._lease_ms = None if lease is None else duration_ms(lease)

    def __repr__(self) -> str:
        """Name and place, without the token."""
        return f"Worker({self._site.url!r}, queues={list(self._queues)}, name={self.name!r})"

    def leases(
        self, n: int | None = None, *, handlers: Sequence[str] | None = None, idle: object = None
    ) -> Iterator[Lease]:
        """Leases one after the other, for ever; while one is worked on, all that are held are kept alive.

        Leaving the loop reports what is left to report, and gives back what has not been worked on. What is handed over once (a
        lease of 0) cannot be given back, so hold one of it at a time; report it as any other, then there is room for the next.

        Where an operator tells the worker to drain, it ends when all that it has handed out is reported or lost; told to stop, it
        ends at its next turn.

        Args:
            n: how many to hold at once, those that wait here included; default: `slots`.
            handlers: only tasks of these; default: whichever.
            idle: end when there was nothing for so long (a duration); default: never.

        Raises:
            ConflictError: another worker has taken the name, or the token does not let it in.
            UnreachableError: what answers is no API.
        """
        most = self.slots if n is None else n
        waiting: deque[Lease] = deque()
        given: list[Lease] = []

        def room() -> int:
            given[:] = [lease for lease in given if lease.takes_room]
            return most - len(waiting) - len(given)

        conversation = self._conversation(handlers, room, waiting.extend)
        idle_us = None if idle is None else duration_ms(idle) * 1000
        conversation.start()
        try:
            while (lease := self._next(conversation, waiting, idle_us)) is not None:
                given.append(lease)
                yield lease
                conversation.wake()
            self._see_out(conversation, waiting, given)
        finally:
            conversation.stop(_FLUSH_S)
            tell_dropped(waiting)

    def run(
        self,
        handlers: Mapping[str, Callable[..., Any]] | Sequence[str] | str,
        *,
        processes: bool = False,
        spans: bool = False,
        lines: bool = True,
        grace: object = "30s",
    ) -> None:
        """Runs handlers on leases until SIGTERM, Ctrl-C or `stop`: as many at once as there are slots.

        Told to stop, it takes no more, gives what runs a grace, and then gives it back. Told by an operator to drain, it ends when
        what runs has ended; told by one to stop, it gives that back at once.

        Args:
            handlers: functions of (task) or (task, ctx) by name; or modules or .py files of `@handler` functions. The name "*" is
                for all tasks that no other name fits.
            processes: in child processes instead of threads. A child that dies fails its task, and nothing else; a script that
                asks for it needs the line `if __name__ == "__main__":`, because children import it.
            spans: whether each attempt is a span of OpenTelemetry, which goes where its environment variables say.
            lines: whether what handlers print and log goes to the logs of their attempts, too.
            grace: how long what runs may go on after the signal (a duration).

        Raises:
            ArgumentError: a handler is not usable.
            ConfigError: a module of handlers cannot be imported.
            SetupError: OpenTelemetry is not installed, or an exporter that its variables name.
            ConflictError: another worker has taken the name, or the token does not let it in.
            UnreachableError: what answers is no API.
        """
        source = source_of(handlers)
        known = resolved(source)
        place: Callable[[], Workplace]
        here = lines and not processes
        with hearing(LineWriter(LINE_BYTES, alone=False)) if here else nullcontext() as writer:
            if processes:
                place = partial(ChildPlace, source, known, wants_spans=spans, wants_lines=lines)
            else:
                place = partial(HerePlace, known, opened() if spans else None, writer)
            try:
                self.run_at(place, handlers=asked_for(known), grace=grace)
            finally:
                shared_resources.end_all()

    def run_at(
        self, place: Callable[[], Workplace], *, handlers: Sequence[str] | None = None, grace: object = "30s"
    ) -> None:
        """Works on leases at workplaces of yours, one for each slot, until SIGTERM, Ctrl-C or `stop`; see `run`.

        Args:
            place: makes a workplace.
            handlers: only tasks of these; default: whichever.
            grace: how long what runs may go on after the signal (a duration).

        Raises:
            SchedulerError: it cannot go on.
        """
        runner = Runner([place() for _ in range(self.slots)], self._stop)
        runner.conversation = self._conversation(handlers, runner.room, runner.arrived)
        runner.run(duration_ms(grace) / 1000)

    def stop(self) -> None:
        """Ends `run` and `leases`, from any thread: nothing more is taken."""
        self._stop.set()

    def _conversation(
        self, handlers: Sequence[str] | None, room: Callable[[], int], arrived: Callable[[Sequence[Lease]], None]
    ) -> Conversation:
        """A conversation with the server, not begun.

        Args:
            handlers: only tasks of these; None: whichever.
            room: for how many more leases there is room.
            arrived: takes new leases.
        """
        about = item_text(
            pid=os.getpid(),
            host=socket.gethostname()[:200],
            slots=self.slots,
            client="python",
            python=sys.version.split()[0],
        )
        wishes = Wishes(self._queues, None if handlers is None else tuple(handlers), self._lease_ms)
        worker = self.name, secrets.token_hex(8)
        return Conversation(self._site, worker, about, wishes=wishes, room=room, arrived=arrived)

    def _see_out(self, conversation: Conversation, waiting: deque[Lease], given: Sequence[Lease]) -> None:
        """Where an operator has told the worker to drain: what other threads work on goes on until its end, the rest goes back."""
        with conversation.lock:
            while conversation.order == DRAIN and conversation.error is None and not self._stop.is_set():
                while waiting:
                    waiting.popleft().yield_()
                if not any(lease.takes_room for lease in given):
                    break
                conversation.lock.wait(_LOOK_S)

    def _next(self, conversation: Conversation, waiting: deque[Lease], idle_us: int | None) -> Lease | None:
        until = None if idle_us is None else boot_us() + idle_us
        with conversation.lock:
            while conversation.order != STOP:
                while waiting:
                    lease = waiting.popleft()
                    if lease.token and conversation.order:
                        lease.yield_()
                    elif not lease.lost.is_set():
                        return lease
                if conversation.order:
                    return None
                if conversation.error is not None:
                    raise conversation.error
                left = _LOOK_S if until is None else min((until - boot_us()) / 1e6, _LOOK_S)
                if left <= 0 or self._stop.is_set():
                    return None
                conversation.lock.wait(left)
        return None
