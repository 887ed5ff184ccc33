"""The commands `scylla-spark schedule …` about schedules that are stored: look at them, pause, resume, run and delete them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from scylla_spark.cli.commands import schedule_apply as schedule_check
from scylla_spark.cli.commands import schedule_backfill, schedule_explain, schedule_import
from scylla_spark.cli.context import Context, author, context, file_or_text, instant
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.client.schedules.selection import Selection
    from scylla_spark.client.schedules.times import PlannedTime
    from scylla_spark.core.plan.state.plan_state import PlanState
    from scylla_spark.core.plan.state.schedule_entry import Entry

app = typer.Typer(help="Put, look at, and steer schedules.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The schedule")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="The schedules; or choose by --tag")]
Tag = Annotated[str | None, typer.Option(help="All with this tag")]
ChangedFrom = Annotated[
    str | None, typer.Option(help="All that were changed, paused or resumed last then or later: an instant, or -2h")
]
ChangedUntil = Annotated[str | None, typer.Option(help="… and before this")]
Note = Annotated[str, typer.Option(help="Why, for people")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask")]
Begin = Annotated[str, typer.Option(help="pause: run what came to their tables meanwhile; now: leave it out")]
Count = Annotated[int, typer.Argument(metavar="[N]", help="How many")]
_COLUMNS = ("name", "state", "trigger", "next_at", "running", "waiting")
_TIMES = ("planned_at", "local", "note")
_MOST_SHOWN = 3


@app.command(name="list")
def list_(
    ctx: typer.Context,
    kind: Annotated[str | None, typer.Option(help="time, event, partitions, table, after, batch, manual")] = None,
    state: Annotated[str | None, typer.Option(help="active, paused or completed")] = None,
    tag: Tag = None,
    owner: Annotated[str | None, typer.Option(help="Whom to ask")] = None,
    next_before: Annotated[str | None, typer.Option(help="Due before: an instant, or +1h")] = None,
    limit: Annotated[int, typer.Option(help="Most rows")] = 1000,
) -> None:
    """List schedules by name, as the planner knows them now."""
    from scylla_spark.cli.commands.schedule_rows import listed
    from scylla_spark.client.schedules.selection import Selection, chosen

    cli = context(ctx)
    before_us = None if next_before is None else instant(next_before)
    plan = _state(cli)
    found = chosen(plan, Selection(kind, state, tag, owner), _now())
    rows = listed(found, plan, before_us, limit, _now())
    cli.output.rows(rows, _COLUMNS, empty="No such schedules.")
    if len(rows) == limit and len(found) > limit:
        cli.output.say("There may be more: --limit, or narrower options.")


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Show a schedule: its state, what it waits for, and its definition."""
    from scylla_spark.cli.commands.schedule_rows import shown
    from scylla_spark.client.schedules.handle import status_of

    cli = context(ctx)
    plan = _state(cli)
    entry = _entry(plan, name)
    status = status_of(entry, plan, _now())
    record = shown(entry, status)
    if cli.output.form == "table" and not cli.output.columns:
        record = {field: value for field, value in record.items() if value not in (None, "", [], 0, False)}
        record |= {field: _lines(record[field]) for field in ("jobs", "runs") if field in record}
        record["definition"] = json.dumps(status.definition, indent=2, ensure_ascii=False)
    cli.output.record(record)


@app.command(name="next")
def next_(ctx: typer.Context, name: Name, count: Count = 5) -> None:
    """List the next planned times, with what clock changes and holidays do to them."""
    from scylla_spark.client.schedules.times import following, under_time_ranges
    from scylla_spark.core.plan.schedule_state import state_of

    cli = context(ctx)
    plan = _state(cli)
    entry, series = _timed(plan, name, count)
    rows = under_time_ranges(following(series, plan.calendars, _now(), count), entry.schedule.constraints)
    if entry.paused:
        cli.output.say("It is paused: nothing of this runs until it is resumed.")
    elif rows and state_of(entry, plan.calendars, _now()) == "completed":
        cli.output.say("It is completed: too few branches of its trigger can still come, so nothing of this runs.")
    _show_times(cli, rows, f"{name} has no time that is still to come.")


