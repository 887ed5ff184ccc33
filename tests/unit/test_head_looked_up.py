"""A lane whose head is being looked up in the tables, while other things happen to that head."""

from scylla_spark.core.command import Command
from scylla_spark.core.stored import Known, ScanRow
from scylla_spark.core.task import CANCELLED
from scylla_spark.core.tenure import Basis
from tests.support.engine_harness import NOW, SECOND, Harness


def test_a_lane_goes_on_where_a_cancel_ends_its_head_before_the_tables_have_answered():
    world = Harness()
    world.partition.ended.since_us = NOW + SECOND  # so that the tables are asked
    head, follower = world.enqueue(unique="u1"), world.enqueue(unique="u2", due=0.5)
    world.at(1)
    rows = [ScanRow(Command("enqueue", key, offset, "h")) for offset, key in enumerate([head, follower])]
    world.engine.rows(world.tenure, rows, Basis(), world.now)  # a scan says it first
    world.command("cancel", head, request_id="r")
    world.pump()
    assert [(fact.key, fact.outcome) for fact in world.facts] == [(head, CANCELLED)]
    assert [invocation.key for invocation in world.released] == [follower]
    world.engine.looked_up(world.tenure, {head: Known()}, Basis(), world.now)
    assert world.pump() == []
