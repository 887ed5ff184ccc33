"""The commands `scylla-spark lane …`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.context import check_limit, context
from scylla_spark.cli.task_ids import task_key
from scylla_spark.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from scylla_spark.client.scheduler import Scheduler
    from scylla_spark.client.tasks.explain import LaneTask

app = typer.Typer(help="Show lanes, and skip their head.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Show lanes, and skip their head."""


@app.command()
def show(
    ctx: typer.Context,
    ordering_id: Annotated[str, typer.Argument(help="The lane")],
    limit: Annotated[int, typer.Option(help="Most tasks")] = 20,
) -> None:
    """Show the state of a lane and its next tasks, from its dispatcher, else from the tables."""
    check_limit(limit)
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        record, tasks = _seen(scheduler, ordering_id, limit)
    if cli.output.form == "table" and not cli.output.columns:
        cli.output.record(record)
        cli.output.say("")
        rows = [_row(task) for task in tasks]
        cli.output.rows(rows, ("key", "attempts", "next_start", "cancelled"))
    else:
        cli.output.record(record | {"tasks": [_row(task) for task in tasks]})


@app.command()
def skip(
    ctx: typer.Context,
    key: Annotated[list[str], typer.Argument(metavar="ID", help="Of its head, as `lane show` shows it")],
    timeout: Annotated[str, typer.Option(help="How long to wait for the answer")] = "10s",
) -> None:
    """Cancel the head of a lane, so that the task behind it is next. A running head, and a task that is not the head any more, go on."""
    cli = context(ctx)
    wanted = task_key(cli, key)
    with cli.scheduler() as scheduler:
        _, (head, *_) = _seen(scheduler, wanted.ordering_id, 1)
        if head.key != wanted:
            raise ConflictError(
                f"{wanted} is not the head of its lane; nothing was done.", hint="`lane show` tells which task is."
            )
        answer = scheduler.task(wanted).cancel(timeout)
    if answer != "cancelled":
        raise ConflictError(
            f"{wanted} cannot be cancelled any more: it runs or has ended.", hint="`task cancel --grace 10s` ends what runs.",
        )  # fmt: skip
    cli.output.record({"key": str(wanted), "answer": answer})


def _seen(scheduler: Scheduler, ordering_id: str, limit: int) -> tuple[dict[str, Any], list[LaneTask]]:
    """What a lane is doing, and its next tasks.

    Raises:
        NotFoundError: it has none.
    """
    from scylla_spark.client.tasks.explain import LaneTask, ask_lane
    from scylla_spark.clock import iso
    from scylla_spark.core.tasks.key import partition_of

    partition = partition_of(ordering_id, scheduler.connection.rules.partitions)
    asked = ask_lane(scheduler.connection.owner_address(partition), ordering_id)
    if asked is not None and asked.loaded:
        tasks = asked.tasks[:limit]
    else:
        tasks = [
            LaneTask(row.command.key, row.attempt, iso(max(row.next_us, row.command.key.time_us)), row.cancelled)
            for row in scheduler.connection.readers.lane(partition, ordering_id, None, limit)
        ]
    if not tasks:
        if asked is not None:
            asked.check_known()
        raise NotFoundError(
            f"Lane {ordering_id!r} has no open task.", hint="Tasks just enqueued reach the tables within seconds."
        )
    state, why = (
        (asked.state, asked.why) if asked is not None else ("unknown", "No dispatcher answers for its partition.")
    )
    return {"ordering_id": ordering_id, "partition": partition, "state": state, "why": why}, tasks


def _row(task: LaneTask) -> dict[str, Any]:
    from scylla_spark.clock import iso

    return {
        "key": str(task.key), "scheduled_time": iso(task.key.time_us), "uniqueness_key": task.key.uniqueness_key,
        "attempts": task.attempts, "next_start": task.next_start, "cancelled": task.cancelled,
    }  # fmt: skip
