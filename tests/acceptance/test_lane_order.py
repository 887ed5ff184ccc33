"""Tasks of one ordering id run one at a time in the order of their keys; lanes run in parallel."""

import pytest

from scylla_spark import TaskKey
from scylla_spark.testing import judge, measures
from tests.acceptance.place import SECOND, now


@pytest.mark.promise
def test_100_tasks_of_a_lane_run_in_order_without_overlap_while_50_lanes_run_in_parallel(deployment, foreign):
    due = now() + 3 * SECOND
    long = [TaskKey(due + n * 1000, "order-long", f"{n:03}") for n in range(100)]
    short = [TaskKey(due, f"order-short-{lane}", f"{n:03}") for lane in range(50) for n in range(10)]
    for key in reversed(long + short):  # whatever the order in which they are sent
        foreign.put(key, {"ms": 10})
    foreign.flush()
    ended = deployment.recorded(long + short)

    runs = deployment.history("order-")
    assert {end.outcome for end in ended.values()} == {"succeeded"}
    assert sorted(run.key for run in runs) == sorted(long + short), "each runs once"
    assert [run.key for run in runs if run.key.ordering_id == "order-long"] == long
    assert judge.disordered(runs) == []
    assert judge.overlapping(runs) == []
    assert judge.early(runs) == []
    assert measures.peak(runs) >= 4
