"""Trees of triggers: what can fire is taken, what never can, or is too large, is refused."""

import pytest

from scylla_spark.core.plan.times.cron import cron
from scylla_spark.core.plan.times.fire_times import FireTimes
from scylla_spark.core.plan.triggers.trigger import (
    AnyOf,
    AtTimes,
    Condition,
    OnAbsence,
    OnEvent,
    OnPartitions,
    OnRequest,
    OnRuns,
    OnTable,
    checked,
    leaves,
    nodes,
)
from scylla_spark.errors import ArgumentError

NIGHTLY = AtTimes(FireTimes(cron("0 2 * * *")))
ORDERS = OnTable("main.sales.orders", min_rows=1_000, where=(Condition("country", "=", "DE"),))


def test_a_tree_is_listed_with_parents_first_in_the_order_in_which_it_was_written():
    tree = AnyOf((NIGHTLY, AnyOf((ORDERS, OnEvent("closed")), 2)))
    assert [(type(node).__name__, depth) for node, depth in nodes(tree)] == [
        ("AnyOf", 0), ("AtTimes", 1), ("AnyOf", 1), ("OnTable", 2), ("OnEvent", 2),
    ]  # fmt: skip
    assert leaves(tree) == [NIGHTLY, ORDERS, OnEvent("closed")]


@pytest.mark.parametrize(
    "right",
    [
        NIGHTLY, ORDERS, OnTable("t", start=0), OnPartitions("sales.orders", at_least=5), OnRuns("rollup", frozenset({"failed"})),
        OnAbsence(ORDERS, 26 * 3_600_000_000), AnyOf((NIGHTLY,)), AnyOf((NIGHTLY, ORDERS), 2), AnyOf((NIGHTLY,) * 999),
    ],
)  # fmt: skip
def test_what_can_fire_is_taken(right):
    assert checked(right) is right


@pytest.mark.parametrize(
    "wrong",
    [
        AnyOf((OnRequest(), NIGHTLY)), AnyOf((NIGHTLY, AnyOf((OnRequest(),)))),
        AnyOf(()), AnyOf((NIGHTLY,), 2), AnyOf((NIGHTLY,), 0), AnyOf((NIGHTLY, AnyOf(()))), OnTable(""), OnTable("t", min_rows=-1),
        OnTable("t", min_bytes=-1), OnTable("t", min_bytes=1, where=(Condition("a", "=", 1),)),
        OnTable("t", min_commits=0), OnTable("t", settle_us=-1), OnTable("t", start=-1), OnTable("t", throttle_us=1 << 70),
        OnTable("t", where=(Condition("", "=", 1),)), OnPartitions("d", at_least=0), OnPartitions("d", at_least=True), OnPartitions("\0"),
        OnEvent("x" * 1_025), OnAbsence(ORDERS, 0), OnAbsence(OnTable(""), 10**9), OnRuns("größe"), OnRuns("a", frozenset()),
        OnRuns("a", frozenset({"running"})), AnyOf((NIGHTLY,) * 1_000),
    ],
)  # fmt: skip
def test_what_never_can_fire_or_is_too_large_is_refused(wrong):
    with pytest.raises(ArgumentError):
        checked(wrong)


@pytest.mark.slow
def test_a_tree_of_any_depth_is_refused_without_a_stack_that_overflows():
    tree = NIGHTLY
    for _ in range(100_000):
        tree = AnyOf((tree,))
    with pytest.raises(ArgumentError, match="levels"):
        checked(tree)
