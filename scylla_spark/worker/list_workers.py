"""Which workers there are, as the API tells."""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.worker.connection import Connection, Site
from scylla_spark.worker.refusal import refusal

_PATIENCE_S: Final = 15.0


def workers(site: Site) -> list[dict[str, Any]]:
    """The workers that have called in the last ten minutes.

    Raises:
        SchedulerError: the API does not answer, or does not tell.
    """
    connection = Connection(site)
    try:
        reply = connection.request("GET", "/v1/workers", None, _PATIENCE_S)
    finally:
        connection.close()
    if reply.status != 200 or not isinstance(reply.document, list):
        raise refusal(reply, site)
    return reply.document
