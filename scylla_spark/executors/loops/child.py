"""The process in which the tasks of an `async def` handler run: one event loop in the main thread, many tasks at a time.

Frames to the child are pairs: a list of `messages.Order` to begin, and a list of numbers of calls to cancel. Frames from it are
lists of `messages.CallRecord`. A call that is to end (its time is over, or the pool says so) is cancelled; whether it obeys is
watched by the pool, which kills the child otherwise. What a call leaves behind on the loop is cancelled when it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.task import SUCCEEDED, TIMED_OUT
from scylla_spark.executors.loops.call_on_loop import Steps, call_number
from scylla_spark.handlers import shared_resources
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
from scylla_spark.handlers.capture import Output
from scylla_spark.handlers.framing import FrameReader, pack
from scylla_spark.handlers.messages import RETURNED, CallRecord, Order, TaskRow, Verdict, read_order
from scylla_spark.handlers.outputs import WritesOutputs
from scylla_spark.handlers.registry import Handler
from scylla_spark.handlers.shared_memory import SharedMemory
from scylla_spark.handlers.spans import CallSpan, Spans, attempt_of
from scylla_spark.io.host.die_with_parent import die_with

ENDED: Final = "cancelled_by_pool"  # the kind of the failure of a call that the pool had cancelled
_FLUSH_RECORDS: Final = 256
_RECV_BYTES: Final = 1024 * 1024


class _Running:
    """A call that has begun.

    Attributes:
        task: of its handler.
        parts: other tasks that its handler has started.
        timer: ends it when its time is over.
        told: why it was cancelled, or empty.
        notes: what it says of its work.
        span: of it; None: nobody asks for spans.
    """

    __slots__ = ("begun_us", "context", "notes", "parts", "span", "started_us", "task", "timer", "told")

    def __init__(self, started_us: int, begun_us: int) -> None:
        self.notes: CallNotes | None = None
        self.span: CallSpan | None = None
        self.context: contextvars.Context
        self.started_us, self.begun_us = started_us, begun_us
        self.task: asyncio.Task[Verdict] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.parts: set[asyncio.Task[Any]] | None = None
        self.told = ""


class LoopChild:
    """Runs calls until the other end of `sock` is closed.

    Args:
        sock: stream socket to the pool.
        slot: memory shared with the pool.
        handlers: what tasks may name.
        output: takes what the handlers print; each line belongs to the call whose code writes it.
        outputs: makes what stores the files of a call; None: nothing does.
        spans: makes a span of each call; None: nobody asks for them.
    """

    def __init__(
        self,
        sock: socket.socket,
        slot: SharedMemory,
        handlers: Mapping[str, Handler],
        output: Output,
        outputs: Callable[[TaskRow], WritesOutputs] | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._spans = spans
        self._output = output
        self._outputs = outputs
        self._sock = sock
        self._slot = slot
        self._handlers = handlers
        self._pid = os.getpid()
        self._reader = FrameReader()
        self._running: dict[int, _Running] = {}
        self._lock = threading.Lock()  # a thread of a handler may say something at any time
        self._unsent = 0
        self._over = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._new_task)  # type: ignore[arg-type]

    def serve(self) -> None:
        """The main loop. A part of a handler that raises SystemExit stops the loop for a moment, and nothing else."""
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._sock, self._read)
        while not self._over:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue

    def _read(self) -> None:
        try:
            data = self._sock.recv(_RECV_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            self._over = True
            self._loop.stop()
            return
        for orders, cancels in self._reader.feed(data):
            for fields in orders:
                self._begin(read_order(fields))
            for number in cancels:
                self._cancel(number, ENDED)

    def _begin(self, order: Order) -> None:
        number = order.number
        started, begun = both_us()
        self._slot.claim(number, 0)
        if begun > order.start_by_us:
            self._report(CallRecord(number, RETURNED))
            return
        running = self._running[number] = _Running(started, begun)
        context = contextvars.copy_context()
        context.run(call_number.set, number)
        row = order.tasks[0]
        context.run(self._output.begin, row)
        running.context = context
        if self._spans is not None:
            running.span = self._spans.begin(attempt_of(order.handler, row, started))
            context.run(running.span.enter)
        handler = self._handlers[order.handler]
        if handler.signature.parameters == 2:
            running.notes = CallNotes(
                number,
                row,
                self._send,
                lambda until_ms: self._loop.call_soon_threadsafe(self._extend, number, until_ms),
                None if self._outputs is None else self._outputs(row),
            )
        work = self._verdict(handler, row, started, running.notes)
        running.task = self._loop.create_task(work, context=context)
        running.task.add_done_callback(partial(self._ended, number, running))
        running.timer = self._loop.call_later(row.timeout_ms / 1000, self._cancel, number, TIMED_OUT)

    async def _verdict(self, handler: Handler, row: TaskRow, started_us: int, notes: CallNotes | None) -> Verdict:
        try:
            given = arguments_of(handler, task_of(handler, row), context_of(row, started_us, notes))
            result = await handler.function(*given)
        except BaseException as error:
            warn_if_unshared(handler, row.tags, error)
            return verdict_of(error)
        return verdict_of_result(handler, result)

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        """A task that belongs to the call whose code starts it."""
        context = options.get("context")
        number = call_number.get() if context is None else context.get(call_number, 0)
        task: asyncio.Task[Any] = asyncio.Task(Steps(work, number, self._slot), loop=loop, **options)
        running = self._running.get(number)
        if running is not None and running.task is not None:
            parts = running.parts = running.parts or set()
            parts.add(task)
            task.add_done_callback(parts.discard)
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
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked, and this is the copy
        duration = boot_us() - running.begun_us
        del self._running[number]
        running.context.run(self._output.end)
        if running.timer is not None:
            running.timer.cancel()
        if running.notes is not None:
            running.notes.end()
        for part in list(running.parts or ()):
            part.cancel()
        verdict = _verdict_of(task, running.told)
        if running.span is not None:
            running.span.end(verdict)
        self._report(
            CallRecord(
                number, verdict.outcome, running.started_us, duration, verdict.result, verdict.failure, verdict.after_ms
            ),
            behind=running.notes is not None and running.notes.asked,
        )

    def _report(self, record: CallRecord, *, behind: bool = False) -> None:
        """Keeps or sends a record; `behind`: what its call has said must be read before it, so it goes the same way."""
        data = fast_json.dump([*record])
        if behind or not self._slot.put(data):
            self._flush()
            if behind or not self._slot.put(data):
                self._send(pack(b"[" + data + b"]"))
                return
        self._unsent += 1
        if self._unsent == 1:
            self._loop.call_soon(self._flush)
        elif self._unsent >= _FLUSH_RECORDS:
            self._flush()

    def _send(self, frame: bytes) -> None:
        if os.getpid() == self._pid:
            with self._lock:
                self._sock.sendall(frame)

    def _flush(self) -> None:
        if self._unsent:
            self._send(pack(b"[" + self._slot.take() + b"]"))
            self._slot.clear()
            self._unsent = 0


def _verdict_of(task: asyncio.Task[Verdict], told: str) -> Verdict:
    """What becomes of a call; one that returns has succeeded although it was told to end, unless its time was over.

    Args:
        task: of its handler; it is over.
        told: why it was cancelled, or empty.
    """
    verdict = None if task.cancelled() else task.result()
    if verdict is not None and (not told or (told == ENDED and verdict.outcome == SUCCEEDED)):
        return verdict
    return failed(told or "CancelledError", "It was cancelled.")


def run(
    sock: socket.socket,
    slot_fd: int,
    handlers: Mapping[str, Handler],
    output: Output,
    *,
    forkserver: int,
    wants_output: bool,
    log_fd: int,
    outputs: Callable[[TaskRow], WritesOutputs] | None = None,
    spans: Spans | None = None,
) -> None:
    """Everything a freshly forked child does; never returns.

    Args:
        sock: stream socket to the pool.
        slot_fd: see `SharedMemory.create_fd`.
        handlers: what tasks may name.
        output: takes what the handlers print.
        forkserver: process id of the parent.
        wants_output: whether output is sent along; never, because nobody knows which of many tasks has printed what.
        log_fd: see `LogMemory.create_fd`; -1: lines are not kept.
        outputs: see `LoopChild`.
        spans: see `LoopChild`.
    """
    code = 1
    try:
        os.setsid()
        die_with(forkserver, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        shared_resources.end_at_sigterm()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        faulthandler.enable(slot_fd, all_threads=False)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # else all children draw the same numbers
        if log_fd >= 0:
            output.keep_lines(log_fd)
        output.put_in_place()
        LoopChild(sock, SharedMemory(slot_fd), handlers, output, outputs, spans).serve()
        shared_resources.end_all()
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        code = 0  # the pool is gone
    finally:
        os._exit(code)