@app.command()
def previous(ctx: typer.Context, name: Name, count: Count = 5) -> None:
    """List the last planned times by its definition as it is now, and what was decided about them."""
    from scylla_spark.cli.commands.schedule_rows import with_verdicts
    from scylla_spark.client.schedules.history import history
    from scylla_spark.client.schedules.times import preceding, under_time_ranges

    cli = context(ctx)
    with cli.scheduler() as scheduler:
        plan = scheduler.connection.plan.state()
        entry, series = _timed(plan, name, count)
        times = under_time_ranges(preceding(series, plan.calendars, _now(), count), entry.schedule.constraints)
        last = times[-1].at_us + 1 if times else 0
        fires = history(scheduler.connection, name).fires_about(times[0].at_us, last) if times else []
    rows = with_verdicts([_time_row(row) for row in times], fires)
    columns = _columns(times, ("planned_at", "local", "verdict", "why", "note"))
    cli.output.rows(rows, columns, empty=f"{name} has no earlier time.")


@app.command()
def pause(
    ctx: typer.Context,
    names: Names = None,
    tag: Tag = None,
    note: Note = "",
    until: Annotated[str | None, typer.Option(help="It goes on by itself then: an instant, or +2h")] = None,
    changed_from: ChangedFrom = None,
    changed_until: ChangedUntil = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Pause schedules; runs that were launched ahead are taken back."""
    until_us = None if until is None else instant(until)
    asked = _Asked("pause", names, _selection(tag, changed_from, changed_until), dry_run, yes)
    _steer(context(ctx), asked, note=note or None, until=until_us)


@app.command()
def resume(
    ctx: typer.Context, names: Names = None, tag: Tag = None, changed_from: ChangedFrom = None, changed_until: ChangedUntil = None,
    begin: Begin = "pause", dry_run: DryRun = False, yes: Yes = False,
) -> None:  # fmt: skip
    """Resume schedules, from now on."""
    from scylla_spark.client.schedules.selection import is_now

    asked = _Asked("resume", names, _selection(tag, changed_from, changed_until), dry_run, yes)
    _steer(context(ctx), asked, fromNow=is_now(begin))


@app.command()
def run(
    ctx: typer.Context,
    name: Name,
    payload: Annotated[str | None, typer.Option(help="JSON object instead of its own; @FILE or - for stdin")] = None,
) -> None:
    """Launch a run at once, beside other runs; prints the key of its task."""
    from scylla_spark.cli.commands.schedule_rows import json_object

    cli = context(ctx)
    own = None if payload is None else json_object(file_or_text(payload), "payload")
    with cli.scheduler() as scheduler:
        handle = scheduler.schedule(name, author=author()).run_now(own)
    cli.output.value("key", str(handle.key))


@app.command()
def delete(ctx: typer.Context, names: Names = None, tag: Tag = None, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete schedules; their past runs stay in the tables."""
    _steer(context(ctx), _Asked("delete", names, _selection(tag, None, None), dry_run, yes))


schedule_explain.register(app)
schedule_backfill.register(app)
schedule_check.register(app)
app.command(name="import")(schedule_import.import_)

# -- below: what several commands do ------------------------------------------------------------------------------------


def _lines(values: list[Any]) -> str:
    """One value per line, objects as their parts."""
    parts = [
        ", ".join(f"{name} {item}" for name, item in one.items()) if isinstance(one, dict) else one for one in values
    ]
    return "\n".join(parts)


class _Asked(NamedTuple):
    """What is to be done with some schedules."""

    kind: str
    names: list[str] | None
    selection: Selection
    dry_run: bool
    yes: bool


def _steer(cli: Context, asked: _Asked, **more: Any) -> None:
    """Pauses, resumes or deletes; asks before a change of many, or one that cannot be taken back."""
    from scylla_spark.client.schedules.selection import steer

    if bool(asked.names) == asked.selection.chooses:
        raise ArgumentError(
            "Which schedules?", hint="Pass names, or --tag or --changed-from for all that have that in common."
        )
    with cli.scheduler() as scheduler:
        plan = scheduler.connection.plan
        meant = _meant(plan.state().entries, asked)
        if asked.dry_run or not meant:
            rows = [{"name": name, "would": asked.kind} for name in meant]
            cli.output.rows(rows, ("name", "would"), empty=f"There is nothing to {asked.kind}.")
            return
        asks = asked.kind == "delete" or asked.selection.chooses or len(meant) > 1
        if asks and not cli.confirmed(f"{asked.kind} {_many(meant)}", yes=asked.yes):
            return
        done = steer(plan, asked.kind, meant, author(), **more)
    cli.output.rows([{"name": name, "done": what} for name, what in done.items()], ("name", "done"))


def _meant(entries: dict[str, Entry], asked: _Asked) -> list[str]:
    """Names that a command is about; of a selection only those that it changes."""
    from scylla_spark.client.schedules.selection import names_of, to_steer

    if asked.names:
        missing = [name for name in asked.names if name not in entries]
        if missing:
            raise _missing(missing[0])
        return list(dict.fromkeys(asked.names))
    return names_of(to_steer(entries, asked.kind, asked.selection))


def _selection(tag: str | None, changed_from: str | None, changed_until: str | None) -> Selection:
    from scylla_spark.client.schedules.selection import Selection

    window = [None if text is None else instant(text) for text in (changed_from, changed_until)]
    return Selection(None, None, tag, None, *window)


def _timed(plan: PlanState, name: str, count: int) -> tuple[Entry, list[Any]]:
    from scylla_spark.client.schedules.handle import MOST_RUNS_LISTED
    from scylla_spark.client.schedules.trigger_words import in_words
    from scylla_spark.core.plan.times.planned_times import times_of

    entry = _entry(plan, name)
    if not 1 <= count <= MOST_RUNS_LISTED:
        raise ArgumentError(f"{count} times are asked for.", hint=f"1 to {MOST_RUNS_LISTED} are listed.")
    series = times_of(entry.schedule.trigger)
    if not series:
        raise ArgumentError(
            f"{name} fires on what happens, not at times.", hint=f"It fires {in_words(entry.schedule.trigger)}."
        )
    return entry, series


def _show_times(cli: Context, rows: list[PlannedTime], empty: str) -> None:
    cli.output.rows([_time_row(row) for row in rows], _columns(rows, _TIMES), empty=empty)


def _columns(rows: list[PlannedTime], names: tuple[str, ...]) -> list[str]:
    """Those that say something."""
    dull = {"note"} if not any(row.note for row in rows) else set()
    dull |= {"local"} if all(row.tz == "UTC" for row in rows) else set()
    return [name for name in names if name not in dull]


def _time_row(row: PlannedTime) -> dict[str, Any]:
    from scylla_spark.clock import iso

    return {"planned_at": iso(row.at_us), "local": row.local, "tz": row.tz, "fires": row.fires, "note": row.note}


def _state(cli: Context) -> PlanState:
    with cli.scheduler() as scheduler:
        return scheduler.connection.plan.state()


def _entry(plan: PlanState, name: str) -> Entry:
    found = plan.entries.get(name)
    if found is None:
        raise _missing(name)
    return found


def _missing(name: str) -> Exception:
    from scylla_spark.client.schedules.explanation import missing

    return missing(name)


def _many(names: list[str]) -> str:
    said = ", ".join(names[:_MOST_SHOWN]) + (
        f" and {len(names) - _MOST_SHOWN} others" if len(names) > _MOST_SHOWN else ""
    )
    return f"{len(names)} schedules ({said})" if len(names) > 1 else f"the schedule {said}"


def _now() -> int:
    from scylla_spark.clock import now_us

    return now_us()
