"""From a follow-up to the command that is sent for it: its time is put in, and the name of its parent."""

from __future__ import annotations

import json
from typing import Final

from scylla_spark.core.records.command import ENQUEUE, Command, Rejection, Rules, validate
from scylla_spark.core.records.storable_instants import EARLIEST_US, LATEST_US
from scylla_spark.core.tasks.follow_up import FollowUp
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError

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
