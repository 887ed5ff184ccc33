"""What a handler enqueues or emits: decided in the log, sent once the attempt has succeeded, acknowledged before that counts."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from scylla_spark.core.engine import action
from scylla_spark.core.records.command import CANCEL, Command, encode
from scylla_spark.core.tables.progress import Basis
from scylla_spark.core.tasks.about import About
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.enqueue_options import command_of, read_task
from scylla_spark.core.tasks.follow_up import EVENT, MAX_FOLLOW_UPS, TASK, FollowUp, unique_key
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.core.tasks.task import FAILED, STARTED, SUCCEEDED, YIELDED, Failure, Retry
from scylla_spark.errors import ArgumentError
from scylla_spark.executors.local.received_notes import Heard
from scylla_spark.executors.local.report import is_note, read_follow_up
from scylla_spark.handlers import follow_ups
from scylla_spark.handlers.framing import ProtocolError
from scylla_spark.services.dispatch.follow_ups import event_record
from scylla_spark.testing.call_notes import HeardCall
from tests.support.engine_harness import NOW, SECOND, Harness
from tests.support.invocations import invocation

PARENT = TaskKey(NOW, "lane", "parent")
ONE = follow_ups.task(PARENT, "next", "h", {"n": 1}, {})
ROW = invocation(*PARENT, timeout_ms=30_000)
HOUR = 3600


def sends(world):
    return [item for item in world.other if isinstance(item, action.SendFollowUps)]


def outcomes(world):
    return [fact.outcome for fact in world.facts]


def returned(world, **fields):
    """A world in which a task has returned that asked for one follow-up."""
    world.enqueue(**fields)
    (first,) = world.pump()
    world.finish(first, follow_ups=(ONE,))
    world.pump()
    return first


# -- the engine -----------------------------------------------------------------------------------------------------------


def test_task_succeeds_only_when_what_it_asked_for_is_acknowledged():
    world = Harness()
    first = returned(world)
    (asked,) = sends(world)
    assert asked == (first.id, first.key, world.facts[0].work.decided_us, (ONE,))
    assert outcomes(world) == [STARTED]
    assert world.at(30) == []
    assert outcomes(world) == [STARTED], "it waits as long as it takes"
    world.engine.followed_up(first.id, None, world.now)
    world.pump()
    assert outcomes(world) == [STARTED, SUCCEEDED]
    assert world.facts[-1].used == 1
    assert len(sends(world)) == 1


def test_moment_stands_in_the_log_before_anything_is_sent():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    world.finish(first, follow_ups=(ONE,))
    world.pump(deliver=False)
    assert sends(world) == []


def test_start_that_is_on_its_way_is_told_again_with_the_moment():
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    world.engine.noted({first.id: WorkNote(progress=0.5)}, {first.id: world.now}, world.now)
    world.finish(first, follow_ups=(ONE,), work=WorkNote(progress=1.0))
    world.pump()
    assert [(fact.outcome, fact.work.progress, fact.work.decided_us > 0) for fact in world.facts] == [
        (STARTED, 0.5, False),
        (STARTED, 1.0, True),
    ]
    assert len(sends(world)) == 1


@pytest.mark.parametrize("outcome", [FAILED, YIELDED])
def test_attempt_that_does_not_succeed_sends_nothing(outcome):
    world = Harness()
    world.enqueue()
    (first,) = world.pump()
    world.finish(first, outcome, follow_ups=(ONE,))
    world.pump()
    assert outcomes(world) == [outcome]
    assert sends(world) == []


def test_attempt_fails_whose_follow_ups_are_not_acknowledged_and_the_next_one_counts_from_the_same_moment():
    world = Harness()
    first = returned(world)
    world.engine.followed_up(first.id, Failure("follow_up_unacknowledged", "no broker"), world.now)
    world.pump()
    assert (world.facts[-1].outcome, world.facts[-1].failure.kind) == (FAILED, "follow_up_unacknowledged")
    (second,) = world.at(60)
    assert second.attempt == 2
    world.finish(second, follow_ups=(ONE,))
    world.pump()
    before, after = sends(world)
    assert after.decided_us == before.decided_us


def test_attempt_in_between_that_asks_for_nothing_keeps_the_moment():
    world = Harness()
    first = returned(world)
    world.engine.followed_up(first.id, Failure("follow_up_unacknowledged"), world.now)
    (second,) = world.at(60)
    world.finish(second, FAILED, work=WorkNote(checkpoint='{"row":7}'))
    (third,) = world.at(120)
    assert third.checkpoint == '{"row":7}'
    world.finish(third, follow_ups=(ONE,))
    world.pump()
    assert len({asked.decided_us for asked in sends(world)}) == 1


@pytest.mark.parametrize(("later", "same"), [(60, True), (2 * HOUR, False)])
def test_next_owner_counts_from_the_recorded_moment_as_long_as_brokers_believe_it(later, same):
    world = Harness()
    key = world.enqueue(due=30)
    command = world.engine.partitions[0].lanes["a"].find(key).data
    decided = NOW + (30 - later) * SECOND
    row = ScanRow(command, attempt=1, used=1, next_us=NOW + 30 * SECOND, work=WorkNote(since_us=decided))
    world.engine.rows(world.tenure, [row], Basis(), world.now)
    (again,) = world.at(40)
    world.finish(again, follow_ups=(ONE,))
    world.pump()
    assert (sends(world)[0].decided_us == decided) is same


def test_lane_waits_for_what_its_head_has_asked_for():
    world = Harness()
    first = returned(world, unique="1")
    world.enqueue(unique="2")
    assert world.pump() == []
    world.engine.followed_up(first.id, None, world.now)
    assert [one.key.uniqueness_key for one in world.pump()] == ["2"]


def test_answer_for_a_partition_that_is_lost_is_dropped():
    world = Harness()
    first = returned(world)
    world.engine.drop(0)
    world.engine.followed_up(first.id, None, world.now)
    world.pump()
    assert outcomes(world) == [STARTED]
    assert world.engine._runs.returned == {}


def test_partition_is_not_left_before_all_is_acknowledged():
    world = Harness()
    first = returned(world)
    world.engine.revoke(0, world.now)
    world.pump()
    assert not any(isinstance(item, action.Left) for item in world.other)
    world.engine.followed_up(first.id, None, world.now)
    world.pump()
    assert [item.clean for item in world.other if isinstance(item, action.Left)] == [True]
    assert SUCCEEDED in outcomes(world)


def test_cancel_while_it_is_sent_comes_too_late():
    world = Harness()
    first = returned(world)
    world.command(CANCEL, first.key, request_id="r", grace_ms=1000)
    world.pump()
    world.engine.followed_up(first.id, None, world.now)
    world.pump()
    assert [fact.outcome for fact in world.facts if fact.terminal] == [SUCCEEDED]


# -- from a follow-up to a command ----------------------------------------------------------------------------------------


def test_command_is_the_same_for_the_same_moment():
    options = {
        "delay": "5m",
        "ordering_id": "acme",
        "queue": "mail",
        "priority": 3,
        "retry": Retry(2, "1s", "2s"),
        "timeout": "30s",
    }
    one = follow_ups.task(PARENT, "next", "remind", {"n": 1}, options)
    command = command_of(one, PARENT, NOW)
    assert command == command_of(one, PARENT, NOW)
    assert command.key == TaskKey(NOW + 300 * SECOND, "acme", unique_key(PARENT, "next"))
    assert (command.handler, command.queue, command.priority, command.timeout_ms, command.retry) == (
        "remind",
        "mail",
        3,
        30_000,
        (2, 1000, 2000),
    )
    assert (command.payload, command.enqueued_us) == ('{"n":1}', NOW)
    assert json.loads(command.extra) == {"parent": str(PARENT)}


def test_follow_up_has_its_name_a_description_and_a_channel():
    options = {"description": "of May, password=hunter22", "notify": "ops", "tags": ["mail"]}
    command = command_of(follow_ups.task(PARENT, "Invoices", "h", {}, options), PARENT, NOW)
    assert command.about == About("Invoices", "of May, password=***")
    assert command.tags == ("mail", "notify:ops")


@pytest.mark.parametrize("name", ["#1", "two\nlines", " spaces "])
def test_name_of_a_follow_up_that_is_no_title_is_none(name):
    assert command_of(follow_ups.task(PARENT, name, "h", {}, {}), PARENT, NOW).about is None


@pytest.mark.parametrize("wrong", [{"description": ""}, {"description": 7}, {"notify": "no name"}])
def test_follow_up_with_a_wrong_description_or_channel_is_refused_at_once(wrong):
    with pytest.raises(ArgumentError):
        follow_ups.task(PARENT, "x", "h", {}, wrong)


def test_time_that_is_over_becomes_that_of_the_parents_success():
    at = datetime.fromisoformat("2020-01-01T00:00:00Z")
    assert command_of(follow_ups.task(PARENT, "x", "h", {}, {"at": at}), PARENT, NOW).key.time_us == NOW
    later = follow_ups.task(PARENT, "x", "h", {}, {"at": datetime.fromisoformat("2030-01-01T00:00:00Z")})
    assert command_of(later, PARENT, NOW).key.scheduled_time.year == 2030


def test_keys_differ_by_parent_and_by_name():
    other = PARENT._replace(uniqueness_key="other")
    assert len({unique_key(parent, name) for parent in (PARENT, other) for name in ("#1", "#2", "x")}) == 6


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", "\ud800", encode(Command(CANCEL, PARENT, 0)).decode(), encode(Command("enqueue", PARENT, 0, request_id="r")).decode()],
)  # fmt: skip
def test_record_that_is_no_task_is_refused(record):
    with pytest.raises(ArgumentError):
        read_task(record)


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"name":1,"fields":{}}', '{"name":"e","fields":[]}', "[" * 100_000]
)
def test_record_that_is_no_event_is_refused(record):
    with pytest.raises(ArgumentError):
        event_record(FollowUp(EVENT, "#1", record))


# -- what a handler may ask for -------------------------------------------------------------------------------------------


def test_call_is_heard_with_all_that_it_asks_for_and_the_last_of_a_name_counts():
    heard = HeardCall(ROW)
    heard.notes.enqueue("h", {"n": 1}, None, {})
    heard.notes.enqueue("h", {"n": 2}, "x", {})
    heard.notes.enqueue("h", {"n": "ü"}, "x", {})
    heard.notes.emit("stock", {"site": 3})
    work, asked = heard.end()
    assert work is None
    assert [(one.kind, one.name) for one in asked] == [(TASK, "#1"), (TASK, "x"), (EVENT, "#2")]
    assert read_task(asked[1].record).payload == '{"n":"ü"}'
    assert json.loads(event_record(asked[2]))["fields"] == {"site": 3}
    with pytest.raises(ArgumentError, match="over"):
        heard.notes.emit("stock", {})


@pytest.mark.parametrize(
    ("name", "payload", "options"),
    [
        ("", {}, {}), ("#1", {}, {}), ("x" * 201, {}, {}), (7, {}, {}), (None, [1], {}), (None, {"a": object()}, {}),
        (None, {"a": "x" * 300_000}, {}), (None, {}, {"priority": 256}), (None, {}, {"queue": "no name"}), (None, {}, {"ordering_id": 7}),
        (None, {}, {"ordering_id": ""}), (None, {}, {"ordering_id": "\ud800"}), (None, {}, {"delay": "soon"}), (None, {}, {"delay": -1}),
        (None, {}, {"at": "tomorrow"}), (None, {}, {"at": datetime(2030, 1, 1), "delay": 1}), (None, {}, {"retry": 3}),  # noqa: DTZ001
        (None, {}, {"timeout": "x"}), (None, {"a": float("nan")}, {}),
    ],
)  # fmt: skip
def test_what_nobody_would_take_is_refused_in_the_handler(name, payload, options):
    heard = HeardCall(ROW)
    with pytest.raises(ArgumentError):
        heard.notes.enqueue("h", payload, name, options)
    assert heard.end() == (None, ())


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("", {}), (7, {}), ("x" * 201, {}), ("e", [1]), ("e", {"a": object()}), ("e", {"a": "x" * 17_000}), ("e", {"a": float("inf")}),
    ],
)  # fmt: skip
def test_event_that_no_planner_would_take_is_refused_in_the_handler(event, fields):
    with pytest.raises(ArgumentError):
        HeardCall(ROW).notes.emit(event, fields)


@pytest.mark.slow
def test_attempt_asks_for_so_much_and_no_more():
    heard = HeardCall(ROW)
    for _ in range(MAX_FOLLOW_UPS):
        heard.notes.emit("e", {})
    with pytest.raises(ArgumentError, match="more than 1000"):
        heard.notes.emit("e", {})
    large = HeardCall(ROW)
    for _ in range(5):
        large.notes.enqueue("h", {"a": "x" * 200_000}, None, {})
    with pytest.raises(ArgumentError, match="too large"):
        large.notes.enqueue("h", {"a": "x" * 200_000}, None, {})
    _, asked = large.end()
    assert len(asked) == 5


@pytest.mark.parametrize(
    "record",
    [
        ["follow_up"], ["follow_up", 1, "task", "x", "{}", 0], ["follow_up", "1", "task", "x", "{}", 0, 0],
        ["follow_up", 0, "task", "x", "{}", 0, 0], ["follow_up", 1, "other", "x", "{}", 0, 0], ["follow_up", 1, ["task"], "x", "{}", 0, 0],
        ["follow_up", 1, "task", "", "{}", 0, 0], ["follow_up", 1, "task", 7, "{}", 0, 0], ["follow_up", 1, "task", "x", 7, 0, 0],
        ["follow_up", 1, "task", "x", "x" * 1_100_000, 0, 0], ["follow_up", 1, "task", "x", "{}", -1, 0],
        ["follow_up", 1, "task", "x", "{}", 0, 2**63], ["follow_up", 1, "task", "x", "{}", True, 0],
        ["follow_up", 1, "task", "x", "{}", 0, 1.5],
    ],
)  # fmt: skip
def test_follow_up_that_no_child_of_ours_sends_is_refused(record):
    assert is_note(record)
    with pytest.raises(ProtocolError):
        read_follow_up(record)


def test_child_that_asks_for_too_much_is_found_out():
    heard = Heard()
    for number in range(MAX_FOLLOW_UPS):
        heard.take(["follow_up", 1, "event", f"#{number}", "{}", 0, 0], {1})
    heard.take(["follow_up", 1, "event", "#7", "{}", 0, 0], {1})
    with pytest.raises(ProtocolError, match="more follow-ups"):
        heard.take(["follow_up", 1, "event", "one more", "{}", 0, 0], {1})
