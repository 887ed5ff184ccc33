"""The command `scylla-spark task outputs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.commands.task import Key
from scylla_spark.cli.context import context
from scylla_spark.cli.task_ids import task_key

if TYPE_CHECKING:
    from scylla_spark.client.tasks.outputs import TaskOutput

_COLUMNS = ("attempt", "name", "bytes", "media_type", "sha256")


def register(app: typer.Typer) -> None:
    """Adds the command to those of tasks."""
    app.command()(outputs)


def outputs(
    ctx: typer.Context,
    key: Key,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt")] = None,
    save: Annotated[Path | None, typer.Option(help="Copy them into this folder; of a name the newest")] = None,
) -> None:
    """List the output files of a task's attempts, or save them."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        found = scheduler.task(task_key(cli, key)).outputs(attempt)
    rows = [_row(one) for one in found]
    if save is not None:
        newest = {one.name: one for one in found}
        rows = [_row(one) | {"saved": str(one.save(save))} for one in newest.values()]
    columns = (*_COLUMNS, "saved") if save is not None else _COLUMNS
    cli.output.rows(rows, columns, empty="It has left no files behind.")


def _row(one: TaskOutput) -> dict[str, Any]:
    return {"attempt": one.attempt, **one.link._asdict()}
