"""The commands `schedule explain` and `schedule fires`: what was decided about a schedule, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.context import Context, check_limit, context, instant
from scylla_spark.cli.output import printable

if TYPE_CHECKING:
    from scylla_spark.core.plan.state.schedule_entry import Entry

Name = Annotated[str, typer.Argument(help="The schedule")]
_INSTANTS = ("planned_at", "until_at", "decided_at", "scheduled_time")


def register(app: typer.Typer) -> None:
    """Adds the commands to `schedule`."""
    app.command()(explain)
    app.command()(fires)


def explain(
    ctx: typer.Context,
    name: Name,
    at: Annotated[str | None, typer.Option(help="Of this time: an instant, or a local time of its trigger")] = None,
) -> None:
    """Explain why a schedule ran or did not run, and what it waits for."""
    from scylla_spark.client.schedules.explanation import explained
    from scylla_spark.clock import now_us

    cli, now = context(ctx), now_us()
    with cli.scheduler() as scheduler:
        plan = scheduler.connection.plan.state()
        at_us = None if at is None else _asked(at, plan.entries.get(name))
        said, about = explained(scheduler.connection, plan, name, at_us, now)
    _say(cli, name, said, [printable(row, _INSTANTS) for row in about])


def fires(
    ctx: typer.Context,
    name: Name,
    since: Annotated[str | None, typer.Option(help="Decided since: an instant, or -1h")] = None,
    limit: Annotated[int, typer.Option(help="Most rows, to 10000")] = 100,
) -> None:
    """List the decisions about a schedule with their reasons, newest first: launched, skipped, missed and so on."""
    from scylla_spark.client.schedules.explanation import gone
    from scylla_spark.client.schedules.history import history

    check_limit(limit)
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        past = history(scheduler.connection, name)
        rows = past.fires(None if since is None else instant(since), limit)
        if not rows and name not in scheduler.connection.plan.state().entries:
            gone(past, name)
    if not past.complete:
        cli.output.say("Kafka did not answer in time: this is what the tables say.")
    shown = [printable(row, _INSTANTS) for row in rows]
    cli.output.rows(shown, ("planned_at", "decided_at", "verdict", "generation", "why"), empty="Nothing was decided.")


def _asked(text: str, entry: Entry | None) -> int:
    """The instant that is asked about: a time without an offset is one of the trigger's own zone."""
    from datetime import datetime

    from scylla_spark.core.plan.times import zone
    from scylla_spark.core.plan.times.planned_times import times_of

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return instant(text)
    series = times_of(entry.schedule.trigger) if entry is not None else []
    if moment.tzinfo is not None or not series:
        return instant(text)
    return zone.instant_of(series[0].tz, moment)


def _say(cli: Context, name: str, said: list[str], rows: list[dict[str, Any]]) -> None:
    if cli.output.form == "table" and not cli.output.columns:
        for sentence in said:
            cli.output.text(sentence)
    else:
        cli.output.record({"schedule": name, "said": said, "fires": rows})
