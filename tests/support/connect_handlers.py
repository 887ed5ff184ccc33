"""Handlers with a session of Spark Connect, for tests of who runs them."""

import os
import threading
import time
from pathlib import Path

from pyspark.sql import functions as F

from scylla_spark import Task, TaskContext, handler

_FOR_EVER = "SELECT count(*) FROM range(1000000000000)"


@handler("session_id", runs_on="connect")
def session_id(task: Task, ctx: TaskContext) -> list[str]:
    return [ctx.spark.session_id, ctx.spark.session_id, os.environ.get("SCYLLASPARK_CONNECT_ENDPOINT", "")]


@handler("query", runs_on="connect")
def query(task: Task, ctx: TaskContext) -> list[list[object]]:
    return [list(row) for row in ctx.spark.sql(task.payload["sql"]).collect()]


@handler("sums", runs_on="connect")
def sums(task: Task, ctx: TaskContext) -> int:
    """Writes what every shop has sold."""
    orders = ctx.spark.read.format("delta").load(task.payload["table"])
    found = orders.groupBy("shop").agg(F.sum("amount").alias("amount"))
    found.write.format("delta").mode("overwrite").save(task.payload["into"])
    return orders.count()


@handler("endless", runs_on="connect")
def endless(task: Task, ctx: TaskContext) -> None:
    """Asks Spark for what never ends; dies beside it, or fails, where the payload says so."""
    spark = ctx.spark
    ends = task.payload.get("ends")
    if ends is None:
        spark.sql(_FOR_EVER).collect()
    beside = threading.Thread(target=lambda: spark.sql(_FOR_EVER).collect(), daemon=True)
    beside.start()
    marker = Path(task.payload["marker"])
    while not marker.exists():
        time.sleep(0.01)
    if ends == "death":
        os._exit(3)
    raise RuntimeError("it fails beside what it has left running")
