"""The commands `scylla-spark config …`."""

from __future__ import annotations

from typing import Annotated

import typer

from scylla_spark.cli.context import context

app = typer.Typer(help="Look at the settings.", no_args_is_help=True)


@app.command()
def show(
    ctx: typer.Context, origin: Annotated[bool, typer.Option("--origin", help="Where each value comes from")] = False
) -> None:
    """Show every setting, secrets masked."""
    from scylla_spark.config.settings import flatten, origins

    cli = context(ctx)
    values = flatten(cli.settings())
    if not origin:
        cli.output.record(values)
        return
    sources = origins(cli.file, cli.overrides)
    rows = [{"setting": name, "value": value, "origin": sources.get(name, "default")} for name, value in values.items()]
    cli.output.rows(rows, ("setting", "value", "origin"))


@app.command()
def validate(ctx: typer.Context) -> None:
    """Check the settings; exit code 7 with the reason if they are not valid."""
    cli = context(ctx)
    cli.settings()
    cli.output.say("The settings are valid.")
