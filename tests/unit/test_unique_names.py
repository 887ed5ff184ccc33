"""Unique names: of the open tasks of a lane and uniqueness key the first holds the name, and later ones end as duplicates."""

import pytest

from scylla_spark.core.engine.action import AskNames, Lookup
from scylla_spark.core.engine.partition import NamesHeld
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command, Rejection, Rules, encode, validate
from scylla_spark.core.records.fact import Fact, Fence, decode, encode_facts
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.fold_commands import fold
from scylla_spark.core.tasks.key import Name, TaskKey, partition_of
from scylla_spark.core.tasks.stored_records import Bearer, Known, ScanRow
from scylla_spark.core.tasks.task import CANCELLED, DUPLICATE, FAILED, SUCCEEDED
from tests.support.engine_harness import ALL_READ, NOW, SECOND, Harness
from tests.support.worker_harness import PullWorld


@pytest.fixture
def world():
    return Harness()


def ends(world):
    return [(fact.key.time_us - NOW, fact.outcome) for fact in world.facts if fact.terminal]


def key_at(seconds, lane="a", unique="u"):
    return TaskKey(NOW + int(seconds * SECOND), lane, unique)


def asked(world):
    """The only question that has not been answered; from now on it counts as asked no more."""
    world.pump()
    (item,) = world.asked
    world.asked.clear()
    return item


# -- who is refused ---------------------------------------------------------------------------------------------------------


def test_a_later_task_of_an_open_name_ends_as_a_duplicate_and_is_told_who_has_it(world):
    holder = world.enqueue(due=60)
    world.enqueue(due=30, unique="u")  # plain: keys of different times do not concern each other
    world.enqueue(due=90, **{"unique": "u"} | {"handler": "h"})
    world.command("enqueue", key_at(120), handler="h", queue="mail", unique=True, tags=("night",))
    assert world.pump() == []
    (fact,) = world.facts
    assert (fact.key, fact.outcome, fact.attempt, fact.used) == (key_at(120), DUPLICATE, 0, 0)
    assert (fact.queue, fact.handler, fact.tags, fact.failure.kind) == ("mail", "h", ("night",), DUPLICATE)
    assert str(holder) in fact.failure.message


def test_a_name_is_free_once_the_end_of_its_task_counts(world):
    world.command("enqueue", key_at(0), handler="h", unique=True)
    (run,) = world.pump()
    world.finish(run)
    world.pump()
    world.command("enqueue", key_at(1), handler="h", unique=True)
    (second,) = world.at(1)
    assert second.key == key_at(1)
    assert ends(world) == [(0, SUCCEEDED)]


def test_a_task_that_waits_for_its_next_attempt_keeps_its_name(world):
    world.command("enqueue", key_at(0), handler="h", unique=True)
    (run,) = world.pump()
    world.finish(run, FAILED)
    world.pump()
    world.command("enqueue", key_at(1), handler="h", unique=True)
    world.pump()
    assert ends(world) == [(1 * SECOND, DUPLICATE)]


def test_an_end_that_is_not_recorded_yet_neither_frees_the_name_nor_refuses_anybody(world):
    world.command("enqueue", key_at(0), handler="h", unique=True)
    (run,) = world.pump()
    world.finish(run)
    world.pump(deliver=False)
    world.command("enqueue", key_at(0.1), handler="h", unique=True)
    assert world.at(0.2) == []
    assert ends(world) == []
    send = world.other[-1]
    world.engine.sent(world.tenure, send.fence, ok=True, now=world.now)
    world.append(decode(send.records[0]))
    assert [one.key for one in world.pump()] == [key_at(0.1)]
    assert ends(world) == [(0, SUCCEEDED)]


def test_a_cancel_of_the_holder_frees_its_name(world):
    world.command("enqueue", key_at(60), handler="h", unique=True)
    world.command(CANCEL, key_at(60))
    world.command("enqueue", key_at(0), handler="h", unique=True)
    assert [one.key for one in world.pump()] == [key_at(0)]


def test_a_far_task_that_is_sent_again_while_its_cancel_is_looked_up_is_cancelled(world):
    world.tells_names = False
    world.command(CANCEL, key_at(9_000), request_id="r1")
    world.command("enqueue", key_at(9_000), handler="h", unique=True)
    world.pump()
    world.engine.looked_up(world.tenure, {key_at(9_000): Known()}, ALL_READ, world.now)
    world.pump()
    (fact,) = world.facts
    assert (fact.key, fact.outcome, fact.request_id) == (key_at(9_000), CANCELLED, "r1")


