"""Batch handlers for the executors' tests; apart from the others because pandas takes long to import."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa

from scylla_spark.handlers.registry import handler


@handler("batch_arrow", max_batch=100)
def batch_arrow(tasks: pa.Table) -> pa.Table:
    assert tasks.schema.field("scheduled_time").type == pa.timestamp("us", tz="UTC")
    payloads = tasks.column("payload").to_pylist()
    outcomes = [{'"fail"': "failed", '"abort"': "aborted"}.get(p) for p in payloads]
    results = [{"size": len(tasks), "at": at} for at in range(len(tasks))]
    return pa.table({"outcome": pa.array(outcomes, pa.string()), "result": results, "error": ["because"] * len(tasks)})


@handler("batch_pandas", max_batch=100)
def batch_pandas(tasks: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"result": tasks["ordering_id"] + "/" + tasks["uniqueness_key"]})


@handler("batch_none", max_batch=10)
def batch_none(tasks: pa.Table) -> None:
    return None


@handler("batch_short", max_batch=100)
def batch_short(tasks: pa.Table) -> pa.Table:
    return pa.table({"result": [1]})


@handler("batch_list", max_batch=100)
def batch_list(tasks: pa.Table) -> list:
    return [1] * len(tasks)


@handler("batch_exit", max_batch=100)
def batch_exit(tasks: pa.Table) -> None:
    os._exit(9)


@handler("batch_append", max_batch=7)
def batch_append(tasks: pa.Table) -> None:
    """Appends the lane's sequence to the file in the payload."""
    with Path("/").joinpath(tasks.column("payload")[0].as_py().strip('"')).open("a") as file:
        file.writelines(f"{lane} {key}\n" for lane, key in zip(*tasks.select([0, 1]).to_pydict().values(), strict=True))


@handler("batch_wait", max_batch=10)
def batch_wait(tasks: pa.Table) -> None:
    """Ends when the file named in the first payload is there."""
    file = Path(json.loads(tasks["payload"][0].as_py()))
    while not file.exists():
        time.sleep(0.01)
