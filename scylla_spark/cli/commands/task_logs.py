"""The command `scylla-spark task logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.commands.task import Key
from scylla_spark.cli.context import context
from scylla_spark.cli.task_ids import task_key

if TYPE_CHECKING:
    from scylla_spark.client.tasks.logs import TaskLine


def register(app: typer.Typer) -> None:
    """Adds the command to those of tasks."""
    app.command()(logs)


def logs(
    ctx: typer.Context,
    key: Key,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the task has ended")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt")] = None,
) -> None:
    """Show the lines that a task has printed and logged; as json, an object per line."""
    cli = context(ctx)
    found = 0
    with cli.scheduler() as scheduler:
        for line in scheduler.task(task_key(cli, key)).logs(attempt, follow=follow):
            found += 1
            cli.output.entry(_record(line), _text(line))
    if not found:
        cli.output.say("It has written nothing, or what it wrote was purged.")


def _record(line: TaskLine) -> dict[str, Any]:
    from scylla_spark.clock import iso, to_us

    return line._asdict() | {"at": iso(to_us(line.at))}


def _text(line: TaskLine) -> str:
    moment = line.at.strftime("%Y-%m-%d %H:%M:%S.") + f"{line.at.microsecond // 1000:03}"
    return f"{moment} {line.attempt} {line.level or line.stream:<8} {line.text}"
