"""A client in a session of Spark Connect, as a program: uses everything of the client that takes a session, and prints what came of it.

Arguments: address of the server, settings as JSON, folder of a Delta table with the columns u and t, folder for a checkpoint.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from scylla_spark import Scheduler
from scylla_spark.config.settings import Settings


def main(address: str, settings: str, table: str, checkpoint: str) -> None:
    """Prints a JSON object."""
    spark = SparkSession.builder.remote(address).getOrCreate()
    told = json.loads(settings)
    with Scheduler(Settings(_env_file=None, **told), spark=spark) as scheduler:
        frame = spark.range(3).select(F.concat(F.lit("plain-"), F.col("id")).alias("u"))
        plain = scheduler.enqueue_df(frame, handler="h", ordering_id=None, uniqueness_key="u")
        full = scheduler.enqueue_df(
            spark.range(3), handler=F.lit("h"), ordering_id="id", uniqueness_key=F.concat(F.lit("full-"), F.col("id")),
            payload=F.struct("id"), queue="mail", expires=F.lit("1h"), tags=F.array(F.lit("blue")),
            name="Full", description=F.concat(F.lit("number "), F.col("id")), enqueued_by="ann",
        )  # fmt: skip
        keys = scheduler.status().select("ordering_id", "uniqueness_key", "scheduled_time")
        cancelled = scheduler.cancel_df(keys)
        query = scheduler.enqueue_stream(
            spark.readStream.format("delta").load(table), handler="h", ordering_id=None, uniqueness_key="u",
            scheduled_time="t", checkpoint=checkpoint, trigger="100ms",
        )  # fmt: skip
        query.processAllAvailable()
        query.stop()
        counts = {name: getattr(scheduler, name)().count() for name in ("completions", "attempts", "rejected")}
    print(json.dumps({"plain": plain.sent, "full": full.sent, "cancelled": cancelled.sent, "tables": counts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
