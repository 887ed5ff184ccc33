"""A child's way to its pool: calls come from there, and their records and all that they say go there.

Frames to a child are pairs: a list of `messages.Order`, and a list of numbers of calls to cancel. Frames from it are lists of
`messages.CallRecord`, and of what calls say while they run.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.local.resource_limits import Confinement
from scylla_spark.handlers.call import failed
from scylla_spark.handlers.call_notes import CallNotes
from scylla_spark.handlers.capture import Output
from scylla_spark.handlers.framing import MAX_FRAME_BYTES, FrameReader, pack
from scylla_spark.handlers.log_writer import LogWriter
from scylla_spark.handlers.messages import CallRecord, Order
from scylla_spark.handlers.outputs import WritesOutputs
from scylla_spark.handlers.registry import Handler
from scylla_spark.handlers.shared_memory import SharedMemory
from scylla_spark.handlers.spans import CallSpan, Spans

_RECV_BYTES: Final = 256 * 1024


class OpensSession(Protocol):
    """The session of Spark Connect of one attempt."""

    def get(self) -> Any:
        """The session, which the first call opens."""

    def close(self) -> None:
        """Drops it, if it was opened."""


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """What all children of a forkserver have.

    Attributes:
        handlers: what tasks may name.
        output: takes what the handlers print.
        confinement: the limits of a child; None: it has none, and handlers that ask for some are refused.
        session_of: makes the session of Spark Connect of an invocation, which opens it when it is asked for; None: there are none.
        outputs: makes what stores the files of a call; None: nothing does.
        spans: makes a span of each call; None: nobody asks for them.
    """

    handlers: Mapping[str, Handler]
    output: Output
    confinement: Confinement | None = None
    session_of: Callable[[int], OpensSession] | None = None
    outputs: Callable[[Invocation], WritesOutputs] | None = None
    spans: Spans | None = None


class ChildLink:
    """Socket and memory of a child, and what its calls speak and write through.

    Args:
        sock: stream socket to the pool.
        slot: memory shared with the pool.
        setup: what the child has.
        logs: takes what is written, as lines of the calls that write it; None: they are not kept.

    Attributes:
        unsent: how many records are kept in the memory, and were not sent …
        unsent_us: … and since when (boot clock); when they are sent is for the runner to say.
    """

    def __init__(self, sock: socket.socket, slot: SharedMemory, setup: ChildSetup, logs: LogWriter | None) -> None:
        self.sock = sock
        self.slot = slot
        self.setup = setup
        self._logs = logs
        self.unsent = 0
        self._pid = os.getpid()
        self._reader = FrameReader()
        self.unsent_us = 0
        self._lock = threading.Lock()  # a thread of a handler may say something at any time

    def receive(self, flags: int = 0) -> list[Any] | None:
        """The frames that have come; None: the pool is gone.

        Raises:
            BlockingIOError: none has, and the flags say not to wait.
        """
        data = self.sock.recv(_RECV_BYTES, flags)
        return list(self._reader.feed(data)) if data else None

    def begin(self, order: Order) -> None:
        """What is written in this context from now on is of a call."""
        self.setup.output.put_in_place()
        if self._logs is not None:
            self._logs.begin(order.tasks[0])

    def end(self) -> None:
        """The call of this context has ended."""
        if self._logs is not None:
            self._logs.end()

    def notes_of(self, order: Order, extended: Callable[[int], object] | None = None) -> CallNotes | None:
        """Returns where a call says something; None: it is given nothing to say it with.

        Args:
            order: of the call.
            extended: see `CallNotes`.
        """
        handler = self.setup.handlers.get(order.handler)
        if handler is None or handler.info.max_batch is not None or handler.signature.parameters == 1:
            return None
        item = order.tasks[0]
        outputs = None if self.setup.outputs is None else self.setup.outputs(item)
        return CallNotes(order.number, item, self.send, extended, outputs, order.longest_ms)

    def span_of(self, order: Order, started_us: int) -> CallSpan | None:
        """The span of a call, which begins; None: nobody asks for it."""
        return None if self.setup.spans is None else self.setup.spans.begin(order.tasks, started_us)

    def end_if_copy(self) -> None:
        """Ends a copy of the process, which a handler has forked, where that comes back from the handler."""
        if os.getpid() != self._pid:
            os._exit(0)

    def send(self, frame: bytes) -> None:
        """Sends a frame; a copy of the process, which a handler has forked, says nothing."""
        if os.getpid() == self._pid:
            with self._lock:
                self.sock.sendall(frame)

    def report(self, record: CallRecord, now: int, *, behind: bool = False) -> None:
        """Keeps or sends a record; what has been sent never runs, so that the pool can tell ours from a handler's.

        Args:
            record: how a call ended.
            now: boot clock.
            behind: what the call has said must be read before it, so it goes the same way.
        """
        data = fast_json.dump([*record])
        if len(data) > MAX_FRAME_BYTES - 2:
            data = fast_json.dump([*_too_large(record)])
        kept = not behind and self.slot.put(data)
        self.slot.rest()
        if not kept:
            self.flush()
            if behind or not self.slot.put(data):
                self.send(pack(b"[" + data + b"]"))
                return
        if not self.unsent:
            self.unsent_us = now
        self.unsent += 1

    def flush(self) -> None:
        """Sends the records that are kept."""
        if self.unsent:
            self.send(pack(b"[" + self.slot.take() + b"]"))
            self.slot.clear()
            self.unsent = 0


def _too_large(record: CallRecord) -> CallRecord:
    """In place of a record that no frame takes: only that of a large batch can be one."""
    verdict = failed("result_too_large", f"The results of the batch do not fit into {MAX_FRAME_BYTES} bytes.")
    return record._replace(result=[verdict] * len(record.result), failure=None, after_ms=0)