def test_the_same_key_again_updates_its_task_and_is_no_duplicate(world):
    world.command("enqueue", key_at(1), handler="h", unique=True)
    world.command("enqueue", key_at(1), handler="h", unique=True, payload='{"n":2}')
    (run,) = world.at(1)
    assert run.payload == '{"n":2}'
    assert ends(world) == []


def test_what_the_first_enqueue_of_a_task_said_counts(world):
    world.enqueue(due=30)
    world.enqueue(due=60)
    world.command("enqueue", key_at(60), handler="h", unique=True)
    world.pump()
    assert ends(world) == []


def test_other_lanes_and_other_uniqueness_keys_are_other_names(world):
    world.command("enqueue", key_at(60), handler="h", unique=True)
    world.command("enqueue", key_at(0, lane="b"), handler="h", unique=True)
    world.command("enqueue", key_at(0, unique="v"), handler="h", unique=True)
    assert {one.key for one in world.pump()} == {key_at(0, lane="b"), key_at(0, unique="v")}


def test_a_lane_goes_on_behind_a_duplicate(world):
    world.enqueue(due=60)
    world.command("enqueue", key_at(0), handler="h", unique=True)
    world.enqueue(due=1, unique="next")
    assert [one.key.uniqueness_key for one in world.at(1)] == ["next"]


def test_a_leased_task_holds_its_name_and_a_duplicate_is_never_leased():
    world = PullWorld()
    world.put(due=0)
    (lease,) = world.leases(world.once())
    world.command("enqueue", key_at(1), handler=None, queue="gpu", unique=True)
    world.pump()
    assert ends(world) == [(1 * SECOND, DUPLICATE)]
    world.report(lease.token)
    assert world.outcomes() == ["started", DUPLICATE, SUCCEEDED]


# -- before anything is known -----------------------------------------------------------------------------------------------


def test_a_task_waits_for_the_tables_and_what_is_due_behind_it_waits_too(world):
    world.tells_names = False
    world.command("enqueue", key_at(0), handler="h", unique=True)
    world.enqueue(due=0, unique="v")
    assert world.pump() == []
    item = asked(world)
    assert item == AskNames(world.tenure, [Name("a", "u")], -1)
    world.tell_names(item)
    assert [one.key.uniqueness_key for one in world.pump()] == ["u"]


def test_an_open_task_of_the_tables_holds_its_name_however_far_it_is(world):
    holder = key_at(86_400)
    world.stored = [Bearer(holder, 0, False, "default", "h")]
    world.offset = 7
    world.command("enqueue", key_at(0), handler="h", unique=True)
    assert world.pump() == []
    assert ends(world) == [(0, DUPLICATE)]


def test_what_the_tables_call_open_and_the_log_has_ended_holds_nothing(world):
    world.enqueue(due=0)
    (run,) = world.pump()
    world.finish(run)
    world.pump()
    world.stored = [Bearer(key_at(0), 0, False, "default", "h")]
    world.command("enqueue", key_at(1), handler="h", unique=True)
    assert [one.key for one in world.at(1)] == [key_at(1)]


def test_a_far_task_is_kept_until_it_is_decided_and_then_left_to_the_tables(world):
    world.tells_names = False
    world.command("enqueue", key_at(9_000), handler="h", unique=True)
    item = asked(world)
    assert world.partition.lanes["a"].entries.keys() == {key_at(9_000)}
    world.tell_names(item)
    assert world.partition.lanes == {}
    assert world.partition.far_offset == 0
    assert world.partition.let_go_of(Name("a", "u")) == 0


def test_tables_that_lack_a_record_that_was_not_kept_decide_nothing(world):
    world.enqueue(due=9_000)
    world.tells_names = False
    world.command("enqueue", key_at(0), handler="h", unique=True)
    item = asked(world)
    assert item.covering == 0
    world.tell_names(item, Basis(0, 0))
    assert asked(world) == item
    world.stored = [Bearer(key_at(9_000), 0, False, "default", "h")]
    world.tell_names(item, Basis(1, 0))
    world.pump()
    assert ends(world) == [(0, DUPLICATE)]


def test_answers_of_tables_older_than_what_was_forgotten_are_asked_for_again(world):
    world.tells_names = False
    world.command("enqueue", key_at(0), handler="h", unique=True)
    item = asked(world)
    world.partition.floor = Basis(0, 9)
    world.tell_names(item, Basis(9, 8))
    assert asked(world).names == [Name("a", "u")]
    world.tell_names(item, Basis(9, 9))
    assert len(world.pump()) == 1


