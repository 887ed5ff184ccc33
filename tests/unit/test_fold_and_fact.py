"""Folding commands, and the fence rule."""

from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.fact import (
    MAX_GROUP_BYTES,
    Fact,
    Fence,
    FenceLog,
    OutcomeRecord,
    decode,
    encode_facts,
    encode_fence,
    encode_resign,
)
from scylla_spark.core.fold import Folded, fold
from scylla_spark.core.key import TaskKey
from scylla_spark.core.task import Failure
from scylla_spark.core.wire import Command

KEY = TaskKey(1, "a", "b")
commands = st.lists(
    st.tuples(st.sampled_from(["enqueue", "cancel"]), st.integers(0, 50)), unique_by=lambda c: c[1], max_size=8
)


@given(commands, st.randoms(use_true_random=False))
def test_fold_is_the_same_in_any_order_and_with_repeats(pairs, rng):
    records = [Command(kind, KEY, offset, payload=str(offset)) for kind, offset in pairs]
    shuffled = records + rng.choices(records, k=3) if records else []
    rng.shuffle(shuffled)
    one, other = fold(records).get(KEY, Folded()), fold(shuffled).get(KEY, Folded())
    assert (one.data, one.cancel) == (other.data, other.cancel)
    enqueues = [record.offset for record in records if record.kind == "enqueue"]
    assert (one.data.offset if one.data else None) == (max(enqueues) if enqueues else None)


def test_a_fence_holds_only_if_its_epoch_is_the_highest_so_far():
    log = FenceLog()
    assert log.admit(OutcomeRecord(Fence(1, "a"), "fence"))
    assert not log.admit(OutcomeRecord(Fence(1, "b"), "fence"))
    assert log.admit(OutcomeRecord(Fence(2, "b"), "fence"))
    assert not log.admit(OutcomeRecord(Fence(1, "a"), "facts", (Fact(KEY, 1, "succeeded"),)))
    assert not log.admit(OutcomeRecord(Fence(2, "a"), "facts"))
    assert log.admit(OutcomeRecord(Fence(2, "b"), "facts"))


def test_only_the_holder_can_resign():
    log = FenceLog(Fence(3, "a"))
    log.admit(OutcomeRecord(Fence(2, "z"), "resign"))
    assert not log.resigned
    log.admit(OutcomeRecord(Fence(3, "a"), "resign"))
    assert log.resigned


def test_facts_read_back_as_they_were():
    facts = [
        Fact(KEY, 1, "failed", 5, 6, 4, 1, 99, None, Failure("ValueError", "é\n", "stack")),
        Fact(KEY, 2, "succeeded", 7, 8, 4, 2, None, '{"x":1}'),
        Fact(KEY, 0, "too_late", request_id="r"),
    ]
    (value,) = encode_facts(Fence(4, "n"), facts)
    assert decode(value) == OutcomeRecord(Fence(4, "n"), "facts", tuple(facts))


def test_large_groups_are_split_in_order():
    facts = [Fact(TaskKey(1, "a", str(n)), 1, "succeeded", result='"' + "x" * 60_000 + '"') for n in range(30)]
    values = encode_facts(Fence(1, "n"), facts)
    assert len(values) > 1
    assert all(len(value) < 2 * MAX_GROUP_BYTES for value in values)
    assert [fact for value in values for fact in decode(value).facts] == facts


def test_fences_and_resignations_read_back():
    assert decode(encode_fence(Fence(2, "n"), "http://x", 5)) == OutcomeRecord(
        Fence(2, "n"), "fence", address="http://x"
    )
    assert decode(encode_resign(Fence(2, "n"))) == OutcomeRecord(Fence(2, "n"), "resign")


@given(st.binary(max_size=200))
def test_foreign_bytes_on_outcomes_are_nothing(value):
    assert decode(value) is None


def test_hostile_json_on_outcomes_is_nothing():
    bad = [b"[]", b"{}", b'{"v":1}', b'{"v":1,"epoch":"x","nonce":1,"facts":[]}', b'{"v":1,"epoch":1,"nonce":"n","facts":[[1]]}',
           b'{"v":1,"epoch":1,"nonce":"n","facts":[[1,"a","b"]]}',
           b'{"v":1,"epoch":1,"nonce":"n","facts":[[1,"a","b",1,"x",0,0,0,0,null,null,5]]}',
           b'{"v":1,"epoch":1,"nonce":"n","fence":5}', b"[" * 100_000]  # fmt: skip
    assert [decode(value) for value in bad] == [None] * len(bad)
