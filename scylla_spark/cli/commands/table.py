"""The commands `scylla-spark table …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.context import Context, context
from scylla_spark.clock import now_us

if TYPE_CHECKING:
    from scylla_spark.client.scheduler import Scheduler
    from scylla_spark.services.ingest.ingest import Ingest

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
        cli.output.rows(cli.readers().sizes(), ("table", "rows", "files", "bytes", "version"))
        return
    with cli.scheduler() as scheduler:
        rows = _partitions(cli, scheduler)
    cli.output.rows(
        rows,
        _COLUMNS,
    )


@app.command()
def compact(ctx: typer.Context) -> None:
    """Compact small files, while no ingest runs. A running ingest does this between batches."""
    _tidy(context(ctx), lambda ingest: ingest.maintenance.compactor.compact_all(now_us()))


@app.command()
def purge(ctx: typer.Context) -> None:
    """Delete history older than ingest.retention, while no ingest runs. A running ingest does this every hour."""
    _tidy(context(ctx), _purge)


def _purge(ingest: Ingest) -> None:
    ingest.hear_the_time()
    ingest.maintenance.purge_all(ingest.clock.now())


def _tidy(cli: Context, work: Callable[[Ingest], None]) -> None:
    from scylla_spark.io.host.session import open_session
    from scylla_spark.services.ingest.ingest import Ingest

    settings = cli.settings()
    before = cli.readers().sizes()
    spark = open_session(settings, "scylla-spark table", services=True)
    ingest = Ingest(spark, settings)
    try:
        ingest.hold()
        ingest.open_to_tidy()
        work(ingest)
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
        for old, new in zip(before, cli.readers().sizes(), strict=True)
    ]
    cli.output.rows(rows, ("table", "rows_before", "rows_after", "files_before", "files_after"))


def _partitions(cli: Context, scheduler: Scheduler) -> list[dict[str, Any]]:
    from scylla_spark.client.partition_status import partition_rows

    rows, why = partition_rows(scheduler.connection)
    if why:
        cli.output.say(why)
    return rows
