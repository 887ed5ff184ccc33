"""The process in which user code runs: one call at a time, in the main thread, and no other thread of ours.

A single thread, so that handlers may fork, and so that no switching between threads slows short tasks. What must
work while a handler runs (taking work back, seeing who runs since when) goes through the shared `SharedMemory` and needs no
help from here.

Frames to the child are lists of `messages.Order`, frames from it lists of `messages.CallRecord`; a call that was found revoked, came
too late, or must not run because of the one before it, is RETURNED.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final, Protocol

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.executors.local.resource_limits import Confinement
from scylla_spark.handlers import shared_resources
from scylla_spark.handlers.batch import call_batch
from scylla_spark.handlers.call import call, clean, failed
from scylla_spark.handlers.call_notes import CallFlag, CallNotes
from scylla_spark.handlers.capture import Output
from scylla_spark.handlers.framing import MAX_FRAME_BYTES, FrameReader, pack
from scylla_spark.handlers.isolation import UNAVAILABLE
from scylla_spark.handlers.messages import BATCH, RETURNED, CallRecord, Order, TaskRow, Verdict, read_order
from scylla_spark.handlers.outputs import WritesOutputs
from scylla_spark.handlers.registry import Handler
from scylla_spark.handlers.restore_process import Surroundings
from scylla_spark.handlers.shared_memory import SharedMemory
from scylla_spark.handlers.spans import Spans, attempt_of, whole
from scylla_spark.io.host.die_with_parent import die_with

FLUSH_RECORDS: Final = 64
FLUSH_US: Final = 3_000
QUICK_US: Final = 1_000
_RECV_BYTES: Final = 256 * 1024


class OpensSession(Protocol):
    """The session of Spark Connect of one attempt."""

    def get(self) -> Any:
        """The session, which the first call opens."""

    def close(self) -> None:
        """Lets go of it, if it was opened."""


SessionOf = Callable[[int], OpensSession]


class Child:
    """Runs calls until the other end of `sock` is closed.

    Args:
        sock: stream socket to the pool.
        slot: memory shared with the pool.
        handlers: what tasks may name.
        output: takes what the handlers print.
        wants_output: whether it is sent along.
        confinement: the limits of this child; None: it has none, and handlers that ask for some are refused.
        session_of: makes the session of Spark Connect of an invocation, which opens it when it is asked for; None: there are none.
        outputs: makes what stores the files of a call; None: nothing does.
        spans: makes a span of each call; None: nobody asks for them.
    """

    def __init__(
        self,
        sock: socket.socket,
        slot: SharedMemory,
        handlers: Mapping[str, Handler],
        output: Output,
        *,
        wants_output: bool,
        confinement: Confinement | None = None,
        session_of: SessionOf | None = None,
        outputs: Callable[[TaskRow], WritesOutputs] | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._confinement = confinement
        self._spans = spans
        self._session_of = session_of
        self._outputs = outputs
        self._spoilt = False  # a call has reached a limit or left something behind, so this child runs no other
        self._sock = sock
        self._slot = slot
        self._handlers = handlers
        self._output = output
        self._wants_output = wants_output
        self._pid = os.getpid()
        self._unsent = 0
        self._sent_us = 0
        self._lock = threading.Lock()  # a thread of a handler may say something at any time
        self._surroundings = Surroundings()
        self._quick: set[str] = set()
        self._failed = 0  # the last call that did not succeed or did not run

    def serve(self) -> None:
        """The main loop."""
        reader = FrameReader()
        while data := self._sock.recv(_RECV_BYTES):
            for calls in reader.feed(data):
                for fields in calls:
                    self._run(read_order(fields))
                    if self._spoilt:
                        self._flush()
                        return
            self._flush()

    def _run(self, order: Order) -> None:
        number, name = order.number, order.handler
        if self._unsent and name not in self._quick:
            self._flush()  # the next one may take long, or may be the last
        started, begun = both_us()
        void = begun > order.start_by_us or (order.follows and self._failed == number - 1)
        if not self._slot.claim(number, 0 if void else begun) or void:
            self._failed = number
            self._report(CallRecord(number, RETURNED), begun)
            return
        self._output.begin(order.tasks[0])
        notes = self._notes_of(order)
        run = self._kept if self._spans is None else self._traced
        outcome, result, failure, after_ms = run(order, started, notes)
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked, and this is the copy
        ended = boot_us()
        if not self._surroundings.restore():
            self._spoilt = True
        duration = ended - begun
        if duration < QUICK_US:
            self._quick.add(name)
        else:
            self._quick.discard(name)
        text = self._output.end()
        if outcome != SUCCEEDED:
            self._failed = number
        output = clean(text) if self._wants_output else ""
        record = CallRecord(number, outcome, started, duration, result, failure, after_ms, output)
        self._report(record, ended, behind=notes is not None and notes.asked)

    def _notes_of(self, order: Order) -> CallNotes | None:
        """Where a call says something; None: it is given nothing to say it with."""
        handler = self._handlers.get(order.handler)
        if handler is None or handler.info.max_batch is not None or handler.signature.parameters == 1:
            return None
        row = order.tasks[0]
        outputs = None if self._outputs is None else self._outputs(row)
        return CallNotes(order.number, row, self._send, outputs=outputs)

    def _traced(
        self, order: Order, started_us: int, notes: CallNotes | None
    ) -> tuple[str, Any, tuple[str, str, str] | None, int]:
        """Like `_kept`, in a span."""
        assert self._spans is not None
        attempts = [attempt_of(order.handler, row, started_us) for row in order.tasks]
        span = self._spans.begin(attempts[0]) if len(attempts) == 1 else self._spans.begin_batch(attempts)
        span.enter()
        verdict = self._kept(order, started_us, notes)
        span.leave()
        span.end(whole(verdict[1]) if verdict[0] == BATCH else Verdict(*verdict))
        return verdict

    def _kept(
        self, order: Order, started_us: int, notes: CallNotes | None
    ) -> tuple[str, Any, tuple[str, str, str] | None, int]:
        """Like `_called`, within the limits that the handler asks for; never without them."""
        if self._confinement is not None:
            self._confinement.begin()
            verdict, self._spoilt = self._confinement.judged(self._called(order, started_us, notes))
            return verdict
        handler = self._handlers.get(order.handler)
        if handler is not None and handler.info.isolation is not None:
            return failed(UNAVAILABLE, f"Handler {order.handler!r} asks for limits that this process does not have.")
        return self._called(order, started_us, notes)

    def _called(
        self, order: Order, started_us: int, notes: CallNotes | None
    ) -> tuple[str, Any, tuple[str, str, str] | None, int]:
        """Outcome, result, failure and wait, as in `CallRecord`."""
        handler = self._handlers.get(order.handler)
        if handler is None:
            return failed("handler_unknown", f"No handler {order.handler!r} is registered here.")
        if handler.info.max_batch is not None:
            return BATCH, call_batch(handler, order.tasks), None, 0
        if notes is None:
            return call(handler, order.tasks[0], started_us)
        row, flag = order.tasks[0], CallFlag(order.number, self._slot)
        if self._session_of is None:
            verdict = call(handler, row, started_us, notes, flag)
        else:
            with closing(self._session_of(row.id)) as session:
                verdict = call(handler, row, started_us, notes, flag, session.get)
        notes.end()
        return verdict

    def _send(self, frame: bytes) -> None:
        """Sends a frame; a copy of the process, which a handler has forked, says nothing."""
        if os.getpid() == self._pid:
            with self._lock:
                self._sock.sendall(frame)

    def _report(self, record: CallRecord, now: int, *, behind: bool = False) -> None:
        """Keeps or sends a record; what has been sent never runs, so that the pool can tell ours from a handler's.

        Args:
            record: how a call ended.
            now: boot clock.
            behind: what the call has said must be read before it, so it goes the same way.
        """
        data = fast_json.dump([*record])
        if len(data) > MAX_FRAME_BYTES - 2:
            data = fast_json.dump([*_too_large(record)])
        kept = not behind and self._slot.put(data)
        self._slot.rest()
        if not kept:
            self._flush()
            if behind or not self._slot.put(data):
                self._send(pack(b"[" + data + b"]"))
                return
        if not self._unsent:
            self._sent_us = now
        self._unsent += 1
        if self._unsent >= FLUSH_RECORDS or now - self._sent_us >= FLUSH_US:
            self._flush()

    def _flush(self) -> None:
        if self._unsent:
            self._send(pack(b"[" + self._slot.take() + b"]"))
            self._slot.clear()
            self._unsent = 0


def _too_large(record: CallRecord) -> CallRecord:
    """In place of a record that no frame takes: only that of a large batch can be one."""
    verdict = failed("result_too_large", f"The results of the batch do not fit into {MAX_FRAME_BYTES} bytes.")
    return record._replace(result=[verdict] * len(record.result), failure=None, after_ms=0, output="")


def run(
    sock: socket.socket,
    slot_fd: int,
    handlers: Mapping[str, Handler],
    output: Output,
    *,
    forkserver: int,
    wants_output: bool,
    log_fd: int,
    confinement: Confinement | None = None,
    session_of: SessionOf | None = None,
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
        wants_output: whether output is sent along.
        log_fd: see `LogMemory.create_fd`; -1: lines are not kept.
        confinement: its limits; None: it has none.
        session_of: see `Child`.
        outputs: see `Child`.
        spans: see `Child`.
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
        slot = SharedMemory(slot_fd)
        Child(
            sock,
            slot,
            handlers,
            output,
            wants_output=wants_output,
            confinement=confinement,
            session_of=session_of,
            outputs=outputs,
            spans=spans,
        ).serve()
        shared_resources.end_all()
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        code = 0  # the pool is gone
    finally:
        os._exit(code)
