"""The commands `scylla-spark notify …`: who is told when something fails, and whether messages arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.context import Context, context
from scylla_spark.errors import ArgumentError, shown

if TYPE_CHECKING:
    from scylla_spark.client.notification_rules import NotificationRule, RuleStatus

app = typer.Typer(help="Put, look at, and test notification rules.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The rule")]
_COLUMNS: Final = ("name", "state", "when", "channel", "scope", "digest", "open")
_WHEN: Final = "failed, succeeded, expired, cancelled, duplicate, missed, skipped, paused, late, overdue, silent, absent, alive; repeatable"
_Many = list[str] | None


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
    record = {**_row(found), "unknown_tags": found.unknown_tags, "definition": found.definition}
    if cli.output.form == "table" and not cli.output.columns:
        del record["definition"]
        record = {field: value for field, value in record.items() if value not in (None, "", [], {})}
    cli.output.record(record)


@app.command()
def put(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The rule; it is replaced as a whole")] = None,
    file: Annotated[str | None, typer.Option(help="Put the rules of a TOML, YAML or JSON file instead")] = None,
    when: Annotated[_Many, typer.Option(help=_WHEN)] = None,
    channel: Annotated[str | None, typer.Option(help="Name of a channel of the settings")] = None,
    queue: Annotated[_Many, typer.Option(help="Only of work in this queue, or PREFIX*; repeatable")] = None,
    handler: Annotated[_Many, typer.Option(help="Or of this handler; repeatable")] = None,
    schedule: Annotated[_Many, typer.Option(help="Or runs of this schedule; repeatable")] = None,
    tag: Annotated[_Many, typer.Option(help="Or of schedules with this tag; repeatable")] = None,
    digest: Annotated[str | None, typer.Option(help="How long what repeats is gathered; 0s: a message for each")] = None,
    within: Annotated[str | None, typer.Option(help="For absent: how long no success may be missing")] = None,
    every: Annotated[str | None, typer.Option(help="For alive: how often that is told")] = None,
    paused: Annotated[bool | None, typer.Option("--paused/--no-paused", help="It tells nothing")] = None,
    description: Annotated[str | None, typer.Option(help="For people; stands in each message")] = None,
) -> None:  # fmt: skip
    """Store a rule: which events are reported, where, and how often."""
    given: dict[str, Any] = {
        "when": when, "channel": channel, "queues": queue, "handlers": handler, "schedules": schedule, "tags": tag, "digest": digest,
        "within": within, "every": every, "paused": paused, "description": description,
    }  # fmt: skip
    fields = {field: value for field, value in given.items() if value is not None}
    cli = context(ctx)
    if file is not None and (name is not None or fields):
        raise ArgumentError("A file holds whole rules.", hint="Pass --file alone, or a name and fields.")
    if file is None and (name is None or not {"when", "channel"} <= fields.keys()):
        raise ArgumentError("Which rule?", hint="Such as `notify put broken --when failed --channel ops`.")
    _put(cli, _rules_of(file) if file is not None else [_rule({"name": name, **fields})])


@app.command()
def delete(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="The rules")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Delete rules and their open errors."""
    cli = context(ctx)
    if cli.confirmed(f"delete the notification rule {', '.join(names)}", yes=yes):
        from scylla_spark.client import notification_rules

        with cli.scheduler() as scheduler:
            notification_rules.delete(scheduler.connection.plan, names, _author())
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


def _put(cli: Context, rules: list[NotificationRule]) -> None:
    from scylla_spark.client import notification_rules

    with cli.scheduler() as scheduler:
        done = notification_rules.put(scheduler.connection.plan, rules, _author())
        stored = scheduler.notification_rules() if any(rule.tags for rule in rules) else {}
    rows = [{"name": name, "done": one["became"], "revision": one["revision"]} for name, one in sorted(done.items())]
    cli.output.rows(rows, ("name", "done", "revision"))
    for name in sorted(done.keys() & stored.keys()):
        if unknown := stored[name].unknown_tags:
            cli.output.say(
                f"{name}: no schedule has the tag {', '.join(unknown)}; tags of a rule are not those of tasks."
            )


def _rules_of(path: str) -> list[NotificationRule]:
    """The rules of a file: a list `rules`, or `[rules.NAME]` before each."""
    from scylla_spark.client.schedules.files import content_of, json_value

    content = content_of(path)
    values = content.get("rules") if isinstance(content, Mapping) else None
    if not isinstance(values, Mapping | list) or not values or content.keys() - {"rules"}:
        raise ArgumentError(f"{path} holds something else than `rules`.", hint="TOML: [rules.NAME] before each.")
    if isinstance(values, list):
        return [_rule(json_value(one)) for one in values]
    return [_rule({"name": name, **one} if isinstance(one, Mapping) else one) for name, one in values.items()]


def _rule(fields: Any) -> NotificationRule:
    from scylla_spark.client.notification_rules import NotificationRule

    if not isinstance(fields, Mapping):
        raise ArgumentError(f"A notification rule is an object with fields, not {shown(fields)}.")
    return NotificationRule.of(fields)


def _row(status: RuleStatus) -> dict[str, Any]:
    from scylla_spark.clock import iso, to_us

    fields = status.fields
    scope = [f"{kind}:{one}" for kind in ("queues", "handlers", "schedules", "tags") for one in fields.get(kind, ())]
    return {
        "name": status.name, "state": "paused" if fields.get("paused") else "active", **fields, "when": " ".join(fields["when"]),
        "scope": " ".join(scope) or "everything", "revision": status.revision, "author": status.author,
        "changed_at": iso(to_us(status.changed_at)),
        "open": [one | {"since": iso(to_us(one["since"])), "last": iso(to_us(one["last"]))} for one in status.open],
    }  # fmt: skip


def _author() -> str:
    from scylla_spark.cli.commands.schedule_rows import author

    return author()
