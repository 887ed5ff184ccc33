"""Which planned times of a schedule have run before, so that a backfill leaves them out."""

from __future__ import annotations

from scylla_spark.client.connection import Connection
from scylla_spark.client.schedules.history import history
from scylla_spark.core.plan.state.plan_state import LAUNCHED
from scylla_spark.errors import ArgumentError


def ran_before(connection: Connection, name: str, begin_us: int, end_us: int, reprocess: str) -> frozenset[int]:
    """Planned times of [begin, end) that are not to run again; microseconds since the epoch.

    Args:
        connection: to the deployment.
        name: of the schedule.
        begin_us: the first instant.
        end_us: the first that is too late.
        reprocess: "none": whatever was launched is left out; "failed": what has succeeded or runs; "all": nothing.

    Raises:
        ArgumentError: there is no such choice.
    """
    if reprocess not in ("none", "failed", "all"):
        raise ArgumentError(f"There is no reprocess={reprocess!r}.", hint='It is "none", "failed" or "all".')
    if reprocess == "all":
        return frozenset()
    past = history(connection, name)
    fires = [row for row in past.fires_about(begin_us, end_us) if row["verdict"] == LAUNCHED]
    if reprocess == "none":
        return frozenset(row["planned_at"] for row in fires)
    ended = {row["generation"]: row["outcome"] for row in reversed(past.jobs_of(fires)) if row["outcome"]}
    return frozenset(row["planned_at"] for row in fires if ended.get(row["generation"], "succeeded") == "succeeded")
