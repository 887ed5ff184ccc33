"""How a child runs the tasks of an `async def` handler: many at a time, on one event loop in the main thread.

A call that is to end (its time is over, or the pool says so) is cancelled; whether it obeys is watched by the pool, which kills the
child otherwise. What a call leaves behind on the loop is cancelled when it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.tasks.task import SUCCEEDED, TIMED_OUT, Invocation
from scylla_spark.executors.local.child_link import ChildLink
from scylla_spark.executors.local.loop_steps import Steps, call_number
from scylla_spark.handlers.call import (
    arguments_of,
    context_of,
    failed,
    task_of,
    verdict_of,
    verdict_of_result,
    warn_if_unshared,
)
from scylla_spark.handlers.call_notes import CallNotes
from scylla_spark.handlers.messages import CANCELLED, RETURNED, CallRecord, Order, Verdict, read_order
from scylla_spark.handlers.registry import Handler
from scylla_spark.handlers.spans import CallSpan

_FLUSH_RECORDS: Final = 256


@dataclass(slots=True, eq=False)
class _Running:
    """A call that has begun.

    Attributes:
        context: in which all its code runs.
        span: of it; None: nobody asks for spans.
        notes: what it says of its work; None: it is given nothing to say it with.
        task: of its handler.
        timer: ends it when its time is over.
        parts: other tasks that its handler has started.
        told: why it was cancelled, or empty.
    """

    started_us: int
    begun_us: int
    context: contextvars.Context
    span: CallSpan | None
    notes: CallNotes | None
    task: asyncio.Task[Verdict] | None = None
    timer: asyncio.TimerHandle | None = None
    parts: set[asyncio.Task[Any]] = field(default_factory=set)
    told: str = ""


class OnLoop:
    """Runs calls until the pool is gone.

    Args:
        link: to the pool.
    """

    def __init__(self, link: ChildLink) -> None:
        self._link = link
        self._running: dict[int, _Running] = {}
        self._over = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._new_task)  # type: ignore[arg-type]

    def serve(self) -> None:
        """The main loop. A part of a handler that raises SystemExit stops the loop for a moment, and nothing else."""
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._link.sock, self._read)
        while not self._over:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue

    def _read(self) -> None:
        try:
            frames = self._link.receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if frames is None:
            self._over = True
            self._loop.stop()
            return
        for orders, cancels in frames:
            for fields in orders:
                self._begin(read_order(fields))
            for number in cancels:
                self._cancel(number, CANCELLED)

    def _begin(self, order: Order) -> None:
        number, link = order.number, self._link
        started, begun = both_us()
        link.slot.claim(number, 0)
        if begun > order.start_by_us:
            self._report(CallRecord(number, RETURNED), begun)
            return
        context, item = contextvars.copy_context(), order.tasks[0]
        context.run(call_number.set, number)
        context.run(link.begin, order)
        span = link.span_of(order, started)
        if span is not None:
            context.run(span.enter)
        notes = link.notes_of(order, lambda until_ms: self._loop.call_soon_threadsafe(self._extend, number, until_ms))
        running = self._running[number] = _Running(started, begun, context, span, notes)
        work = self._verdict(link.setup.handlers[order.handler], item, started, notes)
        running.task = self._loop.create_task(work, context=context)
        running.task.add_done_callback(partial(self._ended, number, running))
        running.timer = self._loop.call_later(item.timeout_ms / 1000, self._cancel, number, TIMED_OUT)

    async def _verdict(self, handler: Handler, item: Invocation, started_us: int, notes: CallNotes | None) -> Verdict:
        try:
            given = arguments_of(handler, task_of(handler, item), context_of(item, started_us, notes))
            result = await handler.function(*given)
        except BaseException as error:
            warn_if_unshared(handler, item.tags, error)
            return verdict_of(error)
        return verdict_of_result(handler, result)

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        """A task that belongs to the call whose code starts it."""
        context = options.get("context")
        number = call_number.get() if context is None else context.get(call_number, 0)
        task: asyncio.Task[Any] = asyncio.Task(Steps(work, number, self._link.slot), loop=loop, **options)
        running = self._running.get(number)
        if running is not None and running.task is not None:
            running.parts.add(task)
            task.add_done_callback(running.parts.discard)
        return task

    def _extend(self, number: int, timeout_ms: int) -> None:
        """A call runs until so long after its start."""
        running = self._running.get(number)
        if running is not None and running.timer is not None:
            running.timer.cancel()
            left_s = (running.begun_us + timeout_ms * 1000 - boot_us()) / 1e6
            running.timer = self._loop.call_later(max(left_s, 0.0), self._cancel, number, TIMED_OUT)

    def _cancel(self, number: int, why: str) -> None:
        running = self._running.get(number)
        if running is not None and running.task is not None and not running.told:
            running.told = why
            running.task.cancel()

    def _ended(self, number: int, running: _Running, task: asyncio.Task[Verdict]) -> None:
        link = self._link
        link.end_if_copy()
        now = boot_us()
        del self._running[number]
        running.context.run(link.end)
        if running.timer is not None:
            running.timer.cancel()
        if running.notes is not None:
            running.notes.end()
        for part in list(running.parts):
            part.cancel()
        verdict = _verdict_of(task, running.told)
        if running.span is not None:
            running.span.end(verdict)
        record = CallRecord(number, verdict.outcome, running.started_us, now - running.begun_us, *verdict[1:])
        self._report(record, now, behind=running.notes is not None and running.notes.asked)

    def _report(self, record: CallRecord, now: int, *, behind: bool = False) -> None:
        """Reports a call; what other calls report in the same turn of the loop is sent along."""
        self._link.report(record, now, behind=behind)
        if self._link.unsent == 1:
            self._loop.call_soon(self._link.flush)
        elif self._link.unsent >= _FLUSH_RECORDS:
            self._link.flush()


def _verdict_of(task: asyncio.Task[Verdict], told: str) -> Verdict:
    """Returns what becomes of a call; one that returns has succeeded although it was told to end, unless its time was over.

    Args:
        task: of its handler; it is over.
        told: why it was cancelled, or empty.
    """
    verdict = None if task.cancelled() else task.result()
    if verdict is not None and (not told or (told == CANCELLED and verdict.outcome == SUCCEEDED)):
        return verdict
    return failed(told or "CancelledError", "It was cancelled.")
