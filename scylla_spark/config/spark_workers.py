"""Settings of Spark workers: processes on the executors of a Spark application that run handlers for a dispatcher."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, model_validator

from scylla_spark.config.section import Duration, Section
from scylla_spark.duration import duration

MOST_WORKERS = 200


class SparkWorkers(Section):
    """Spark workers of each dispatcher: long Spark tasks that run handlers."""

    min: int = Field(0, ge=0, le=MOST_WORKERS, description="Spark workers that are kept, also without work")
    max: int = Field(
        8, ge=0, le=MOST_WORKERS, description="most Spark workers, which run handlers on executors; 0 turns them off"
    )
    idle: Duration = Field(
        duration("5m"), ge=timedelta(seconds=1), description="after how long without work a worker above `min` ends"
    )
    children: int | None = Field(
        None, ge=1, le=1_000, description="most child processes of a worker; left out: 2 per core of its Spark task"
    )
    reserve: int = Field(2, ge=0, description="task slots of the cluster that workers leave to ingest and the scan")
    port: int = Field(
        0, ge=0, le=65535, description="port on which a dispatcher listens for its workers; 0: any free port"
    )
    advertise: str = Field(
        "",
        max_length=253,
        description="host or address at which executors reach a dispatcher; empty: spark.driver.host",
    )

    @model_validator(mode="after")
    def _check(self) -> SparkWorkers:
        if self.min > self.max:
            raise ValueError(f"spark_workers.min is {self.min}, and spark_workers.max only {self.max}")
        return self
