"""A lane whose head is being looked up in the tables, while other things happen to that head."""

from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact, OutcomeRecord
from scylla_spark.core.tables.progress import Basis
from scylla_spark.core.tasks.stored_records import Known, ScanRow
from scylla_spark.core.tasks.task import CANCELLED
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


def test_a_lane_goes_on_where_the_tables_tell_of_the_end_of_its_head_before_it_is_read_back():
    world = Harness()
    world.partition.ended.since_us = NOW + SECOND  # so that the tables are asked
    head, follower = world.enqueue(unique="u1"), world.enqueue(unique="u2", due=0.5)
    world.at(1)  # the head is looked up
    world.command("cancel", head, request_id="r")  # … and once more, for the cancel
    world.engine.looked_up(world.tenure, {head: Known()}, Basis(), world.now)
    world.pump(deliver=False, patient=False)
    ended = OutcomeRecord(world.fence, "facts", (Fact(head, 0, CANCELLED, request_id="r"),))
    world.engine.looked_up(world.tenure, {head: Known(ended=True)}, Basis(), world.now)
    world.engine.rows(world.tenure, [ScanRow(Command("enqueue", follower, 1, "h"))], Basis(), world.now)
    assert world.pump(deliver=False, patient=False) == [], "the end of the head is not read back"
    world.append(ended)
    assert [invocation.key for invocation in world.pump()] == [follower]
