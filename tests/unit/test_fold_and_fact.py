"""Folding commands, and the fence rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import NO_FENCE, Fact, Fence, FenceLog, OutcomeRecord, Unreadable
from scylla_spark.core.tasks.fold_commands import Folded, fold
from scylla_spark.core.tasks.key import TaskKey

KEY = TaskKey(1, "a", "b")
commands = st.lists(
    st.tuples(st.sampled_from(["enqueue", "cancel"]), st.integers(0, 50)), unique_by=lambda c: c[1], max_size=8
)


@given(commands, st.randoms(use_true_random=False))
@pytest.mark.slow
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


def test_a_fence_that_leaps_leaves_room_for_no_other_and_does_not_hold():
    log = FenceLog(Fence(3, "a"))
    assert not log.admit(OutcomeRecord(Fence(2**62, "z"), "fence"))
    assert log.admit(OutcomeRecord(Fence(4, "b"), "fence"))


def test_without_a_fence_nothing_counts():
    log = FenceLog()
    assert not log.admit(OutcomeRecord(NO_FENCE, "facts", (Fact(KEY, 1, "succeeded"),)))
    assert not log.admit(OutcomeRecord(NO_FENCE, "resign"))


def test_a_newer_record_counts_if_its_fence_holds():
    log = FenceLog(Fence(3, "a"))
    assert log.admit(OutcomeRecord(Fence(3, "a"), "newer", version=3))
    assert not log.admit(OutcomeRecord(Fence(3, "b"), "newer", version=3))
    assert not log.admit(Unreadable("not_json", "junk"))