def test_a_key_that_may_have_ended_is_looked_up_before_it_ends_as_a_duplicate(world):
    world.partition.ended.since_us = NOW + 10 * SECOND
    world.stored = [Bearer(key_at(60), 0, False, "default", "h")]
    world.offset = 3
    world.command("enqueue", key_at(0), handler="h", unique=True)
    world.pump()
    (lookup,) = [item for item in world.other if isinstance(item, Lookup)]
    assert lookup.keys == [key_at(0)]
    world.engine.looked_up(world.tenure, {key_at(0): Known(ended=True)}, ALL_READ, world.now)
    world.pump()
    assert ends(world) == []
    assert world.partition.lanes == {}
    assert world.partition.names.pending == set()


def test_a_holder_that_may_have_ended_is_looked_up_before_it_refuses_anybody(world):
    world.partition.ended.since_us = NOW + 10 * SECOND
    world.enqueue(due=0)  # it has run long ago, and was sent again
    world.command("enqueue", key_at(11), handler="h", unique=True)
    world.pump()
    asked_of = {key for item in world.other if isinstance(item, Lookup) for key in item.keys}
    assert asked_of == {key_at(0)}
    world.engine.looked_up(world.tenure, {key_at(0): Known(ended=True)}, ALL_READ, world.now)
    assert [one.key for one in world.at(11)] == [key_at(11)]


# -- takes ------------------------------------------------------------------------------------------------------------------


def taken(rows, stored, read=lambda world: None):
    """A partition that was just taken, with these rows of the tables; its tail has read something before."""
    world = Harness.__new__(Harness)
    Harness.__init__(world)
    tenure = world.tenure = world.engine.assign(0, Mark(50, 0), NOW)
    world.log = []
    world.stored = stored
    world.engine.raise_horizon(tenure, NOW + 300 * SECOND)
    world.engine.noted_end(tenure, 0, NOW)
    world.pump()
    read(world)
    world.engine.confirmed(tenure, world.fence, 0, NOW)
    world.engine.rows(tenure, rows, Basis(50, 0), NOW)
    world.engine.scanned(tenure, NOW + 300 * SECOND, {}, Mark(50, 0), NOW)
    return world


def row(seconds, offset, *, unique=True, first=-1, **more):
    return ScanRow(Command(ENQUEUE, key_at(seconds), offset, "h", unique=unique), first=first, **more)


def bearer(seconds, first, *, unique=True):
    return Bearer(key_at(seconds), first, unique, "default", "h")


def test_after_a_take_duplicates_are_found_that_the_owner_before_did_not_record():
    world = taken([row(30, 5), row(60, 7)], [bearer(30, 5), bearer(60, 7)])
    world.pump()
    assert ends(world) == [(60 * SECOND, DUPLICATE)]


def test_after_a_take_the_holder_is_the_task_that_was_enqueued_first_and_not_the_one_that_was_not_updated():
    world = taken([row(30, 9, first=5), row(60, 7, first=7)], [bearer(30, 5), bearer(60, 7)])
    world.pump()
    assert ends(world) == [(60 * SECOND, DUPLICATE)]


def test_after_a_take_far_duplicates_end_without_being_loaded():
    world = taken([row(30, 5)], [bearer(30, 5), bearer(9_000, 7)])
    world.pump()
    assert ends(world) == [(9_000 * SECOND, DUPLICATE)]
    assert key_at(9_000) in world.partition.ended


def test_after_a_take_nothing_unique_starts_before_the_tables_have_told_who_bears_its_name():
    world = taken([row(0, 5)], [])
    world.tells_names = False
    assert world.pump() == []
    item = asked(world)
    assert item == AskNames(world.tenure, None)
    world.tell_names(item)
    (lookup_free,) = world.pump() or world.at(0.1)
    assert lookup_free.key == key_at(0)


def test_after_a_take_a_task_that_was_enqueued_before_without_asking_for_a_unique_name_is_no_duplicate():
    def read(world):
        world.offset = 50
        world.command("enqueue", key_at(30), handler="h")
        world.command(
            "enqueue", key_at(200), handler="h", unique=True
        )  # an update: the tables know an enqueue at offset 24

    world = taken([], [], read)
    world.tells_names = False
    world.tell_names(asked(world))  # they tell of nobody by themselves, since nobody in them asked for a unique name
    item = asked(world)
    assert item.names == [Name("a", "u")]
    world.stored = [bearer(30, 50, unique=False), bearer(200, 24, unique=False)]
    world.tell_names(item)
    world.pump()
    assert ends(world) == []


