"""Refused records once more: as they may be sent now, or why they cannot."""

from __future__ import annotations

import json

from scylla_spark.clock import iso
from scylla_spark.core.records.command import Rejection, Rules, validate
from scylla_spark.core.records.rejection_reason import for_the_sender
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.io.kafka.command_sender import Record


def repaired(value: bytes | None, rules: Rules, now: int, *, reschedule: bool) -> Record | str:
    """The record as it may be sent now, or why it cannot.

    Args:
        value: of the record that was refused.
        rules: of the deployment.
        now: microseconds since the epoch.
        reschedule: it is due now, instead of at its own time.
    """
    try:
        fields = json.loads(value or b"")
        lane = fields["orderingId"]
        if not isinstance(lane, str):
            return "orderingId is not text."
        fields["enqueuedAt"] = iso(now)
        if reschedule:
            fields["scheduledTime"] = iso(now)
        key, partition = lane.encode(), partition_of(lane, rules.partitions)
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        return "It is not a JSON object with an orderingId."
    verdict = validate(partition, 0, now, key, text, rules)
    if isinstance(verdict, Rejection):
        return for_the_sender(verdict.reason, verdict.detail)
    return Record(partition, key, text)
