"""The leased workers that an API knows, and orders to them: to drain or to stop."""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.core.leases.messages import DRAIN, STOP
from scylla_spark.errors import NotFoundError
from scylla_spark.worker.connection import Site, asked, refusal, segment

ORDERS: Final = (DRAIN, STOP)


def order(site: Site, worker: str, what: str, *, kind: str = "worker") -> dict[str, Any]:
    """Tells a worker to drain or to stop; what it was told.

    Args:
        site: where the API is.
        worker: its name, as the list of workers shows it.
        what: one of `ORDERS`; Spark workers can only be drained.
        kind: `worker` or `spark-worker`, as the paths of the API and the groups of commands name them.

    Raises:
        NotFoundError: no worker of that name has called lately.
        SchedulerError: the API does not answer, or refuses.
    """
    reply = asked(site, "POST", f"/v1/{kind}s/{segment(worker)}:{what}")
    if reply.problem == "not-found":
        raise NotFoundError(reply.detail, hint=f"`{kind} list` shows who is there.")
    if reply.status != 200 or not isinstance(reply.document, dict):
        raise refusal(reply, site)
    return reply.document


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
