"""Commands that are made from rows of `tasks`."""

from __future__ import annotations

from scylla_spark.core.records.command import ENQUEUE, Command, WireRetry
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import ENQUEUED, stored_command

KEY = TaskKey(1, "lane", "u")


def test_a_row_of_tasks_becomes_the_command_that_it_was_made_from():
    command = Command(
        ENQUEUE, KEY, 7, "h", "q", '{"a":1}', 3, 5_000, WireRetry(1, 2, 3), 9, '{"x":1}', expires_ms=60_000, tags=("t",),
        traceparent="00-1", unique=True,
    )  # fmt: skip
    row = command._asdict() | {"unique_open": True, "tags": ["t"]}
    assert stored_command(KEY, 7, [row[name] for name in ENQUEUED], command.retry, 9) == command


def test_nulls_of_a_row_are_the_defaults_of_a_command():
    assert stored_command(KEY, 7, [None] * len(ENQUEUED), None, 0) == Command(ENQUEUE, KEY, 7)
