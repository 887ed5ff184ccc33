"""The same key, however often it is sent: one row in `tasks`, one run."""

import polars as pl

from scylla_spark import TaskKey
from tests.acceptance.place import SECOND, now


def test_duplicates_in_one_and_in_different_micro_batches_make_one_row_and_one_run(deployment, foreign):
    due = now() + 8 * SECOND
    together = [TaskKey(due, f"dup-together-{n}", "u") for n in range(10)]
    apart = [TaskKey(due, f"dup-apart-{n}", "u") for n in range(10)]
    deployment.ingested([foreign.put(key) for key in [key for key in together for _ in range(5)] + apart])
    deployment.ingested([foreign.put(key) for key in apart])
    deployment.completed(together + apart)

    for keys in (together, apart):
        prefix = keys[0].ordering_id.rstrip("0123456789")
        assert sorted(run.key for run in deployment.history(prefix)) == sorted(keys)
        for table in ("tasks", "completions"):
            rows = deployment.rows(table).filter(pl.col("ordering_id").str.starts_with(prefix))
            assert sorted(rows["ordering_id"]) == sorted(key.ordering_id for key in keys), table
