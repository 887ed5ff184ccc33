"""Tasks of one ordering id run one at a time in the order of their keys; lanes run in parallel."""

import pytest

from scylla_spark import TaskKey
from scylla_spark.testing import judge
from tests.acceptance.place import PATIENCE, SECOND, now
from tests.support.waiting import eventually

AT_ONCE = 4


@pytest.mark.promise
def test_100_tasks_of_a_lane_run_in_order_without_overlap_while_50_lanes_run_in_parallel(deployment, foreign, tmp_path):
    go = tmp_path / "go"
    for lead in (3, 15, 60):  # all are sent before the first is due: a busy machine may need longer for that
        prefix, due = f"order-{lead}", now() + lead * SECOND
        long = [TaskKey(due + n * 1000, f"{prefix}-long", f"{n:03}") for n in range(100)]
        short = [TaskKey(due, f"{prefix}-short-{lane}", f"{n:03}") for lane in range(50) for n in range(10)]
        heads = short[: 10 * AT_ONCE : 10]
        for key in reversed(long + short):  # whatever the order in which they are sent
            foreign.put(key, {"until": str(go)} if key in heads else {"ms": 10})
        foreign.flush()
        if now() < due:
            break
    eventually(
        lambda: {run.key for run in deployment.history(prefix)} >= set(heads), PATIENCE, "lanes run beside each other"
    )
    go.touch()
    ended = deployment.recorded(long + short)

    runs = deployment.history(prefix)
    assert {end.outcome for end in ended.values()} == {"succeeded"}
    assert sorted(run.key for run in runs) == sorted(long + short), "each runs once"
    assert [run.key for run in runs if run.key.ordering_id == f"{prefix}-long"] == long
    assert judge.disordered(runs) == []
    assert judge.overlapping(runs) == []
    assert judge.early(runs) == []
