"""The options of a task that is enqueued, and the commands of tasks and of follow-ups."""

from __future__ import annotations

import json
from typing import Any, Final

from scylla_spark.core.records.command import ENQUEUE, Command, Rejection, Rules, WireRetry, payload_text, validate
from scylla_spark.core.tasks.about import About
from scylla_spark.core.tasks.follow_up import FollowUp
from scylla_spark.core.tasks.key import EARLIEST_US, LATEST_US, TaskKey
from scylla_spark.core.tasks.tags import given_tags, with_channel
from scylla_spark.core.tasks.task import FollowUpOptions, Retry
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError, shown


class EnqueueOptions(FollowUpOptions, total=False):
    """The keyword arguments of `Scheduler.enqueue`: those of `FollowUpOptions`, where `delay` counts from now, and these.

    Attributes:
        uniqueness_key: with lane and time the identity of the task: the same again overwrites. Default: a new,
            time-sortable one, so that tasks of one time keep the order in which they were enqueued.
        unique: "open": of all tasks of its lane and uniqueness key, whatever their times, one is open at most: it ends as a
            `duplicate`, without a run, if an earlier one is. Default: keys with different times do not concern each other.
        name: a title for people, 1 to 200 printable characters; it need not be unique. Default: none.
        enqueued_by: who enqueues it, 1 to 200 printable characters. It is shown as unverified; through the HTTP API it is the name
            of the token, and verified. Default: not said.
    """

    uniqueness_key: str | None
    unique: str | None
    name: str | None
    enqueued_by: str | None


def enqueue_command(
    key: TaskKey,
    handler: str | None,
    payload: Any,
    options: FollowUpOptions,
    *,
    enqueued_us: int = 0,
    unique: bool = False,
    trace: str | None = None,
    about: About | None = None,
) -> Command:
    """The command that enqueues a task.

    Args:
        key: of the task.
        handler: name; None: the default handler runs it, or a worker leases it.
        payload: a mapping of JSON values; None: empty.
        options: the key's parts in it are not read.
        enqueued_us: the client's stamp, microseconds since the epoch.
        unique: see `Command`.
        trace: the span that it belongs to, if the options name none.
        about: what people read of it.

    Raises:
        ArgumentError: a value has a type or form that cannot be written; the rules are applied later, by the sender.
    """
    try:
        body = payload_text(payload)
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentError(
            f"The payload cannot be sent: {error}.", hint="Pass a dict of JSON values.", reason="payload"
        ) from None
    retry, timeout, expires = options.get("retry"), options.get("timeout"), options.get("expires")
    if retry is not None and not isinstance(retry, Retry):
        raise ArgumentError(f"retry is {shown(retry)}.", hint="Pass Retry(max_retries=…).", reason="wrong_value")
    tags, channel = given_tags(options.get("tags")), options.get("notify")
    if channel is not None:
        tags = with_channel(tags, channel)
    return Command(
        ENQUEUE,
        key,
        0,
        handler,
        options.get("queue", DEFAULT_QUEUE),
        body,
        options.get("priority", 0),
        timeout_ms=None if timeout is None else _timeout_ms(timeout),
        retry=None if retry is None else WireRetry(*retry.terms),
        enqueued_us=enqueued_us,
        expires_ms=None if expires is None else duration_ms(expires),
        tags=tags,
        traceparent=options.get("traceparent") or trace,
        unique=unique,
        about=about,
    )


def _timeout_ms(value: object) -> int:
    ms = duration_ms(value)
    if ms < 1:
        raise ArgumentError(f"timeout is {shown(value)}.", hint="Leave it out for the default.", reason="wrong_value")
    return ms


_AT_ANY_TIME: Final = Rules(1, grace_ms=LATEST_US // 1000, retention_ms=LATEST_US // 1000)


def read_task(record: str) -> Command:
    """The command in the record of a follow-up, judged by all rules but those of its time and partition.

    Args:
        record: JSON text, as on `tasks`.

    Raises:
        ArgumentError: no deployment would take it; `fields["reason"]` says why.
    """
    hint = "Nothing was sent."
    try:
        value = record.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"The task cannot be written: {error}.", hint=hint, reason="wrong_value") from None
    judged = validate(0, 0, EARLIEST_US, None, value, _AT_ANY_TIME)
    if isinstance(judged, Rejection):
        raise ArgumentError(judged.detail, hint=hint, reason=judged.reason)
    if judged.kind != ENQUEUE or judged.request_id is not None:
        raise ArgumentError("The record is no task to enqueue.", hint=hint, reason="wrong_value")
    return judged


def command_of(one: FollowUp, parent: TaskKey, decided_us: int) -> Command:
    """The command of a follow-up; the same for the same moment.

    Args:
        one: the follow-up, a task.
        parent: key of the task whose handler enqueued it; stands in the field `parent` of the record.
        decided_us: when it was decided that it is sent, microseconds since the epoch: it counts as enqueued then.

    Raises:
        ArgumentError: no deployment would take it.
    """
    command = read_task(one.record)
    time_us = max(decided_us + one.delay_us, one.at_us)
    extra = json.loads(command.extra or "{}") | {"parent": str(parent)}
    return command._replace(
        key=command.key._replace(time_us=time_us),
        enqueued_us=decided_us,
        extra=json.dumps(extra, ensure_ascii=False, separators=(",", ":")),
    )
