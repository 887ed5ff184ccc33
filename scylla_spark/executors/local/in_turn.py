"""How a child runs calls one after the other: in the main thread, and with no other thread of ours.

So handlers may fork, and no switching between threads slows short tasks. What must work while a handler runs (taking work back,
seeing who runs since when) goes through the shared `SharedMemory` and needs no help from here. A call that was found revoked, came
too late, or must not run because of the one before it, is RETURNED.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.executors.local.child_link import ChildLink
from scylla_spark.handlers.batch import call_batch
from scylla_spark.handlers.call import call, failed
from scylla_spark.handlers.call_notes import CallFlag, CallNotes
from scylla_spark.handlers.isolation import UNAVAILABLE
from scylla_spark.handlers.messages import BATCH, RETURNED, CallRecord, Order, Verdict, read_order
from scylla_spark.handlers.restore_process import Surroundings
from scylla_spark.handlers.spans import whole

FLUSH_RECORDS: Final = 64
FLUSH_US: Final = 3_000
QUICK_US: Final = 1_000


class InTurn:
    """Runs calls until the pool is gone, or until a call has spoilt the process for others.

    Args:
        link: to the pool.
    """

    def __init__(self, link: ChildLink) -> None:
        self._link = link
        self._setup = link.setup
        self._spoilt = False  # a call has reached a limit or left something behind, so this child runs no other
        self._surroundings = Surroundings()
        self._quick: set[str] = set()
        self._failed = 0  # the last call that did not succeed or did not run

    def serve(self) -> None:
        """The main loop."""
        link = self._link
        while (frames := link.receive()) is not None:
            for orders, _ in frames:
                for fields in orders:
                    self._run(read_order(fields))
                    if self._spoilt:
                        link.flush()
                        return
            link.flush()

    def _run(self, order: Order) -> None:
        number, name, link = order.number, order.handler, self._link
        if link.unsent and name not in self._quick:
            link.flush()  # the next one may take long, or may be the last
        started, begun = both_us()
        void = begun > order.start_by_us or (order.follows and self._failed == number - 1)
        if not link.slot.claim(number, 0 if void else begun) or void:
            self._failed = number
            link.report(CallRecord(number, RETURNED), begun)
            return
        link.begin(order)
        notes, span = link.notes_of(order), link.span_of(order, started)
        if span is not None:
            span.enter()
        verdict = self._kept(order, started, notes)
        outcome, result, failure, after_ms = verdict
        if span is not None:
            span.leave()
            span.end(whole(result) if outcome == BATCH else Verdict(*verdict))
        link.end_if_copy()
        ended = boot_us()
        if not self._surroundings.restore():
            self._spoilt = True
        duration = ended - begun
        if duration < QUICK_US:
            self._quick.add(name)
        else:
            self._quick.discard(name)
        link.end()
        if outcome != SUCCEEDED:
            self._failed = number
        record = CallRecord(number, outcome, started, duration, result, failure, after_ms)
        link.report(record, ended, behind=notes is not None and notes.asked)
        if link.unsent >= FLUSH_RECORDS or ended - link.unsent_us >= FLUSH_US:
            link.flush()

    def _kept(
        self, order: Order, started_us: int, notes: CallNotes | None
    ) -> tuple[str, Any, tuple[str, str, str] | None, int]:
        """Like `_called`, within the limits that the handler asks for; never without them."""
        if self._setup.confinement is not None:
            self._setup.confinement.begin()
            verdict, self._spoilt = self._setup.confinement.judged(self._called(order, started_us, notes))
            return verdict
        handler = self._setup.handlers.get(order.handler)
        if handler is not None and handler.info.isolation is not None:
            return failed(UNAVAILABLE, f"Handler {order.handler!r} asks for limits that this process does not have.")
        return self._called(order, started_us, notes)

    def _called(
        self, order: Order, started_us: int, notes: CallNotes | None
    ) -> tuple[str, Any, tuple[str, str, str] | None, int]:
        """Outcome, result, failure and wait, as in `CallRecord`."""
        handler = self._setup.handlers.get(order.handler)
        if handler is None:
            return failed("handler_unknown", f"No handler {order.handler!r} is registered here.")
        if handler.info.max_batch is not None:
            return BATCH, call_batch(handler, order.tasks), None, 0
        if notes is None:
            return call(handler, order.tasks[0], started_us)
        item, flag = order.tasks[0], CallFlag(order.number, self._link.slot)
        if self._setup.session_of is None:
            verdict = call(handler, item, started_us, notes, flag)
        else:
            with closing(self._setup.session_of(item.id)) as session:
                verdict = call(handler, item, started_us, notes, flag, session.get)
        notes.end()
        return verdict
