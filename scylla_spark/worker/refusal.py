"""What an answer means that is not what was asked for."""

from __future__ import annotations

from scylla_spark.errors import ArgumentError, ConflictError, SchedulerError, UnreachableError
from scylla_spark.worker.connection import Reply, Site


def refusal(reply: Reply, site: Site) -> SchedulerError:
    """The error that says why the server does not do what it was asked for."""
    if reply.status in (400, 413, 422):
        return ArgumentError(f"The server refuses the call: {reply.detail}")
    if reply.status in (401, 403):
        return ConflictError(
            f"The server at {site.url} does not let this worker in: {reply.detail}",
            hint="Pass a token that may lease from its queues.",
        )
    if reply.problem and reply.status != 404:
        return UnreachableError(f"The server at {site.url} cannot do it: {reply.detail}", hint="Try again in a moment.")
    return UnreachableError(
        f"What answers at {site.url} is no API of ours: {reply.status}, {reply.detail}",
        hint="Is it the right address, with the path before /v1?",
    )
