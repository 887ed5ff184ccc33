"""The commands `scylla-spark table …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.context import Context, context
from scylla_spark.errors import UnreachableError

if TYPE_CHECKING:
    from scylla_spark.client.scheduler import Scheduler
    from scylla_spark.services.ingest.maintenance import Maintenance

_COLUMNS: Final = (
    "partition", "tasks_behind", "outcomes_behind", "folded_until", "closed_until", "open_hours", "state", "epoch", "lanes", "loaded",
    "in_flight", "owner",
)  # fmt: skip

app = typer.Typer(help="Look at the tables and tidy them up.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Look at the tables and tidy them up."""


@app.command()
def stats(
    ctx: typer.Context,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="How far the tables are, and who owns what, per partition")
    ] = False,
) -> None:
    """Show the size of every table, or the status of the service per partition."""
    cli = context(ctx)
    if not partitions:
        cli.output.rows(cli.listings().sizes(), ("table", "rows", "files", "bytes", "version"))
        return
    with cli.scheduler() as scheduler:
        rows = _partitions(cli, scheduler)
    cli.output.rows(
        rows,
        _COLUMNS,
    )


@app.command()
def compact(ctx: typer.Context) -> None:
    """Put small files together, while no ingest runs; one that runs does it by itself, between batches."""
    _tidy(context(ctx), lambda chores, now: chores.compactor.compact_all(now))


@app.command()
def purge(ctx: typer.Context) -> None:
    """Delete history older than ingest.retention, while no ingest runs; one that runs does it by itself, every hour."""
    _tidy(context(ctx), lambda chores, now: chores.purge_all(now))


def _tidy(cli: Context, work: Callable[[Maintenance, int], None]) -> None:
    from scylla_spark.clock import now_us
    from scylla_spark.io.host.session import open_session
    from scylla_spark.services.ingest.ingest import Ingest

    settings = cli.settings()
    before = cli.listings().sizes()
    spark = open_session(settings, "scylla-spark table", services=True)
    ingest = Ingest(spark, settings)
    try:
        ingest.hold()
        ingest.begin()
        work(ingest.maintenance, now_us())
    finally:
        ingest.stop()
        spark.stop()
    rows = [
        {"table": new["table"]}
        | {
            f"{name}_{when}": side[name]
            for name in ("rows", "files")
            for when, side in (("before", old), ("after", new))
        }
        for old, new in zip(before, cli.listings().sizes(), strict=True)
    ]
    cli.output.rows(rows, ("table", "rows_before", "rows_after", "files_before", "files_after"))


def _partitions(cli: Context, scheduler: Scheduler) -> list[dict[str, Any]]:
    from scylla_spark.client.explain import ask_partitions
    from scylla_spark.clock import iso
    from scylla_spark.core.key import HOUR_US
    from scylla_spark.core.near import ALL_FOLDED_US
    from scylla_spark.io.kafka.topics import end_offsets

    marks, count = scheduler.connection.readers.marks(), scheduler.connection.rules.partitions
    numbers = list(range(count))
    topics = scheduler.settings.topics
    try:
        ends = {
            name: end_offsets(scheduler.connection.located, getattr(topics, name), numbers)
            for name in ("tasks", "outcomes")
        }
    except UnreachableError as error:
        cli.output.say(str(error))
        ends = {}
    rows = []
    answers: dict[str, dict[int, Any]] = {}
    for number in numbers:
        address = scheduler.connection.owner_address(number) if ends else ""
        if address and address not in answers:
            answers[address] = ask_partitions(address)
        held = answers.get(address, {}).get(number, {})
        tasks, outcomes = marks.get(("tasks", number)), marks.get(("outcomes", number))
        rows.append({
            "partition": number,
            "tasks_behind": ends["tasks"][number] - (tasks.tasks_offset if tasks else 0) if ends else None,
            "outcomes_behind": ends["outcomes"][number] - (outcomes.outcomes_offset if outcomes else 0) if ends else None,
            "folded_until": iso(tasks.folded_until_us) if tasks and tasks.folded_until_us < ALL_FOLDED_US else None,
            "closed_until": iso(tasks.closed_hour * HOUR_US) if tasks and tasks.closed_hour else None,
            "open_hours": len(tasks.open_hours) if tasks else 0,
            "state": held.get("state"), "epoch": held.get("epoch"), "lanes": held.get("lanes"), "loaded": held.get("loaded"),
            "in_flight": held.get("in_flight"), "owner": address.removeprefix("http://") or None,
        })  # fmt: skip
    return rows
