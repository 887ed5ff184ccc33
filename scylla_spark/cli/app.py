"""The command tree and the global options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scylla_spark.cli.commands import (
    calendar,
    dashboard,
    event,
    handler,
    lane,
    notify,
    package,
    queue,
    rejected,
    root_commands,
    schedule,
    service,
    simulate,
    spark_worker,
    table,
    task,
    task_list,
    task_logs,
    task_outputs,
    token,
    top,
    worker,
)
from scylla_spark.cli.commands import config as settings
from scylla_spark.cli.context import parsed
from scylla_spark.errors import ExitCode

_CODES = ", ".join(f"{code.value} {code.meaning}" for code in ExitCode)
_EPILOG = f"Global options may stand anywhere. Exit codes: {_CODES}."

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, epilog=_EPILOG,
    help="A task scheduler on Kafka, Spark and Delta.",
)  # fmt: skip
for name, group in (
    ("task", task.app),
    ("schedule", schedule.app),
    ("event", event.app),
    ("calendar", calendar.app),
    ("queue", queue.app),
    ("handler", handler.app),
    ("notify", notify.app),
    ("lane", lane.app),
    ("worker", worker.app),
    ("spark-worker", spark_worker.app),
    ("token", token.app),
    ("rejected", rejected.app),
    ("table", table.app),
    ("config", settings.app),
    ("service", service.app),
):
    app.add_typer(group, name=name)
task_list.register(task.app)
task_logs.register(task.app)
task_outputs.register(task.app)
root_commands.register(app)
simulate.register(app)
dashboard.register(app)
top.register(app)
package.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from scylla_spark import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    output: Annotated[str, typer.Option("-o", "--output", help="table, json, jsonl or csv")] = "table",
    columns: Annotated[str | None, typer.Option(help="Names of the columns to show, such as a,b")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file; default: scyllaspark.toml")] = None,
    profile: Annotated[str | None, typer.Option(help="Settings file scyllaspark.NAME.toml")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of a one-machine deployment")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting: section.key=value; repeatable")] = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours", envvar="NO_COLOR")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Data and errors only")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Reads the global options."""
    file = config if profile is None else Path(f"scyllaspark.{profile}.toml")
    ctx.obj = parsed(columns, output, set_ or [], file=file, data=data, color=not no_color, quiet=quiet, debug=debug)
