"""The command `scylla-spark top`: the numbers of the dashboard's first screen in a terminal, made anew every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.api_call import ApiUrl, Authority, TokenFile, called, site_of
from scylla_spark.cli.context import Context, context
from scylla_spark.cli.output import STATE_COLORS
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError, SchedulerError
from scylla_spark.task_states import STATES
from scylla_spark.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from scylla_spark.worker.connection import Site

_LEAST_US: Final = 1_000_000
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
_WIDEST: Final = 40
NOTHING: Final = "–"  # noqa: RUF001


def register(app: typer.Typer) -> None:
    """Adds the command to the tree."""
    app.command()(top)


def top(
    ctx: typer.Context,
    url: ApiUrl = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    every: Annotated[str, typer.Option(help="How often it is made anew, 1s at least")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Show it once; so it is where no terminal reads")] = False,
) -> None:
    """Show states, start lateness, overdue tasks and queues, live. Ctrl-C ends it."""
    cli = context(ctx)
    every_us = duration_us(every)
    if every_us < _LEAST_US:
        raise ArgumentError(f"Every {every} is too often.", hint="The API makes new numbers every two seconds.")
    site = site_of(cli, url, token_file, ca)
    if once or cli.output.form != "table" or not sys.stdout.isatty():
        _show_once(cli, called(site, "GET", "/v1/overview"))
    else:
        _show_live(cli, site, every_us)


def screen(overview: dict[str, Any], trouble: str = "") -> RenderableType:
    """The whole picture.

    Args:
        overview: as `GET /v1/overview` tells it.
        trouble: why the numbers are old; empty: they are not.
    """
    from rich.console import Group

    return Group(*_banners(overview, trouble), _head(overview), _queues(overview))


def span(ms: float | None) -> str:
    """Milliseconds as people read them: 340 ms, 1.2 s, 4 min 5 s."""
    if ms is None:
        return NOTHING
    if ms < 1_000:
        return f"{max(ms, 0):.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    place = next(number for number, (_, size) in enumerate(_UNITS) if ms >= size)
    (unit, size), (smaller, part) = _UNITS[place], _UNITS[place + 1]
    return f"{int(ms // size)} {unit} {int(ms % size // part)} {smaller}"


def _show_once(cli: Context, overview: dict[str, Any]) -> None:
    if cli.output.form in ("json", "jsonl"):
        cli.output.record(overview)
        return
    rows = [
        {"queue": one["name"]} | {state: one["states"].get(state, 0) for state in STATES} for one in overview["queues"]
    ]
    for banner in overview["banners"]:
        cli.output.say(f"{banner['text']} {banner['hint']}")
    cli.output.say(_lateness(overview).plain)
    cli.output.rows(rows, ("queue", *STATES), empty="No queue has tasks yet.")


def _show_live(cli: Context, site: Site, every_us: int) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(no_color=not cli.output.color), screen=True, auto_refresh=False) as live:
        try:
            for picture in _pictures(site):
                live.update(picture, refresh=True)
                time.sleep(every_us / 1e6)
        except KeyboardInterrupt:
            return


def _pictures(site: Site) -> Iterator[RenderableType]:
    """Pictures without end; an API that is away for a while leaves the last numbers standing, and says so."""
    overview: dict[str, Any] = called(site, "GET", "/v1/overview")
    yield screen(overview)
    while True:
        trouble = ""
        try:
            overview = called(site, "GET", "/v1/overview")
        except SchedulerError as error:
            trouble = str(error)
        yield screen(overview, trouble)


def _banners(overview: dict[str, Any], trouble: str) -> list[Text]:
    from rich.text import Text

    lines = [Text(visible(f"These numbers are of {overview['at']}: {trouble}"), style="bold red")] if trouble else []
    return lines + [Text(f"{one['text']} {one['hint']}", style="bold yellow") for one in overview["banners"]]


def _head(overview: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    states = Text("  ").join(
        Text(f"{state.replace('_', ' ')} {overview['states'][state]:,}", style=STATE_COLORS.get(state, ""))
        for state in STATES
    )
    return Group(Text(f"scylla-spark, {overview['at']}", style="dim"), states, _lateness(overview), Text(""))


def _lateness(overview: dict[str, Any]) -> Text:
    from rich.text import Text

    lately, overdue = overview["lately"], overview["overdue"]
    text = f"start lateness p50 {span(lately['p50_ms'])}, p99 {span(lately['p99_ms'])}; last minute {lately['started']:,} starts, "
    text += f"{lately['ended']:,} ends, {lately['failed']:,} failed"
    if overdue["count"]:
        drain = overdue["drain_s"]
        text += f"; {overdue['count']:,} overdue, the oldest {span(overdue['late_ms'])}"
        text += f", drained in {span(drain * 1000)}" if drain is not None else ""
    return Text(text)


def _queues(overview: dict[str, Any]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("queue", max_width=_WIDEST, no_wrap=True, overflow="ellipsis")
    for state in STATES:
        table.add_column(state.replace("_", " "), justify="right")
    for one in overview["queues"]:
        counts = [one["states"].get(state, 0) for state in STATES]
        cells = [
            Text(f"{count:,}", style=STATE_COLORS.get(state, "") if count else "dim")
            for state, count in zip(STATES, counts, strict=True)
        ]
        table.add_row(Text(visible(one["name"])), *cells)
    return table
