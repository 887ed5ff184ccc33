"""Calls user code and turns whatever it does into a record: the innermost layer of a child."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from scylla_spark.clock import from_us
from scylla_spark.core.tasks.kept_json import MAX_LEVELS, kept_text, size_of
from scylla_spark.core.tasks.tags import is_tag
from scylla_spark.core.tasks.task import (
    ABORTED,
    FAILED,
    MAX_ERROR_CHARS,
    MAX_RESULT_BYTES,
    RATE_LIMITED,
    SUCCEEDED,
    YIELDED,
    Flag,
    Invocation,
    Notes,
    Session,
    Task,
    TaskContext,
)
from scylla_spark.duration import duration_ms
from scylla_spark.errors import Abort, ArgumentError, RateLimited, Yield, shown
from scylla_spark.handlers.messages import Verdict
from scylla_spark.handlers.registry import Handler

_FRAMES: Final = 40
_LONGEST_LIMIT_MS: Final = 86_400_000
EXECUTOR_VARIABLE: Final = "SCYLLA_SPARK_EXECUTOR_ID"
"""Variable of processes that run handlers on a Spark worker: the id of its Spark executor."""
PLACE: Final = {"host": socket.gethostname(), "executor_id": os.environ.get(EXECUTOR_VARIABLE)}
"""Fields of contexts that are the same for all attempts of this process."""
PAYLOAD_INVALID: Final = "payload_invalid"
_payload = json.JSONDecoder().decode

OK: Final = Verdict(SUCCEEDED)


def call(
    handler: Handler,
    item: Invocation,
    started_us: int,
    notes: Notes | None = None,
    cancelled: Flag | None = None,
    session: Session | None = None,
) -> Verdict:
    """Runs one task in this thread. Nothing that the handler raises gets through.

    Args:
        handler: the function to call.
        item: the attempt.
        started_us: wall clock now.
        notes: where the handler says how far it is; None: nobody listens.
        cancelled: whether it is asked to end; None: it never is.
        session: opens its session of Spark Connect; None: it has none.
    """
    try:
        task = task_of(handler, item)
    except (ValueError, RecursionError) as error:
        return failed(PAYLOAD_INVALID, f"The payload is not JSON: {error}")
    if handler.signature.parameters == 1:
        return run(handler, task, None, item.tags)
    context = context_of(item, started_us, notes, cancelled)
    return run(handler, task, context if session is None else replace(context, session=session), item.tags)


def task_of(handler: Handler, item: Invocation) -> Task:
    """The task of an attempt.

    Raises:
        ValueError: the payload is not JSON.
        RecursionError: it is nested too deep.
    """
    return Task(item.key, _payload(item.payload), handler.info.name, item.queue, item.priority)


def context_of(item: Invocation, started_us: int, notes: Notes | None, cancelled: Flag | None = None) -> TaskContext:
    """Returns what a handler may know of an attempt, and say of it.

    Args:
        item: the attempt.
        started_us: when the attempt begins: now, by the wall clock.
        notes: where the handler says how far it is; None: nobody listens.
        cancelled: whether it is asked to end; None: it never is.
    """
    deadline = from_us(started_us + item.timeout_ms * 1000)
    left = None if item.checkpoint is None else json.loads(item.checkpoint)
    return item.context(deadline, left, notes, threading.Event() if cancelled is None else cancelled, **PLACE)


class PayloadInvalid(Exception):
    """The payload of a task does not fit the type that its handler declares."""


def run(handler: Handler, task: Task, context: TaskContext | None, tags: Sequence[str]) -> Verdict:
    """Runs one handler on one task in this thread: its payload is checked, and what becomes of the call is a verdict.

    A payload that does not fit the type that the handler declares ends the task for good: it will not fit later either. An
    `async def` handler gets an event loop of its own here; in a dispatcher many share one (see `executors.local.on_loop`).

    Args:
        handler: the function to call, and how.
        task: the task.
        context: of the attempt; None only where the handler takes none.
        tags: of the task.
    """
    try:
        result = handler.function(*arguments_of(handler, task, context))
        if handler.signature.is_async:
            result = asyncio.run(result)
    except BaseException as error:
        warn_if_unshared(handler, tags, error)
        return verdict_of(error)
    return verdict_of_result(handler, result)


def warn_if_unshared(handler: Handler, tags: Sequence[str], error: BaseException) -> None:
    """Writes a line into the log of an attempt that runs into a rate limit which it does not share: nobody else waits then.

    Args:
        handler: which one.
        tags: of the task.
        error: what the handler raised.
    """
    if not isinstance(error, RateLimited) or error.key is None or not is_tag(error.key):
        return
    if error.key not in tags and error.key not in handler.info.rate_keys:
        sys.stderr.write(
            f"RateLimited({error.key!r}) holds back this task alone, since neither its handler nor the task shares that limit."
            f" Register the handler with rate_key={error.key!r}, or enqueue the task with that tag.\n"
        )


def arguments_of(handler: Handler, task: Task, context: TaskContext | None) -> tuple[Any, ...]:
    """Returns what a handler is called with.

    Args:
        handler: which one.
        task: the task.
        context: of the attempt.

    Raises:
        PayloadInvalid: the payload does not fit the type that the handler declares; the message names the fields.
        BaseException: what a validator of that type raised, which is user code.
    """
    declared = handler.signature.payload
    try:
        given = task if declared is None else declared.of_json(task.payload)
    except ArgumentError as error:
        raise PayloadInvalid(error.message) from None
    return (given,) if handler.signature.parameters == 1 else (given, context)


def verdict_of_result(handler: Handler, result: object) -> Verdict:
    """Returns what a value that a handler returned means.

    Args:
        handler: which one.
        result: what it returned.
    """
    declared = handler.signature.result
    if declared is None:
        return OK if result is None else encode_result(result)
    try:
        return encode_result(declared.plain(result))
    except BaseException as error:
        return failed("result_invalid", _text(error) if isinstance(error, ArgumentError) else describe(error))


def encode_result(result: object) -> Verdict:
    """Succeeded with the result as JSON text, or failed because it has no such text or too much of it."""
    try:
        text = kept_text(result)
        size = size_of(text)
    except BaseException as error:
        hint = f"Return None or what JSON can hold, up to {MAX_LEVELS} levels deep: dict, list, str, int, finite float, bool."
        return failed("result_not_serialisable", f"{describe(error)} {hint}")
    if size > MAX_RESULT_BYTES:
        return failed(
            "result_too_large",
            f"The result has {size} bytes; at most {MAX_RESULT_BYTES} are kept. Store it and return where.",
        )
    return Verdict(SUCCEEDED, text)


def verdict_of(error: BaseException) -> Verdict:
    """Returns what an exception that left a handler means."""
    try:
        if isinstance(error, PayloadInvalid):
            return failed(PAYLOAD_INVALID, _text(error))._replace(outcome=ABORTED)
        if isinstance(error, Abort):
            return failed("Abort", _text(error))._replace(outcome=ABORTED)
        if isinstance(error, Yield):
            return _yielded(error)
        if isinstance(error, SystemExit):
            return failed("SystemExit", f"The handler called sys.exit({error.code!r}).", stack_of(error))
        return failed(type(error).__name__, _text(error), stack_of(error))
    except BaseException as second:  # an exception object that fights back
        return failed(type(error).__name__, f"<cannot be described: {type(second).__name__}>")


def _yielded(error: Yield) -> Verdict:
    try:
        after_ms = 0 if error.after is None else duration_ms(error.after)
    except ArgumentError as wrong:
        return failed("ArgumentError", f"{type(error).__name__} cannot wait that long: {wrong}")
    if isinstance(error, RateLimited) and after_ms > _LONGEST_LIMIT_MS:
        return failed("ArgumentError", "RateLimited cannot wait longer than a day. Raise Yield if that is meant.")
    key = error.key if isinstance(error, RateLimited) else None
    if key is None:
        return Verdict(YIELDED, after_ms=after_ms)
    if not is_tag(key):
        return failed("ArgumentError", f"RateLimited has a key that can be no tag: {shown(key)}.")
    return Verdict(YIELDED, None, (RATE_LIMITED, str(key), ""), after_ms)


def failed(kind: str, message: str, stack: str = "") -> Verdict:
    """Failed, with texts cut to what is kept, and fit for UTF-8.

    Args:
        kind: class of the exception, or a code of ours.
        message: in words.
        stack: its traceback, as text.
    """
    return Verdict(FAILED, None, (clean(kind[:200]), clean(message[:MAX_ERROR_CHARS]), clean(stack)))


def clean(text: str) -> str:
    """The text with a mark in place of lone surrogates, which no file, topic or table would take."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def describe(error: BaseException) -> str:
    """Class and message on one line."""
    return f"{type(error).__name__}: {_text(error)[:1000]}"


def stack_of(error: BaseException) -> str:
    """The traceback as Python prints it, without our own frames; the middle is left out if it is long."""
    trace = error.__traceback__
    if trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        if error.__cause__ is None and (error.__context__ is None or error.__suppress_context__):
            frames = traceback.format_list(traceback.extract_tb(trace, limit=-_FRAMES))
            text = "Traceback (most recent call last):\n" + "".join(frames) + describe(error)
        else:
            text = "".join(traceback.TracebackException(type(error), error, trace, limit=-_FRAMES).format())
    except BaseException as second:
        return f"<no stack: {type(second).__name__}>"
    half = MAX_ERROR_CHARS // 2
    return text if len(text) <= MAX_ERROR_CHARS else text[: half - 8] + "\n [...] " + text[-half:]


def _text(error: BaseException) -> str:
    try:
        return str(str(error))
    except BaseException as second:
        return f"<no message: its __str__ raised {type(second).__name__}>"
