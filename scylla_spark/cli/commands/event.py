"""The commands `scylla-spark event …`: tell the planner of what has happened."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scylla_spark.cli.context import context, file_or_text

app = typer.Typer(help="Tell the planner of what has happened.", no_args_is_help=True)


@app.command()
def emit(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The event, as triggers call it")],
    fields: Annotated[str, typer.Option(help="JSON object; @FILE or - for stdin")] = "{}",
) -> None:
    """Emit an event; it is counted once."""
    from scylla_spark.cli.commands.schedule_rows import json_object

    cli = context(ctx)
    given = json_object(file_or_text(fields), "event's fields")
    with cli.scheduler() as scheduler:
        scheduler.emit(name, given)
    cli.output.say(f"The event {name!r} was sent.")


@app.command()
def partitions(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Argument(help="The dataset, as triggers call it")],
    count: Annotated[int, typer.Option(min=1, help="How many partitions are new")] = 1,
    rows: Annotated[int, typer.Option(min=0, help="Their rows")] = 0,
    size: Annotated[int, typer.Option("--bytes", min=0, help="Their bytes")] = 0,
    values: Annotated[str, typer.Option(help="JSON object of partition values; @FILE or - for stdin")] = "{}",
) -> None:
    """Report new partitions of a dataset."""
    from scylla_spark.cli.commands.schedule_rows import json_object

    cli = context(ctx)
    one: dict[str, Any] = {"count": count, "rows": rows, "bytes": size}
    one |= {"values": given} if (given := json_object(file_or_text(values), "partition's values")) else {}
    with cli.scheduler() as scheduler:
        scheduler.notify_partitions(dataset, [one])
    cli.output.say(f"The planner is told of {count} partition{'s' if count > 1 else ''} of {dataset!r}.")
