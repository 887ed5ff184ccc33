"""The commands `schedule backfill` and those that list, pause, resume and cancel backfills."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from scylla_spark.cli.context import Context, author, context, instant
from scylla_spark.cli.negative_arguments import TakesNegativeArguments
from scylla_spark.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from scylla_spark.client.scheduler import Scheduler
    from scylla_spark.client.schedules.backfills import Backfill, BackfillStatus
    from scylla_spark.client.schedules.handle import ScheduleHandle

Name = Annotated[str, typer.Argument(help="The schedule")]
Begin = Annotated[
    str,
    typer.Argument(
        help="The first planned time: 2026-11-01 (in the zone of the schedule), 2026-11-01T00:00:00Z or -7d; "
        "or the last version of its table before those that run"
    ),
]
End = Annotated[str, typer.Argument(help="The first that is too late; or the last version")]
Excluded = Annotated[
    list[str] | None, typer.Option(metavar="INSTANT|BEGIN/END", help="Planned times that are left out; repeatable")
]
TagOfBackfill = Annotated[str, typer.Argument(help="Of the backfill, such as backfill:nightly/31")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask")]
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_VERSION: Final = re.compile(r"-1|[0-9]{1,16}")
_TIMES: Final = ("planned_at",)
_VERSIONS: Final = ("from_version", "to_version", "rows", "commits", "bytes", "planned_at")
_COLUMNS: Final = ("tag", "state", "done", "total", "failed", "running", "begun_at", "ends_at", "over_at")
_INSTANTS: Final = ("begun_at", "ends_at", "over_at")


def register(app: typer.Typer) -> None:
    """Adds the commands to `schedule`."""
    app.command(cls=TakesNegativeArguments)(backfill)
    app.command()(backfills)
    app.command(name="backfill-pause")(pause)
    app.command(name="backfill-resume")(resume)
    app.command(name="backfill-cancel")(cancel)


def backfill(
    ctx: typer.Context,
    name: Name,
    begin: Begin,
    end: End = "now",
    order: Annotated[str, typer.Option(help="Oldest or newest first")] = "oldest",
    max_running: Annotated[int, typer.Option("--max-running", help="How many run at once")] = 1,
    priority: Annotated[int, typer.Option(help="Of their tasks, 0 to 255")] = 0,
    reprocess: Annotated[str, typer.Option(help="Which of those that ran before run again: none, failed or all")] = "none",
    exclude: Excluded = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:  # fmt: skip
    """Run past planned times, or the past versions between two of the table that it watches, beside what the schedule does by itself."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        handle = scheduler.schedule(name, author=author())
        local = _local_zone(scheduler, name)
        wanted = _begin_or_end(begin, local), _begin_or_end(end, local)
        without = [_excluded(one, local) for one in exclude or ()]
        found = handle.backfill(*wanted, order=order, reprocess=reprocess, exclude=without, dry_run=True)
        what = "ranges of versions" if found.versions else "planned times"
        if not dry_run and found.planned and cli.confirmed(f"run {len(found.planned)} {what} of {name}", yes=yes):
            asked = handle.backfill(
                *wanted, order=order, max_running=max_running, priority=priority, reprocess=reprocess, exclude=without
            )
            cli.output.say(f"Its tasks have the tag {asked.tag}: `schedule backfills {name}` says how far it is.")
    cli.output.rows(_rows_of(found), _columns(found))


def backfills(ctx: typer.Context, name: Name) -> None:
    """List the backfills of a schedule, newest first, with their progress and expected end."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        found = scheduler.schedule(name).backfills()
    cli.output.rows([_row(one) for one in found], _COLUMNS, empty=f"{name} has no backfill.")


def pause(ctx: typer.Context, tag: TagOfBackfill) -> None:
    """Pause a backfill.

    An attempt that a dispatcher runs goes on to its end; if it fails, its run is launched anew after that. What a worker has leased
    ends at once, and is run again then.
    """
    cli = context(ctx)
    _of(cli, tag, lambda handle: handle.pause_backfill(tag))
    cli.output.say(f"{tag} is paused; `schedule backfill-resume {tag}` lets it go on.")


def resume(ctx: typer.Context, tag: TagOfBackfill) -> None:
    """Resume a paused backfill."""
    cli = context(ctx)
    _of(cli, tag, lambda handle: handle.resume_backfill(tag))
    cli.output.say(f"{tag} goes on.")


def cancel(ctx: typer.Context, tag: TagOfBackfill, yes: Yes = False) -> None:
    """Cancel the rest of a backfill.

    An attempt that a dispatcher runs goes on to its end; if it fails, it is not tried again, and its run counts as cancelled. What a
    worker has leased ends at once, and is not run again.
    """
    cli = context(ctx)
    if cli.confirmed(f"cancel {tag}", yes=yes):
        _of(cli, tag, lambda handle: handle.cancel_backfill(tag))
        cli.output.say(f"{tag} is cancelled.")


def _row(one: BackfillStatus) -> dict[str, Any]:
    from scylla_spark.clock import to_us

    times = {name: None if (at := getattr(one, name)) is None else to_us(at) for name in _INSTANTS}
    return printable(dict(one) | times, _INSTANTS)


def _of(cli: Context, tag: str, act: Callable[[ScheduleHandle], None]) -> None:
    """Does something with the schedule of which a backfill is."""
    from scylla_spark.client.schedules.backfills import schedule_with

    with cli.scheduler() as scheduler:
        name = schedule_with(scheduler.connection.plan.state(), tag)
        act(scheduler.schedule(name, author=author()))


def _local_zone(scheduler: Scheduler, name: str) -> ZoneInfo | None:
    """The zone of a schedule; None: its trigger has none, or several."""
    from zoneinfo import ZoneInfo

    from scylla_spark.core.plan.times.planned_times import times_of

    entry = scheduler.connection.plan.state().entries.get(name)
    zones = {one.tz for one in times_of(entry.schedule.trigger)} if entry is not None else set()
    return ZoneInfo(zones.pop()) if len(zones) == 1 else None


def _begin_or_end(text: str, local: ZoneInfo | None) -> datetime | int:
    """A version, if the text is a whole number; else an instant."""
    return int(text) if _VERSION.fullmatch(text) else _moment(text, local)


def _excluded(text: str, local: ZoneInfo | None) -> datetime | tuple[datetime, datetime]:
    """One instant, or the first and the first that is too late with a slash between them."""
    begin, slash, end = text.partition("/")
    return (_moment(begin, local), _moment(end, local)) if slash else _moment(begin, local)


def _moment(text: str, local: ZoneInfo | None) -> datetime:
    """An instant; a text without a zone is a local time of the schedule, and a day begins at its midnight."""
    from scylla_spark.clock import from_us, read_instant

    if local is not None:
        with contextlib.suppress(ValueError):
            return read_instant(f"{text}T00:00" if _DAY.fullmatch(text) else text, local)
    return from_us(instant(text))


def _rows_of(found: Backfill) -> list[dict[str, Any]]:
    """The runs of a backfill, in their order: times, or versions."""
    from scylla_spark.clock import iso, to_us

    times = [{"planned_at": iso(to_us(at))} for at in found.planned]
    if not found.versions:
        return times
    return [dict(one) | time for one, time in zip(found.versions, times, strict=True)]


def _columns(found: Backfill) -> tuple[str, ...]:
    """Which columns a table of them has."""
    if not found.versions:
        return _TIMES
    return (*_VERSIONS, "partition") if any(one.partition for one in found.versions) else _VERSIONS
