"""The commands `scylla-spark queue …`: look at what is in force of queues, and change it while everything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli import stored_definitions
from scylla_spark.cli.context import Context, author, context
from scylla_spark.cli.definition_options import command_with, given_fields
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.client.queues.handle import QueueStatus
    from scylla_spark.definitions.queue import Queue

app = typer.Typer(help="Put, look at, and pause queues; changes hold within a second.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The queue")]
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="The queues")]
_COLUMNS: Final = ("name", "state", "mode", "order", "concurrency", "rate", "group_concurrency", "source")
_COUNTS: Final = ("enqueued", "started", "retries", "expired_leases", "completed")
_NONE: Final = "none"
_FOREVER: Final = "forever"
_WHOLE: Final = frozenset({"concurrency", "group_concurrency", "max_retries"})


@app.command(name="list")
def list_(ctx: typer.Context) -> None:
    """List the queues that have a definition or start values of the settings."""
    cli = context(ctx)
    rows = [_row(status) for status in _statuses(cli).values()]
    cli.output.rows(rows, _COLUMNS, empty="No queue is defined: tasks of all run without limits.")


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Show the limits in force of a queue."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        status = scheduler.queue(name).get()
    stored_definitions.show(cli, _row(status))


def _model() -> type[Queue]:
    from scylla_spark.definitions.queue import Queue

    return Queue


@app.command(cls=command_with(_model))
def put(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The queue; options change these fields only")] = None,
    file: Annotated[str | None, typer.Option(help="Replace the queues of a TOML, YAML or JSON file as a whole")] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="FIELD", help="Back to its default; repeatable")] = None,
    expect: Annotated[int | None, typer.Option(help="Only if this revision is stored; 0: if none is")] = None,
) -> None:  # fmt: skip
    """Change fields of a queue, or replace queues by those of a file."""
    cli, fields = context(ctx), given_fields(ctx)
    if file is not None:
        stored_definitions.put_file(cli, file, _model(), (name, fields, unset, expect))
        return
    if name is None:
        raise ArgumentError("Which queue?", hint="Pass a name with fields, such as --rate 10, or --file FILE.")
    names = tuple(field.replace("-", "_") for field in unset or ())
    with cli.scheduler() as scheduler:
        scheduler.queue(name, author=author()).update(unset=names, expect=expect, **fields)
        status = scheduler.queue(name).get()
    cli.output.rows([_row(status)], (*_COLUMNS, "revision"))


@app.command()
def pause(ctx: typer.Context, names: Names) -> None:
    """Start no more tasks of queues; running tasks go on."""
    _steer(context(ctx), names, "paused", lambda scheduler, name: scheduler.queue(name, author=author()).pause())


@app.command()
def resume(ctx: typer.Context, names: Names) -> None:
    """Start tasks of queues again."""
    _steer(context(ctx), names, "resumed", lambda scheduler, name: scheduler.queue(name, author=author()).resume())


@app.command()
def delete(
    ctx: typer.Context, names: Names, yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False
) -> None:
    """Delete definitions; the settings apply again, or no limits."""
    cli = context(ctx)
    if not cli.confirmed(f"delete the definition of {', '.join(names)}", yes=yes):
        return
    warnings = _warnings(cli, names)
    for warning in warnings:
        cli.output.say(warning)
    if not warnings or cli.confirmed("delete it all the same", yes=yes):
        _steer(cli, names, "removed", lambda scheduler, name: scheduler.queue(name, author=author()).delete())


@app.command()
def stats(
    ctx: typer.Context,
    name: Name,
    partitions: Annotated[bool, typer.Option("--partitions", help="A row per partition, too")] = False,
) -> None:
    """Count the tasks of a queue, from the tables: by state, started, retried, completed."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        found = scheduler.queue(name).stats().model_dump()
    parts = found.pop("partitions")
    if partitions:
        cli.output.rows([{"partition": "all"} | found, *parts], ("partition", *_COUNTS, "states"))
    else:
        cli.output.record(found)


@app.command()
def clear(
    ctx: typer.Context,
    name: Name,
    running: Annotated[
        bool,
        typer.Option(
            "--running",
            help="End what a dispatcher runs, too, after --grace; what workers have leased ends at once anyway",
        ),
    ] = False,
    grace: Annotated[str, typer.Option(help="How long what a dispatcher runs may go on")] = "10s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Cancel all open tasks of a queue that the tables show."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        queue = scheduler.queue(name)
        if dry_run:
            cli.output.record(queue.clear(dry_run=True)._asdict())
        elif yes or cli.confirmed(f"cancel {queue.clear(dry_run=True).matched} open tasks of {name}", yes=False):
            cli.output.record(queue.clear(running=running, grace=grace)._asdict())


# -- below: what several commands do ------------------------------------------------------------------------------------


def _warnings(cli: Context, names: list[str]) -> list[str]:
    """What is to be said before definitions are forgotten."""
    from scylla_spark.client.queues.handle import warning_of_delete

    with cli.scheduler() as scheduler:
        state = scheduler.connection.plan.state()
        found = [warning_of_delete(state, scheduler.settings, name) for name in names]
    return [warning for warning in found if warning is not None]


def _steer(cli: Context, names: list[str], done: str, each: Any) -> None:
    with cli.scheduler() as scheduler:
        for name in names:
            each(scheduler, name)
    cli.output.rows([{"name": name, "done": done} for name in names], ("name", "done"))


def _statuses(cli: Context) -> dict[str, QueueStatus]:
    from scylla_spark.client.queues.handle import statuses

    with cli.scheduler() as scheduler:
        return statuses(scheduler.connection.plan.state(), scheduler.settings)


def _row(status: QueueStatus) -> dict[str, Any]:
    return stored_definitions.row_of(status, source=status.source)
