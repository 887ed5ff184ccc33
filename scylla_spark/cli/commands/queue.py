"""The commands `scylla-spark queue …`: look at what is in force of queues, and change it while everything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.context import Context, context
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.client.queues.handle import QueueStatus

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
    record = _row(status)
    if cli.output.form == "table" and not cli.output.columns:
        del record["definition"]
        record = {field: value for field, value in record.items() if value not in (None, "", {})}
    cli.output.record(record)


@app.command()
def put(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The queue; options change these fields only")] = None,
    file: Annotated[str | None, typer.Option(help="Replace the queues of a TOML, YAML or JSON file as a whole")] = None,
    mode: Annotated[str | None, typer.Option(help="push or pull")] = None,
    order: Annotated[str | None, typer.Option(help="durable or replay")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Most tasks at once, or none")] = None,
    rate: Annotated[str | None, typer.Option(help="Most starts per second, or none")] = None,
    paused: Annotated[bool | None, typer.Option("--paused/--no-paused", help="Nothing of it starts")] = None,
    group_concurrency: Annotated[str | None, typer.Option(help="Most tasks at once of a group, or none")] = None,
    group_separator: Annotated[str | None, typer.Option(help="Ends the group in an ordering id")] = None,
    weight: Annotated[list[str] | None, typer.Option(metavar="GROUP=N", help="Share of a group; all are replaced")] = None,
    ageing: Annotated[bool | None, typer.Option("--ageing/--no-ageing", help="Waiting makes urgent")] = None,
    lease: Annotated[str | None, typer.Option(help="How long a lease lasts, such as 30s; 0s: delivered once")] = None,
    max_run: Annotated[str | None, typer.Option(help="Longest that a lease is extended to; a task's own timeout goes before")] = None,
    max_retries: Annotated[str | None, typer.Option(help="Attempts after the first, or forever")] = None,
    retry_base: Annotated[str | None, typer.Option(help="Wait before the second attempt")] = None,
    retry_cap: Annotated[str | None, typer.Option(help="Longest wait before an attempt")] = None,
    on_exception: Annotated[str | None, typer.Option(help="retry or fail")] = None,
    on_false: Annotated[str | None, typer.Option(help="succeed or redeliver")] = None,
    key_reuse: Annotated[str | None, typer.Option(help="never or when_done")] = None,
    retention: Annotated[str | None, typer.Option(help="How long its history is kept, or none")] = None,
    default_handler: Annotated[str | None, typer.Option(help="Of tasks that name none, or none")] = None,
    description: Annotated[str | None, typer.Option(help="For people")] = None,
    isolation: Annotated[str | None, typer.Option(help="handler or sandbox")] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="FIELD", help="Back to its default; repeatable")] = None,
    expect: Annotated[int | None, typer.Option(help="Only if this revision is stored; 0: if none is")] = None,
) -> None:  # fmt: skip
    """Change fields of a queue, or replace queues by those of a file."""
    from scylla_spark.client.queues.queue import KEYWORDS

    # every option but --file, --unset and --expect is a field of queues, by its name
    given = {field: ctx.params.get(field) for field in KEYWORDS if field != "name"} | {"weights": _weights(weight)}
    fields = {field: _value(field, value) for field, value in given.items() if value is not None}
    cli = context(ctx)
    if file is not None:
        if name is not None or fields or unset or expect is not None:
            raise ArgumentError("A file holds whole queues.", hint="Pass --file alone, or a name and fields.")
        _put_file(cli, file)
        return
    if name is None:
        raise ArgumentError("Which queue?", hint="Pass a name with fields, such as --rate 10, or --file FILE.")
    names = tuple(field.replace("-", "_") for field in unset or ())
    with cli.scheduler() as scheduler:
        scheduler.queue(name, author=_author()).update(unset=names, expect=expect, **fields)
        status = scheduler.queue(name).get()
    cli.output.rows([_row(status)], (*_COLUMNS, "revision"))


@app.command()
def pause(ctx: typer.Context, names: Names) -> None:
    """Start no more tasks of queues; running tasks go on."""
    _steer(context(ctx), names, "paused", lambda scheduler, name: scheduler.queue(name, author=_author()).pause())


@app.command()
def resume(ctx: typer.Context, names: Names) -> None:
    """Start tasks of queues again."""
    _steer(context(ctx), names, "resumed", lambda scheduler, name: scheduler.queue(name, author=_author()).resume())


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
        _steer(cli, names, "removed", lambda scheduler, name: scheduler.queue(name, author=_author()).delete())


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


def _put_file(cli: Context, file: str) -> None:
    from scylla_spark.client.queues.files import read_queue_file

    queues = read_queue_file(file)
    with cli.scheduler() as scheduler:
        done = scheduler.put_queues(*queues, author=_author())
    cli.output.rows([{"name": name, "done": what} for name, what in sorted(done.items())], ("name", "done"))


def _statuses(cli: Context) -> dict[str, QueueStatus]:
    from scylla_spark.client.queues.handle import statuses

    with cli.scheduler() as scheduler:
        return statuses(scheduler.connection.plan.state(), scheduler.settings)


def _row(status: QueueStatus) -> dict[str, Any]:
    from scylla_spark.clock import iso, to_us

    changed = status.changed_at
    return {
        "name": status.name, "state": "paused" if status.fields["paused"] else "active", **status.fields, "source": status.source,
        "revision": status.revision, "author": status.author, "changed_at": iso(to_us(changed)) if changed else None,
        "definition": status.definition,
    }  # fmt: skip


def _value(field: str, value: Any) -> Any:
    """What an option says; numbers as numbers, "none" as null."""
    if (value == _NONE and field != "description") or (value == _FOREVER and field == "max_retries"):
        if field == "max_retries" and value == _NONE:
            raise ArgumentError("--max-retries none is not clear.", hint="Say 0, forever, or --unset max_retries.")
        return None
    if field not in _WHOLE and field != "rate":
        return value
    try:
        return int(value) if field in _WHOLE else float(value)
    except ValueError:
        raise ArgumentError(f"--{field.replace('_', '-')}: {value!r} is no number.", hint="Or none.") from None


def _weights(given: list[str] | None) -> dict[str, int] | None:
    if given is None:
        return None
    found = {}
    for text in given:
        group, _, number = text.rpartition("=")
        try:
            found[group] = int(number)
        except ValueError:
            raise ArgumentError(f"--weight {text!r} names no share.", hint="Write --weight gold=10.") from None
    return found


def _author() -> str:
    from scylla_spark.cli.commands.schedule_rows import author

    return author()
