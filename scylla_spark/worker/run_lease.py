"""Runs a handler on a lease, wherever that is: in a thread of the worker or in a child process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.task import TaskContext
from scylla_spark.handlers.call import PLACE, failed, run
from scylla_spark.handlers.messages import Verdict
from scylla_spark.handlers.registry import Handler
from scylla_spark.handlers.spans import Spans
from scylla_spark.worker.handlers import ANY
from scylla_spark.worker.lease import Lease


def handler_of(handlers: Mapping[str, Handler], lease: Lease) -> Handler | None:
    """The handler of a leased task; None: there is none here."""
    return handlers.get(lease.task.handler) or handlers.get(ANY)


def work(
    handlers: Mapping[str, Handler],
    lease: Lease,
    spans: Spans | None = None,
    heard: AbstractContextManager[object] | None = None,
) -> None:
    """Runs the handler of a leased task, and reports how it ended. Nothing that it raises gets through.

    Args:
        handlers: by name.
        lease: the task.
        spans: makes a span of the attempt; None: nobody asks for one.
        heard: in which the handler runs: its lines have been told when it is left.
    """
    handler = handler_of(handlers, lease)
    if handler is None:
        name = lease.task.handler
        lease.report_verdict(failed("handler_unknown", f"This worker has no handler {name!r}."))
        return
    with heard or nullcontext():
        verdict = _called(handler, lease) if spans is None else _traced(handler, lease, spans)
    if not lease.reported:
        lease.report_verdict(verdict)


def _called(handler: Handler, lease: Lease) -> Verdict:
    process = os.getpid()
    verdict = run(handler, lease.task, context_of(handler, lease), lease.tags)
    if os.getpid() != process:
        os._exit(0)  # the handler forked, and this is the copy: it has nothing to report, and takes no other task
    return verdict


def _traced(handler: Handler, lease: Lease, spans: Spans) -> Verdict:
    span = spans.begin([lease.invocation], now_us())
    span.enter()
    verdict = _called(handler, lease)
    span.leave()
    span.end(verdict)
    return verdict


def context_of(handler: Handler, lease: Lease) -> TaskContext:
    """The context of an attempt that begins now."""
    deadline = lease.begin(handler.info.timeout_ms)
    return lease.invocation.context(deadline, lease.checkpointed, lease, lease.lost, **PLACE)
