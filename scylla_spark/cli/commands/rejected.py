"""The commands `scylla-spark rejected …`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.context import Context, check_limit, context, instant
from scylla_spark.cli.output import printable

if TYPE_CHECKING:
    from scylla_spark.io.delta.rejected_records import RejectedRecords
    from scylla_spark.io.kafka.command_sender import Record

app = typer.Typer(help="Look at records that were refused, and send them again.", no_args_is_help=True)

Reason = Annotated[str | None, typer.Option(help="Only this reason code")]
Since = Annotated[str | None, typer.Option(help="Appended since: an instant, or -1h")]
Limit = Annotated[int, typer.Option(help="Most rows, to 10000")]


@app.command(name="list")
def list_(ctx: typer.Context, reason: Reason = None, since: Since = None, limit: Limit = 100) -> None:
    """List refused records, newest first."""
    cli = context(ctx)
    rows: list[dict[str, Any]] = []
    chosen = _chosen(cli, reason, since, limit)
    for portion in _records(cli).whole(chosen) if _tells_values(cli) else [chosen]:
        rows += map(_shown, portion)
    cli.output.rows(rows, ("appended_at", "place", "reason", "detail"), empty="No refused records in the tables.")


@app.command()
def replay(
    ctx: typer.Context,
    reason: Reason = None,
    since: Since = None,
    limit: Limit = 100,
    now: Annotated[bool, typer.Option("--now", help="Schedule them for now instead of their own time")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Send refused records again under the right key and partition; those that would be refused again are only listed."""
    from scylla_spark.client.tasks.resend_rejected import repaired
    from scylla_spark.clock import now_us

    cli = context(ctx)
    rows = _chosen(cli, reason, since, limit)
    with cli.scheduler() as scheduler:
        moment = now_us()

        def judged() -> Iterator[list[tuple[dict[str, Any], Record | str]]]:
            """Some rows at a time, because their values may be a MiB each."""
            for portion in _records(cli).whole(rows):
                yield [
                    (row, repaired(row["value"], scheduler.connection.rules, moment, reschedule=now)) for row in portion
                ]

        table, good = [], 0
        for portion in judged():
            good += sum(1 for _, record in portion if not isinstance(record, str))
            table += [
                _shown(row if _tells_values(cli) else row | {"value": None})
                | {"replay": record if isinstance(record, str) else "ok"}
                for row, record in portion
            ]
        if dry_run or not good:
            cli.output.rows(table, ("place", "reason", "replay"), empty="No refused records in the tables.")
        elif cli.confirmed(f"send {good} of {len(rows)} records again", yes=yes):
            sender = scheduler.connection.sender
            for portion in judged():
                sender.finish([sender.begin(record) for _, record in portion if not isinstance(record, str)])
            cli.output.record({"sent": good, "refused_again": len(rows) - good})


def _records(cli: Context) -> RejectedRecords:
    from scylla_spark.io.delta.rejected_records import RejectedRecords

    return RejectedRecords(cli.readers())


def _chosen(cli: Context, reason: str | None, since: str | None, limit: int) -> list[dict[str, Any]]:
    check_limit(limit)
    since_us = None if since is None else instant(since)
    return _records(cli).chosen(limit, reason=reason, since_us=since_us)


def _tells_values(cli: Context) -> bool:
    """Returns True if values are told; a table has no room for them unless they are asked for."""
    return cli.output.form != "table" or "value" in cli.output.columns


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    texts = {name: (row.get(name) or b"").decode("utf-8", "replace") for name in ("key", "value")}
    place = f"{row['topic']}/{row['partition_id']}/{row['offset']}"
    return printable(
        {"appended_at": row["appended_at"], "place": place, "reason": row["reason"], "detail": row["detail"]} | texts,
        ("appended_at",),
    )
