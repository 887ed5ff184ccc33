"""What the planner would refuse for its form is refused before it is sent: what is acknowledged is counted."""

import pytest

from scylla_spark.core.plan.commands.plan_answer import checked_command
from scylla_spark.core.plan.commands.plan_command import MAX_RECORD_BYTES, PlanCommand, read_command
from scylla_spark.errors import ArgumentError

CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("partitions", {"name": "d", "partitions": [{"rows": 2**53}]}, "rows"),
        ("partitions", {"name": "d", "partitions": [{"count": 0}]}, "count"),
        ("partitions", {"name": "d", "partitions": []}, "partitions"),
        ("partitions", {"name": "d", "partitions": [{"row": 1}]}, "row"),
        ("event", {"name": "e" * 1_025}, "name"),
        ("event", {"name": "e", "fields": {"n": float("nan")}}, "not JSON"),
        ("event", {"name": "e", "fields": {"n": object()}}, "not JSON"),
        ("event", {"name": "e", "fields": {"n": CYCLE}}, "not JSON"),
        ("event", {"name": "e", "fields": {"n": "\ud800"}}, "not JSON"),
        ("event", {"name": "e", "fields": {"n": "x" * 20_000}}, "16384 bytes"),
        ("event", {"name": "e", "fields": {"n": "x" * MAX_RECORD_BYTES}}, "bytes"),
        ("event", {"fields": {}}, "name"),
        ("put_queue", {"queues": [{"name": "größe", "paused": True}], "patch": True}, "name"),
        ("nonsense", {}, "type"),
    ],
)
def test_a_command_that_would_be_refused_is_not_sent(kind, fields, says):
    with pytest.raises(ArgumentError, match=says):
        checked_command(kind, **fields)


def test_a_command_that_would_be_obeyed_is_what_the_planner_reads():
    read = read_command(checked_command("event", id="1", name="stock", fields={"n": 1.5}, note=None))
    assert read == PlanCommand("event", "1", "", {"version": 1, "name": "stock", "fields": {"n": 1.5}})
