"""The end of a streaming query of ingest: between two batches where that comes soon, else in the middle of one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from scylla_spark.clock import boot_us
from scylla_spark.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = get_logger("ingest")


def end_query(spark: SparkSession, query: StreamingQuery, until_us: int, between: str) -> None:
    """Stops a query while it waits for its trigger; a batch that takes longer is cut off, and the next start repeats it.

    A query that cannot be stopped ends with its JVM.

    Args:
        spark: its session.
        query: to be stopped.
        until_us: boot clock; so long its batch may go on.
        between: job group of the work that may hold the lock which the batch waits for; it is cut off, too.
    """
    try:
        name, pause, told_us = query.name, threading.Event(), 0
        while (busy := _is_busy(query)) and boot_us() < until_us:
            if not told_us:
                told_us = boot_us()
                log.info("the stop waits for a batch", query=name, limit_s=round((until_us - told_us) / 1e6, 1))
            pause.wait(0.1)
        if busy:
            log.info("a batch is cut off; the next start repeats it", query=name)
            context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark cancels no jobs to come
            for group in (str(query.runId), between):  # the query's own stop cancels the jobs of that moment only
                context.cancelJobGroupAndFutureJobs(group)
        query.stop()
    except Exception as error:
        log.warning("a query did not stop in good order; the next start repeats its batch", error=repr(error)[:300])


def _is_busy(query: StreamingQuery) -> bool:
    return query.isActive and bool(query.status["isTriggerActive"])
