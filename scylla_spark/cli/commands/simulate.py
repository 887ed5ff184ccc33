"""The command `scylla-spark simulate`: a past window again, under other limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.context import Context, context, instant
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.services.simulate.what_if import WhatIf

_SHOWN: Final = ("p50", "p95", "p99", "max")


def register(app: typer.Typer) -> None:
    """Adds the command to the tree."""
    app.command()(simulate)


def simulate(
    ctx: typer.Context,
    start: Annotated[str, typer.Option("--from", help="Scheduled at or after this instant, such as -24h")] = "-24h",
    stop: Annotated[str, typer.Option("--to", help="Scheduled before this instant")] = "now",
    slots: Annotated[
        int | None, typer.Option(min=1, help="Tasks that run at once; default: dispatch.max_children")
    ] = None,
    capacity: Annotated[
        int, typer.Option(min=0, help="Tasks a second that dispatchers can release; 0: any number")
    ] = 8_000,
    fact_delay: Annotated[str, typer.Option(help="How long a recorded outcome takes to count")] = "5ms",
    lanes: Annotated[int, typer.Option(min=0, help="How many of the worst lanes to show")] = 5,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME.FIELD=VALUE", help="mail.concurrency=5; repeatable")
    ] = None,
) -> None:
    """What would have happened with other limits: replay a past window of the tables through the engine.

    Nothing runs and nothing is written. The window is played with the limits of queues that are in force now, and again with what
    --queue and --slots change; shown are the start delays of both, today → changed. Every task takes as long as it took then and
    fails as often as it failed then. No queue is paused unless --queue says so.
    """
    from scylla_spark.clock import now_us
    from scylla_spark.duration import duration_us
    from scylla_spark.services.simulate.what_if import Question, what_if

    cli = context(ctx)
    now = now_us()
    window = (instant(start, now), instant(stop, now))
    question = Question(*window, _changes(queue), slots, duration_us(fact_delay), capacity, lanes)
    _show(cli, what_if(cli.settings(), question), window)


def _changes(given: list[str] | None) -> dict[str, dict[str, Any]]:
    """Queue → fields that are different."""
    from scylla_spark.definitions.queue import Queue

    found: dict[str, dict[str, Any]] = {}
    for text in given or ():
        place, sign, value = text.partition("=")
        name, dot, field = place.rpartition(".")
        if not (sign and dot and name):
            raise ArgumentError(f"{text!r} changes no queue.", hint="Write mail.concurrency=5.")
        known = Queue.field_named(field.replace("-", "_"))
        found.setdefault(name, {})[known] = Queue.value_of(known, value)
    return {name: Queue(name=name, **fields).definition for name, fields in found.items()}


def _show(cli: Context, found: WhatIf, window: tuple[int, int]) -> None:
    from scylla_spark.clock import iso

    rows, took = found.rows, found.seconds
    if cli.output.form == "json" and not cli.output.columns:
        facts = found._asdict() | {"from": iso(window[0]), "to": iso(window[1]), "seconds": round(took, 3)}
        cli.output.record(facts)
        return
    table = cli.output.form == "table" and not cli.output.columns
    cli.output.rows(
        [_told(row) for row in rows] if table else rows,
        ("scope", "name", "count", *_SHOWN, "makespan") if table else tuple(rows[0]),
    )
    cli.output.say(
        f"{found.tasks} tasks from {iso(window[0])} to {iso(window[1])}, played with {found.slots} slots in {took:.1f} s "
        f"({found.tasks / max(took, 1e-6):,.0f} a second); left out: {found.unfinished} unfinished, {found.unrun} that ended without a run."
    )
    measured = ", ".join(f"{name} {_ms(rows[0][f'measured_{name}_ms'])}" for name in _SHOWN)
    cli.output.say(
        f"Measured then: {measured}. Left of each arrow is the same window, played with the limits of today."
    )
    never = rows[0]["never_started"]
    if never:
        cli.output.say(f"{never} tasks would never have started, such as those of a paused queue.")


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people: with the limits of today → with the changed ones."""
    told = {name: row[name] for name in ("scope", "name", "count")}
    told |= {name: f"{_ms(row[f'{name}_ms'])} → {_ms(row[f'predicted_{name}_ms'])}" for name in _SHOWN}
    then, would = (None if s is None else s * 1000 for s in (row["makespan_s"], row["predicted_makespan_s"]))
    return told | {"makespan": f"{_ms(then)} → {_ms(would)}"}


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} ms"
