"""Which workers there are, as the API tells."""

from __future__ import annotations

from typing import Any

from scylla_spark.worker.connection import Site, asked
from scylla_spark.worker.refusal import refusal


def workers(site: Site) -> list[dict[str, Any]]:
    """The workers that have called in the last ten minutes.

    Raises:
        SchedulerError: the API does not answer, or does not tell.
    """
    reply = asked(site, "GET", "/v1/workers")
    if reply.status != 200 or not isinstance(reply.document, list):
        raise refusal(reply, site)
    return reply.document


def spark_workers(site: Site) -> dict[str, Any]:
    """The Spark workers of all dispatchers (`workers`), and why there is none at those that miss one (`missing`).

    Raises:
        SchedulerError: the API does not answer, or does not tell.
    """
    reply = asked(site, "GET", "/v1/spark-workers")
    if reply.status != 200 or not isinstance(reply.document, dict):
        raise refusal(reply, site)
    return reply.document
