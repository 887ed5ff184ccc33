"""The command `scylla-spark simulate`: a past window again, under other limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.context import Context, context, instant

if TYPE_CHECKING:
    from scylla_spark.io.delta.past_window import TaskHistory

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
) -> None:
    """What would have happened with other limits: replay a past window of the tables through the engine.

    Limits are given as settings: --set queues.mail.concurrency=5. Nothing runs and nothing is written. Every task takes as long as it
    took then and fails as often as it failed then; shown are start delays as they were → as they would have been.
    """
    from dataclasses import replace

    from scylla_spark.clock import boot_us, now_us
    from scylla_spark.duration import duration_us
    from scylla_spark.io.delta.past_window import past
    from scylla_spark.io.delta.table_reader import TableReader
    from scylla_spark.services.simulate.compare import outlook
    from scylla_spark.services.simulate.play import forecast, model_of

    cli = context(ctx)
    settings = cli.settings()
    readers = TableReader(settings.tables_path)
    now = now_us()
    window = (instant(start, now), instant(stop, now))
    found = past(readers, *window)
    model = model_of(settings, readers.rules().partitions)
    model = replace(
        model, slots=slots or model.slots, fact_delay_us=duration_us(fact_delay), cost_us=1_000_000 // capacity if capacity else 0,
    )  # fmt: skip
    cli.output.say(f"{len(found.tasks)} tasks …")
    begun = boot_us()
    played = forecast(found.tasks, model)
    seconds = (boot_us() - begun) / 1e6
    _show(cli, found, window, outlook(found.tasks, played, lanes=lanes), {"slots": model.slots, "seconds": seconds})


def _show(
    cli: Context, found: TaskHistory, window: tuple[int, int], rows: list[dict[str, Any]], run: dict[str, float]
) -> None:
    from scylla_spark.clock import iso

    count, took = len(found.tasks), run["seconds"]
    if cli.output.form == "json" and not cli.output.columns:
        facts = {
            "from": iso(window[0]), "to": iso(window[1]), "tasks": count, "unfinished": found.unfinished, "unrun": found.unrun,
            "slots": run["slots"], "seconds": round(took, 3), "rows": rows,
        }  # fmt: skip
        cli.output.record(facts)
        return
    table = cli.output.form == "table" and not cli.output.columns
    cli.output.rows(
        [_told(row) for row in rows] if table else rows,
        ("scope", "name", "count", *_SHOWN, "makespan") if table else tuple(rows[0]),
    )
    cli.output.say(
        f"{count} tasks from {iso(window[0])} to {iso(window[1])}, played with {run['slots']} slots in {took:.1f} s "
        f"({count / max(took, 1e-6):,.0f} a second); left out: {found.unfinished} unfinished, {found.unrun} that ended without a run."
    )
    never = rows[0]["never_started"]
    if never:
        cli.output.say(f"{never} tasks would never have started, such as those of a paused queue.")


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people: then → with these limits."""
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
