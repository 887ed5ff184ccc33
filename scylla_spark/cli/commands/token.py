"""The commands `scylla-spark token …`: who may use the HTTP API, and for what."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from scylla_spark.cli.context import author, context, instant
from scylla_spark.clock import from_us, iso, now_us, to_us

app = typer.Typer(help="Create, list and revoke tokens for the HTTP API.", no_args_is_help=True)

_COLUMNS: Final = ("id", "name", "state", "scopes", "namespaces", "expires_at", "author")
Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="The tokens, as `token list` names them")]


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="For people: whose it is, or what for")],
    scope: Annotated[list[str], typer.Option(help="What it allows; repeatable")],
    namespace: Annotated[list[str] | None, typer.Option(help="Only queues whose names begin so; repeatable")] = None,
    expires: Annotated[str | None, typer.Option(help="From when on it is worth nothing: an instant, or +90d")] = None,
) -> None:  # fmt: skip
    """Create a token, and print it once: it cannot be shown again.

    Scopes: read, tasks:write, tasks:write:queue=NAME, lease, lease:NAME, schedules:write, queues:write, admin.
    """
    from scylla_spark.client import tokens

    cli = context(ctx)
    expires_at = from_us(instant(expires, now_us())) if expires is not None else None
    with cli.scheduler() as scheduler:
        plan = scheduler.connection.plan
        text = tokens.create(plan, name, scope, namespace or (), expires_at, author())
    cli.output.rows([{"id": text.split("_")[1], "name": name, "token": text}], ("id", "name", "token"))
    cli.output.say("Keep the token: it is not shown again. The API knows it within seconds.")


@app.command(name="list")
def list_(ctx: typer.Context) -> None:
    """List all tokens, also expired and revoked ones; no secrets."""
    from scylla_spark.client import tokens

    cli = context(ctx)
    with cli.scheduler() as scheduler:
        found = tokens.statuses(scheduler.connection.plan.state(), now_us())
    rows = []
    for one in found:
        expires_at = iso(to_us(one.expires_at)) if one.expires_at is not None else None
        texts = {"scopes": " ".join(one.scopes), "namespaces": " ".join(one.namespaces)}
        rows.append(one._asdict() | texts | {"expires_at": expires_at, "changed_at": iso(to_us(one.changed_at))})
    cli.output.rows(rows, _COLUMNS, empty="No token is stored: on loopback the API is open.")


@app.command()
def revoke(ctx: typer.Context, ids: Ids) -> None:
    """Revoke tokens for ever; the API refuses them within five seconds."""
    from scylla_spark.client import tokens

    cli = context(ctx)
    with cli.scheduler() as scheduler:
        tokens.revoke(scheduler.connection.plan, ids, author())
    cli.output.rows([{"id": id, "done": "revoked"} for id in ids], ("id", "done"))


@app.command()
def delete(
    ctx: typer.Context, ids: Ids, yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False
) -> None:
    """Delete tokens; without any, the API is open on loopback again."""
    cli = context(ctx)
    if not cli.confirmed(f"forget {', '.join(ids)}", yes=yes):
        return
    with cli.scheduler() as scheduler:
        scheduler.connection.plan.ask("delete_token", names=ids, author=author() or None)
    cli.output.rows([{"id": id, "done": "removed"} for id in ids], ("id", "done"))
