"""What the API remembers of the logs: all that the tables do not hold, or it says that it does not know."""

from __future__ import annotations

import pytest

from scylla_spark.api.follow.recent_records import BeyondTables, Raw
from scylla_spark.api.follow.stream_positions import Position, positions_text, read_positions
from scylla_spark.api.follow.stream_replay import _Fences
from scylla_spark.core.records.command import ENQUEUE, Command, Rules, encode
from scylla_spark.core.records.fact import Fact, Fence, encode_facts, encode_fence
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError
from tests.support.delta_tables import at

RULES = Rules(1)
KEY = TaskKey(at(10), "lane", "u")
FENCE = Fence(5, "n")


def raw(offset: int, key: TaskKey = KEY, *, keyed: bool = True, pad: int = 0) -> Raw:
    command = Command(ENQUEUE, key, 0, "h", payload='{"a":"' + "x" * pad + '"}', enqueued_us=at(9))
    return Raw(offset, at(9), key.ordering_id.encode() if keyed else None, encode(command))


def said(memory: BeyondTables, offset: int, *facts: Fact, fence: Fence = FENCE):
    (value,) = encode_facts(fence, facts)
    return memory.read_outcome(0, offset, value)


@pytest.fixture
def memory():
    found = BeyondTables({0: Mark(10, 20, FENCE)}, RULES)
    found.skip(0, 0, 0)
    return found


@pytest.mark.parametrize("keyed", [True, False])
def test_commands_of_a_key_are_found_with_or_without_a_kafka_key(memory, keyed):
    memory.read_task(0, raw(10, keyed=keyed))
    memory.read_task(0, raw(11, KEY._replace(uniqueness_key="other"), keyed=keyed))
    memory.read_task(0, Raw(12, at(9), None, b"nonsense"))
    beyond = memory.beyond(KEY, 0, Mark(10, 20))
    assert [one.offset for one in beyond.commands] == [10]
    assert [one.offset for one in memory.commands(0, "lane")] == [10, 11]


def test_only_facts_behind_the_fence_count(memory):
    assert said(memory, 20, Fact(KEY, 1, "failed", next_us=at(11))) is not None
    assert said(memory, 21, Fact(KEY, 2, "succeeded"), fence=Fence(4, "old")) is None
    memory.read_outcome(0, 22, encode_fence(Fence(6, "m"), "http://127.0.0.1:1", 0))
    assert said(memory, 23, Fact(KEY, 2, "aborted")) is None
    assert said(memory, 24, Fact(KEY, 2, "succeeded"), fence=Fence(6, "m")).epoch == 6
    assert [fact.outcome for fact in memory.beyond(KEY, 0, Mark(10, 20)).facts] == ["failed", "succeeded"]
    assert (memory.address(0), memory.places()) == ("http://127.0.0.1:1", {0: (25, 6)})


def test_tables_that_are_older_than_the_memory_are_not_enough(memory):
    assert memory.beyond(KEY, 0, Mark(9, 20)) is None
    assert memory.beyond(KEY, 0, Mark(10, 19)) is None
    assert memory.beyond(KEY, 0, Mark(10, 20)) is not None


def test_what_the_tables_hold_is_let_go_of(memory):
    for offset in (10, 11, 12):
        memory.read_task(0, raw(offset))
        said(memory, offset + 10, Fact(KEY, 1, "failed", next_us=at(11)))
    memory.let_go({0: Mark(12, 22)})
    beyond = memory.beyond(KEY, 0, Mark(12, 22))
    assert ([one.offset for one in beyond.commands], len(beyond.facts)) == ([12], 1)
    assert memory.beyond(KEY, 0, Mark(11, 22)) is None
    memory.let_go({0: Mark(99, 99)})
    assert memory.positions() == {0: (13, 23)}
    assert memory.beyond(KEY, 0, Mark(13, 23)) is not None, "what was not read yet cannot be missing"


def test_what_kafka_let_go_of_before_it_was_read_is_not_said_to_be_here(memory):
    """Who follows from within that gap is told that it is missing, since the stream reads from the log what lies below a floor."""
    memory.skip(0, 15, 30)
    assert memory.positions() == {0: (15, 30)}
    assert memory.floors() == {0: 30}
    assert memory.beyond(KEY, 0, Mark(10, 30)) is None
    assert memory.beyond(KEY, 0, Mark(15, 20)) is None
    assert memory.beyond(KEY, 0, Mark(15, 30)) is not None
    memory.skip(0, 3, 3)
    assert (memory.positions(), memory.floors()) == ({0: (15, 30)}, {0: 30})


def test_what_takes_too_much_room_is_let_go_of_and_said_to_be_missing():
    memory = BeyondTables({0: Mark(0, 0, FENCE)}, RULES, most_bytes=20_000)
    for offset in range(10):
        memory.read_task(0, raw(offset, pad=5_000))
    assert memory.beyond(KEY, 0, Mark()) is None
    assert len(memory.beyond(KEY, 0, Mark(9, 0)).commands) == 1
    for offset in range(100):
        said(memory, offset, Fact(KEY, 1, "succeeded", result='"' + "x" * 1_000 + '"'))
    assert [one.offset for one in memory.since({0: 98})] == [98, 99]
    floor = memory.floors()[0]
    assert floor > 50
    assert memory.since({0: 0}) == memory.since({0: floor}) != []


def test_places_of_the_stream_are_read_as_they_were_written():
    places = {0: Position(2**62, 7), 1: Position(0, 0)}
    assert read_positions(positions_text(places), 2) == places


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0:1",
        "0:1.2,",
        "0:1.2,1:1.2,2:1.2",
        "0:1.2,0:1.2",
        "-1:1.2,1:1.2",
        "0:1.2,1:" + "9" * 30 + ".1",
        "0:1.2," * 9_000,
    ],
)
def test_places_of_another_stream_are_refused(text):
    with pytest.raises(ArgumentError, match="Last-Event-ID"):
        read_positions(text, 2)


def test_who_comes_back_knows_the_fence_by_its_epoch():
    from scylla_spark.core.records.fact import decode

    fences = _Fences(5)
    old, own, newer = (
        decode(encode_facts(fence, [Fact(KEY, 1, "succeeded")])[0]) for fence in (Fence(4, "o"), FENCE, Fence(6, "m"))
    )
    assert [fences.admit(record) for record in (old, own, old, newer)] == [False, True, False, False]
    assert fences.admit(decode(encode_fence(Fence(6, "m"), "", 0)))
    assert [fences.admit(record) for record in (own, newer)] == [False, True]


def test_who_comes_back_without_an_epoch_believes_the_highest_that_has_written():
    from scylla_spark.core.records.fact import decode

    fences = _Fences(0)
    five, six, seven = (decode(encode_facts(Fence(epoch, "n"), [Fact(KEY, 1, "succeeded")])[0]) for epoch in (5, 6, 7))
    assert [fences.admit(record) for record in (five, six, five, seven, six)] == [True, True, False, True, False]
    assert fences.admit(decode(encode_fence(Fence(8, "m"), "", 0)))
    assert not fences.admit(seven)
