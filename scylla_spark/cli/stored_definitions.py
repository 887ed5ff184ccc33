"""The parts that the commands of all stored definitions share: put and show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scylla_spark.cli.context import Context, author
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.client.stored_definitions import DefinitionStatus
    from scylla_spark.definitions.definition import Definition


def put_file(cli: Context, file: str, model: type[Definition], others: Sequence[object]) -> Sequence[Definition]:
    """Stores the definitions of a file, and shows what became of each.

    Args:
        cli: of the command.
        file: its path.
        model: of the kind.
        others: what else the command was given.

    Raises:
        ArgumentError: a definition is not valid, or the command was given more than the file.
    """
    from scylla_spark.client.stored_definitions import read_file

    if any(one not in (None, {}, []) for one in others):
        raise ArgumentError(f"A file holds whole {model.word}s.", hint="Pass --file alone, or a name and fields.")
    found = read_file(file, model)
    put_all(cli, found)
    return found


def put_all(cli: Context, definitions: Sequence[Definition]) -> None:
    """Stores definitions, and shows what became of each."""
    from scylla_spark.client import stored_definitions

    with cli.scheduler() as scheduler:
        done = stored_definitions.put(scheduler.connection.plan, definitions, author())
    rows = [{"name": name, "done": one["became"], "revision": one["revision"]} for name, one in sorted(done.items())]
    cli.output.rows(rows, ("name", "done", "revision"))


def show(cli: Context, row: Mapping[str, Any]) -> None:
    """Shows one definition; as a table only what says something, and not the definition as it was put."""
    if cli.output.form == "table" and not cli.output.columns:
        row = {name: value for name, value in row.items() if name != "definition" and value not in (None, "", [], {})}
    cli.output.record(row)


def row_of(status: DefinitionStatus, **more: Any) -> dict[str, Any]:
    """A definition as a row: its name, whether it is paused, its fields, and who put it when.

    Args:
        status: of the definition.
        **more: further cells; they replace those of the same names.
    """
    from scylla_spark.clock import iso, to_us

    state = "paused" if status.fields.get("paused") else "active"
    return (
        {"name": status.name, "state": state}
        | status.fields
        | more
        | {
            "revision": status.revision,
            "author": status.author,
            "changed_at": iso(to_us(status.changed_at)) if status.changed_at else None,
            "definition": status.definition,
        }
    )
