"""The commands `scylla-spark handler …`: what tasks can name, as the dispatchers that run say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.context import context
from scylla_spark.errors import NotFoundError

if TYPE_CHECKING:
    from scylla_spark.cli.context import Context
    from scylla_spark.client.handlers import Catalogue

app = typer.Typer(help="Look at the handlers that dispatchers have.", no_args_is_help=True)

_COLUMNS: Final = ("name", "runs_on", "isolation", "payload", "module", "about", "dispatchers")
Name = Annotated[str, typer.Argument(help="The handler")]


@app.command(name="list")
def list_(ctx: typer.Context) -> None:
    """List the handlers of all dispatchers that own partitions."""
    cli = context(ctx)
    found = _asked(cli, schedules=True)
    rows = [_row(found, name) | {"payload": _title(one.payload)} for name, (one, _) in found.handlers.items()]
    cli.output.rows(rows, _COLUMNS, empty="No dispatcher that answers has a handler.")


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Show a handler with the JSON schemas of its payload and its result."""
    cli = context(ctx)
    found = _asked(cli)
    if name not in found.handlers:
        raise NotFoundError(
            f"No dispatcher that answers has a handler {name!r}.", hint="`scylla-spark handler list` shows them."
        )
    record = _row(found, name)
    if cli.output.form == "table" and not cli.output.columns:
        record = {field: value for field, value in record.items() if value not in (None, "", [])}
    cli.output.record(record)


def _asked(cli: Context, *, schedules: bool = False) -> Catalogue:
    with cli.scheduler() as scheduler:
        found = scheduler.handlers()
        missing = scheduler.handler_warnings.of_schedules() if schedules else []
    for words in missing:
        cli.output.say(words)
    for address in found.silent:
        cli.output.say(f"The dispatcher at {address} does not answer.")
    return found


def _row(found: Catalogue, name: str) -> dict[str, Any]:
    one, holders = found.handlers[name]
    told = one.model_dump() | {"differs": name in found.differs}
    return told | {"dispatchers": [f"{holder.address} since {holder.since}" for holder in holders]}


def _title(schema: dict[str, Any] | None) -> str | None:
    """The name of a type, or whatever its schema says of it."""
    if schema is None:
        return None
    return str(schema.get("title") or schema.get("type") or "…")
