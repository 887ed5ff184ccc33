"""The commands `scylla-spark notify …`: who is told when something fails, and whether messages arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli import stored_definitions
from scylla_spark.cli.context import Context, author, context
from scylla_spark.cli.definition_options import command_with, given_fields
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.client.notification_rules import RuleStatus
    from scylla_spark.definitions.notification_rule import NotificationRule

app = typer.Typer(help="Put, look at, and test notification rules.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The rule")]
_COLUMNS: Final = ("name", "state", "when", "channel", "scope", "digest", "open")


@app.command(name="list")
def list_(ctx: typer.Context) -> None:
    """List the stored rules, with the number of their open errors."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        found = scheduler.notification_rules()
    rows = [{**_row(one), "open": len(one.open)} for one in found.values()]
    cli.output.rows(rows, _COLUMNS, empty="No rule is stored: nobody is told of anything.")


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Show a rule and its open errors."""
    from scylla_spark.client.notification_rules import status

    cli = context(ctx)
    with cli.scheduler() as scheduler:
        found = status(scheduler.connection.plan.state(), name)
    stored_definitions.show(cli, _row(found))


def _model() -> type[NotificationRule]:
    from scylla_spark.definitions.notification_rule import NotificationRule

    return NotificationRule


@app.command(cls=command_with(_model))
def put(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The rule; it is replaced as a whole")] = None,
    file: Annotated[str | None, typer.Option(help="Put the rules of a TOML, YAML or JSON file instead")] = None,
) -> None:  # fmt: skip
    """Store a rule: which events are reported, where, and how often."""
    cli, fields = context(ctx), given_fields(ctx)
    if file is not None:
        rules: Sequence[Any] = stored_definitions.put_file(cli, file, _model(), (name, fields))
    elif name is None or not {"when", "channel"} <= fields.keys():
        raise ArgumentError("Which rule?", hint="Such as `notify put broken --when failed --channel ops`.")
    else:
        rules = [_model()(name=name, **fields)]
        stored_definitions.put_all(cli, rules)
    if any(rule.tags for rule in rules):
        _warn_of_tags(cli, [rule.name for rule in rules])


@app.command()
def delete(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="The rules")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Delete rules and their open errors."""
    cli = context(ctx)
    if cli.confirmed(f"delete the notification rule {', '.join(names)}", yes=yes):
        from scylla_spark.client.stored_definitions import delete as delete_all

        with cli.scheduler() as scheduler:
            delete_all(scheduler.connection.plan, _model(), names, author())
        cli.output.rows([{"name": name, "done": "removed"} for name in names], ("name", "done"))


@app.command(name="test")
def send(
    ctx: typer.Context,
    name: Name,
    timeout: Annotated[float, typer.Option(help="How long to wait for it, seconds; 0: not at all")] = 30.0,
) -> None:
    """Send a message to the channel of a rule, and wait until it has arrived."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        handle = scheduler.test_notification_rule(name)
        done = "sent" if timeout <= 0 else _awaited(handle, timeout)
    cli.output.rows([{"name": name, "done": done, "key": str(handle.key)}], ("name", "done", "key"))


# -- below: what several commands do ------------------------------------------------------------------------------------


def _awaited(handle: Any, timeout: float) -> str:
    handle.result(timeout=timeout)
    return "arrived"


def _warn_of_tags(cli: Context, names: list[str]) -> None:
    with cli.scheduler() as scheduler:
        stored = scheduler.notification_rules()
    for name in sorted(stored.keys() & set(names)):
        if unknown := stored[name].unknown_tags:
            cli.output.say(
                f"{name}: no schedule has the tag {', '.join(unknown)}; the rule is only about tasks that have it."
            )


def _row(status: RuleStatus) -> dict[str, Any]:
    from scylla_spark.clock import iso, to_us

    fields = status.fields
    scope = [f"{kind}:{one}" for kind in ("queues", "handlers", "schedules", "tags") for one in fields.get(kind, ())]
    return stored_definitions.row_of(
        status,
        when=" ".join(fields["when"]),
        scope=" ".join(scope) or "everything",
        open=[one | {"since": iso(to_us(one["since"])), "last": iso(to_us(one["last"]))} for one in status.open],
        unknown_tags=status.unknown_tags,
    )