def test_a_task_that_has_begun_before_a_take_had_its_name():
    world = taken([row(30, 5), row(60, 7, attempt=1, used=1, next_us=NOW + 61 * SECOND)], [])
    world.tells_names = False
    world.pump()
    assert not world.partition.lanes["a"].find(key_at(60)).undecided


def test_what_the_tables_tell_of_before_the_tail_has_read_it_waits_for_the_tail(world):
    world.offset = 7
    world.enqueue(due=-60, lane="z")  # the tail is at offset 8
    world.pump()
    world.engine.rows(world.tenure, [row(0, 9)], Basis(10, 0), world.now)
    assert [one.key.ordering_id for one in world.pump()] == []
    world.command("enqueue", key_at(60), handler="h")  # offset 8: it holds the name
    world.command("enqueue", key_at(0), handler="h", unique=True)  # offset 9
    world.pump()
    assert (0, DUPLICATE) in ends(world)


@pytest.mark.parametrize("due", [0, 5])
@pytest.mark.parametrize("newest", [3, 12])
def test_an_update_that_comes_before_the_row_of_its_task_leaves_the_name_to_be_decided(world, due, newest):
    world.offset = 9
    world.command("enqueue", key_at(due), handler="h")  # it does not say `unique`; the first enqueue did
    world.tells_names = False
    world.engine.rows(world.tenure, [row(due, newest, first=3)], Basis(newest + 1, 0), world.now)
    assert world.at(due) == []
    world.tell_names(asked(world))
    assert [one.key for one in world.at(due + 1)] == [key_at(due)]


def test_a_name_is_known_to_have_been_passed_at_its_newest_offset():
    held = NamesHeld()
    held.note_passed(Name("a", "u"), 9)
    held.note_passed(Name("a", "u"), 5)
    assert held.passed_at(Name("a", "u")) == 9


# -- memory, and formats ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_names_that_were_not_kept_are_remembered_within_a_bound():
    held = NamesHeld()
    for number in range(100_001):
        held.note_passed(Name("a", str(number)), number)
    assert len(held.passed) == 1
    assert held.passed_at(Name("a", "5")) == 99_999
    assert held.passed_at(Name("a", "100000")) == 100_000
    held.forget(100_000)
    assert held.passed_at(Name("a", "5")) == -1


def test_a_record_that_asks_for_a_unique_name_is_refused_by_older_readers():
    command = Command(ENQUEUE, key_at(0), 0, "h", enqueued_us=NOW, unique=True)
    value = encode(command)
    assert b'"version":3' in value
    assert b'"unique":"open"' in value
    assert b'"version":1' in encode(command._replace(unique=False))
    place = partition_of("a", 4)
    assert validate(place, 0, NOW, b"a", value, Rules(4)).unique
    other = validate(place, 0, NOW, b"a", value.replace(b'"open"', b'"ever"'), Rules(4))
    assert isinstance(other, Rejection)


def test_facts_of_duplicates_are_of_a_version_of_their_own():
    fact = Fact(key_at(0), 0, DUPLICATE, finished_us=NOW)
    (record,) = encode_facts(Fence(1, "n"), [fact])
    assert b'"v":4' in record
    assert decode(record).facts == (fact,)


def test_the_fold_keeps_what_the_first_enqueue_said_in_any_order():
    first, second = (Command(ENQUEUE, key_at(0), offset, unique=offset == 3) for offset in (3, 9))
    for order in ((first, second), (second, first)):
        folded = fold(order)[key_at(0)]
        assert (folded.first, folded.data) == (first, second)


@pytest.mark.parametrize("forgets", ["nothing", "a scan"])
def test_an_answer_of_tables_that_are_older_than_what_was_forgotten_is_asked_for_again(forgets):
    world = Harness()
    world.tells_names = False
    world.offset = 90
    first = world.command("enqueue", TaskKey(NOW + 100 * SECOND, "a", "u"), handler="h", unique=True)
    world.pump()
    (question,) = world.asked
    world.command("cancel", first)
    world.pump()
    world.offset = 150
    world.command("enqueue", TaskKey(NOW + 5_000 * SECOND, "a", "u"), handler="h")  # far: only that it came is known
    world.command("enqueue", TaskKey(NOW + SECOND, "a", "u"), handler="h", unique=True)
    world.pump()
    if forgets == "a scan":
        world.engine.scanned(world.tenure, world.now + 300 * SECOND, {}, Mark(200, 50), world.now)
    world.engine.named(
        world.tenure, question.names, [Bearer(first, 90, True, "default", "h")], Basis(100, 0), world.now
    )
    assert world.at(2) == [], "another task may have the name"
    assert [again.covering for again in world.asked[1:]] == [150]
