"""The commands `scylla-spark lane …`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.context import context
from scylla_spark.errors import NotFoundError

if TYPE_CHECKING:
    from scylla_spark.client.tasks.explain import LaneTask

app = typer.Typer(help="Look at lanes.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look at lanes."""


@app.command()
def show(
    ctx: typer.Context,
    ordering_id: Annotated[str, typer.Argument(help="The lane")],
    limit: Annotated[int, typer.Option(help="Most tasks")] = 20,
) -> None:
    """Show what a lane is doing and its next tasks: from its dispatcher, else from the tables."""
    from scylla_spark.client.tasks.explain import LaneTask, ask_lane
    from scylla_spark.clock import iso
    from scylla_spark.core.key import partition_of
    from scylla_spark.io.delta.task_queries import check_limit

    check_limit(limit)
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        partition = partition_of(ordering_id, scheduler.connection.rules.partitions)
        asked = ask_lane(scheduler.connection.owner_address(partition), ordering_id)
        stored = scheduler.connection.readers.lane(partition, ordering_id, None, limit)
    loaded = asked is not None and asked.loaded
    if not stored and not loaded:
        raise NotFoundError(
            f"Lane {ordering_id!r} has no open task.", hint="Tasks just enqueued reach the tables within seconds."
        )
    tasks = [
        LaneTask(row.command.key, row.attempt, iso(max(row.next_us, row.command.key.time_us)), row.cancelled)
        for row in stored
    ]
    if asked is not None and loaded:
        tasks = asked.tasks[:limit]
    state, why = (
        (asked.state, asked.why) if asked is not None else ("unknown", "No dispatcher answers for its partition.")
    )
    record = {"ordering_id": ordering_id, "partition": partition, "state": state, "why": why}
    if cli.output.form == "table" and not cli.output.columns:
        cli.output.record(record)
        cli.output.say("")
        rows = [_row(task) for task in tasks]
        cli.output.rows(rows, ("scheduled_time", "uniqueness_key", "attempts", "next_start", "cancelled"))
    else:
        cli.output.record(record | {"tasks": [_row(task) for task in tasks]})


def _row(task: LaneTask) -> dict[str, Any]:
    from scylla_spark.clock import iso

    return {
        "scheduled_time": iso(task.key.time_us), "uniqueness_key": task.key.uniqueness_key, "key": str(task.key),
        "attempts": task.attempts, "next_start": task.next_start, "cancelled": task.cancelled,
    }  # fmt: skip
