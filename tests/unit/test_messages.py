"""Messages name values with their units, and what to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from scylla_spark.client.tasks.enqueue_result import EnqueueResult
from scylla_spark.core.records.command import Rejection, Rules, validate
from scylla_spark.core.tables.progress import Mark
from scylla_spark.duration import duration_shown
from scylla_spark.errors import WaitTimeoutError


@pytest.mark.parametrize(("value", "text"), [(60, "1m"), (0.5, "500ms"), ("90s", "1m30s"), (None, "")])
def test_a_duration_is_shown_with_its_units(value, text):
    assert duration_shown(value) == text


def test_a_wait_that_ends_says_how_long_it_was_and_what_to_do():
    connection = SimpleNamespace(readers=SimpleNamespace(marks=lambda: {("tasks", 0): Mark(tasks_offset=3)}))
    with pytest.raises(WaitTimeoutError, match="2 of the records sent are not in the tables after 10ms") as caught:
        EnqueueResult(connection, 2, {0: 5}).wait(timeout=0.01)
    assert "wait longer" in caught.value.hint


def test_a_payload_that_is_too_large_is_refused_with_its_size():
    record = b'{"orderingId":"o","scheduledTime":"2099-01-01T00:00:00Z","uniquenessKey":"u","taskData":{"x":"%s"}}' % (
        b"y" * 262_144
    )
    refused = validate(0, 0, 0, b"o", record, Rules(partitions=1))
    assert isinstance(refused, Rejection)
    assert "has 262152 bytes, and at most 262144 bytes are allowed" in refused.detail
